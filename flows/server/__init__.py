"""What Prefect's server loads of ours."""
