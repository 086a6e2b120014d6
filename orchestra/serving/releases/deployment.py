"""The result of a release, and the last one of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from orchestra.serving.client import AskResponse
from orchestra.types import Record

LAST = ".state/deployment.json"


class Deployment(Record):
    """The result of a release: the serving version."""

    url: str = ""
    """Of the gateway; empty when nothing serves."""
    engine: Literal["vllm", "in_process", "none"] = "none"
    version: str = ""
    outcome: Literal["released", "unchanged", "nothing", "tried", "rolled_back"] = "nothing"
    """tried: the candidate was a shadow; rolled_back: it did not pass its canary."""
    note: str = ""
    """Why this engine, where it is not the one wanted; or why nothing serves."""
    sample: AskResponse | None = None
    """One question asked through the gateway."""
    preference: str | None = None
    """What it was asked with, as `domain`."""
    domain: str | None = None
    smoke: str = ""
    """The result of the smoke set."""
    trial: str = ""
    """The verdict of the canary or the shadow."""
    figures: dict[str, float] = Field(default_factory=dict)
    """What the trial measured of both, as `TrialRun.figures`."""

    @property
    def trace(self) -> str:
        """The sample, as a person reads it."""
        return "\n".join(self.sample.lines()) if self.sample is not None else self.note


def last_deployment(root: Path) -> Deployment | None:
    """The last release; None where there is none, or another version of this program wrote it."""
    try:
        return Deployment.model_validate_json((root / LAST).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
