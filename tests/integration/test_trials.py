"""Canary and shadow with real processes: a candidate whose probes fail is rolled back, an equal one takes over."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from orchestra.errors import ServiceError
from orchestra.serving.client import gateway_url
from orchestra.serving.records.telemetry import TRACES, served
from orchestra.serving.releases.deployment import Deployment
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.state import SERVING, read
from orchestra.serving.releases.trial import TRIAL, Mode
from orchestra.serving.releases.trial_run import CandidateWorse, TrialPlan, TrialRun
from orchestra.serving.shared.samples import Arm, Sample
from orchestra.system.processes import stop_services
from orchestra.types import Example
from tests.support.serving_world import SMOKE, checkpoint, params


def release(
    root: Path,
    candidate: ReleaseCandidate,
    mode: Mode | None = None,
    examples: Sequence[Example] = SMOKE * 10,
    **canary: object,
) -> Deployment:
    """The tiny models are random and answer nothing, both of them: what is tried is the way, not the model."""
    settings = {"requests": 30, "probes": 30, "minutes": 3.0, "latency_margin": 9.0, **canary}
    wanted = params(engine="in_process", canary=settings)
    made = Release(root, wanted, candidate, SMOKE, print)
    plan = None if mode is None else TrialPlan(mode, 0.1, examples)
    return replace(made, plan=plan).run()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_release_is_tried_and_rolled_back_or_taken(root: Path, first: ReleaseCandidate) -> None:
    async def planted(run: TrialRun, http: httpx.AsyncClient, arm: Arm, _: Example) -> None:
        run._samples.add(Sample(arm=arm, failed=arm == "candidate", seconds=1.0, usd=0.1, solved=arm == "champion"))

    try:
        assert release(root, first).version == "1"
        second = checkpoint(root, 5, "2")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(CandidateWorse, match=r"\d requests in a row failed"):
            patch.setattr(TrialRun, "_ask", planted)
            release(root, second, "canary")
        health = httpx.get(f"{gateway_url(root)}/health").json()
        assert health["version"] == "1" and health["trial"] is None and health["status"] == "ok"
        serving = read(root / SERVING)
        assert serving is not None and serving.version == "1" and not (root / TRIAL).exists()

        shadowed = release(root, second, "shadow", minutes=0.05)
        assert shadowed.outcome == "tried" and httpx.get(f"{gateway_url(root)}/health").json()["version"] == "1"

        with pytest.raises(ServiceError, match="no verdict on its canary: only 6 of its answers were judged") as told:
            release(root, second, "canary", minutes=0.05, examples=SMOKE * 2)
        assert not isinstance(told.value, CandidateWorse)
        assert httpx.get(f"{gateway_url(root)}/health").json()["version"] == "1"

        made = release(root, second, "canary")
        assert made.outcome == "released" and made.version == "2" and made.trial.startswith("passed")
        assert made.figures["candidate.requests"] >= 30
        assert httpx.get(f"{gateway_url(root)}/health").json()["version"] == "2"
        tried = read(root / SERVING)
        assert tried is not None and served(root / TRACES, tried.fingerprint) == [], "probes are no user's requests"
    finally:
        stop_services(root)
