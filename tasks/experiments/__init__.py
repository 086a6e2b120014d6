"""Commands beside the pipeline that run its stages: learning claims, the base, forecasts."""
