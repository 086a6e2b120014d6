"""The platform below every stage: DVC, MLflow, the registry, the ledger, checkpoints, expectations."""
