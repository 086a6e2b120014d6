"""Modules of this project that Prefect's server loads."""
