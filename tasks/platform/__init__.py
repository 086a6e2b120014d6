"""What every stage shares: DVC, MLflow, the registry, the ledger, checkpoints, expectations."""
