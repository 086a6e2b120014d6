"""The section `storage` of params.yaml: where a team keeps what its machines share."""

from typing import Annotated

from pydantic import Field

from orchestra.config.section import Section

LOCAL = "local"


class Storage(Section):
    """Where outputs, checkpoints and the registry's database go after a run. It makes no stage stale."""

    url: Annotated[str, Field(pattern=r"^(local|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.-]+)*)$")] = LOCAL
    """local: this machine only. s3://BUCKET/FOLDER: each run ends with a push there, `orchestra pull` gets it; MLflow
    keeps its artifacts there too."""
    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """Address of an S3-compatible server; null: Amazon's. Keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""

    @property
    def shared(self) -> bool:
        return self.url != LOCAL

    @property
    def artifacts(self) -> str:
        """Where MLflow keeps the artifacts of its runs."""
        return f"{self.url.rstrip('/')}/mlflow"
