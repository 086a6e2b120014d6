"""The domain library: it knows neither Prefect, DVC, MLflow nor Great Expectations."""

__version__ = "0.1.0"
