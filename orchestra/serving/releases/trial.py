"""A trial of a candidate beside the champion: on a share of the traffic (canary), or on copies of it (shadow)."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from orchestra.config.deploy import Canary
from orchestra.errors import DataError
from orchestra.files import atomic
from orchestra.serving.releases.state import Serving
from orchestra.serving.shared.samples import Arm, Finding
from orchestra.statistics.sequential import (
    FEWEST,
    ArmSamples,
    Excess,
    cost_excess,
    failure_excess,
    latency_excess,
)
from orchestra.types import Record

TRIAL = ".state/trial.json"
GRACE_S = 120.0
"""Seconds after which a release that said nothing more was killed."""

Mode = Literal["canary", "shadow"]


class ReleaseTrial(Record):
    """A trial under way, as a release wrote it for the gateways."""

    id: str
    mode: Mode
    share: float
    """Of the requests: answered by the candidate, or copied to it."""
    serving: Serving
    """The candidate."""
    settings: Canary
    name: str = ""
    """What a request asks for the candidate by; empty: its version, where another one serves."""
    secret: str = Field(default_factory=lambda: secrets.token_hex(16))
    """What decides who answers a conversation: no caller can tell before it has an answer."""

    @property
    def asked_as(self) -> str:
        """The model that a request names to be answered by the candidate."""
        return self.name or self.serving.version


def write_trial(root: Path, trial: ReleaseTrial) -> None:
    atomic.write_text(root / TRIAL, trial.model_dump_json(indent=1) + "\n")


def touch_trial(root: Path) -> None:
    """Say that its release still waits for the verdict."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(root / TRIAL)


def is_waited_for(root: Path) -> bool:
    """Whether a release said so a short while ago."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - (root / TRIAL).stat().st_mtime < GRACE_S
    return False


def end_trial(root: Path) -> None:
    """Gateways that load from now on know of no trial."""
    (root / TRIAL).unlink(missing_ok=True)


def read_trial(root: Path) -> ReleaseTrial | None:
    """None where there is none; raises `DataError` for a damaged file."""
    file = root / TRIAL
    try:
        return ReleaseTrial.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise DataError("not a trial's file", where=str(file), fix=f"rm {file}, then orchestra release") from None


def conclude(
    arms: Mapping[Arm, ArmSamples], settings: Canary, *, over: bool = False, judged: bool = True
) -> Finding | None:
    """The verdict on what was seen so far; None: go on. May be asked after every request.

    The chance that a candidate which is no worse is rolled back stays below `settings.error_level`, over all looks and
    the three measures together. `over`: its time is up; `judged`: it passes only with answers that were judged.
    """
    ours, theirs = arms["candidate"], arms["champion"]
    # Where the champion fails as well, something else is down: then the shares below decide.
    if ours.failed_last >= settings.failures_in_a_row and 2 * theirs.failed_last < ours.failed_last:
        return Finding(verdict="worse", why=f"{ours.failed_last} requests in a row failed")
    level, planned = settings.error_level / 3, settings.requests
    failures = failure_excess(ours, theirs)
    if failures.lower(level, planned) > settings.failure_margin:
        return Finding(verdict="worse", why=f"{failures.value:.1%} more of its requests fail")
    latency = latency_excess(ours, theirs)
    if latency.lower(level, planned) > math.log1p(settings.latency_margin):
        return Finding(verdict="worse", why=f"a request takes {math.exp(latency.value):.2f} times as long")
    cost = cost_excess(ours, theirs)
    if cost.lower(level, settings.probes) > math.log1p(settings.cost_margin):
        return Finding(verdict="worse", why=f"a solved question costs {math.exp(cost.value):.2f} times as much")
    if ours.requests >= settings.requests or over:
        return _passed(ours, cost, judged=judged)
    return None


def _passed(ours: ArmSamples, cost: Excess, *, judged: bool) -> Finding:
    """Nothing was found; whether that says anything."""
    if judged and ours.judged < FEWEST:
        why = f"only {ours.judged} of its answers were judged, {FEWEST} are the fewest"
        return Finding(verdict="ended", why=why)
    why = f"not found worse in {ours.requests} requests, {ours.failures} of which failed"
    told = f"; a solved question costs {math.exp(cost.value):.2f} times as much" if ours.judged else ""
    return Finding(verdict="passed", why=why + told)
