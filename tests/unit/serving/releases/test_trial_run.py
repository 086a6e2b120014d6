"""The release's side of a trial: what it asks, and what it says of answers that get no verdict."""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestra.config.deploy import Canary
from orchestra.errors import ServiceError
from orchestra.serving.releases import trial_run as module
from orchestra.serving.releases.trial import TRIAL, ReleaseTrial, is_waited_for, write_trial
from orchestra.serving.releases.trial_run import TrialPlan, TrialRun
from orchestra.types import Example
from tests.support.endpoint import Double, Script, answer, serving
from tests.support.serving_world import backend
from tests.support.worlds import example

PROBES = [example()] * 30


@contextmanager
def trial(root: Path, script: Script, probes: list[Example], **settings: Any) -> Iterator[tuple[TrialRun, Double]]:
    """A canary of version 7 beside version 6, and the gateway's double."""
    canary = Canary.model_validate({"requests": 30, "probes": 30, "minutes": 3.0, **settings})
    made = ReleaseTrial(
        id="t1", mode="canary", share=0.5, serving=backend(root).serving, settings=canary, secret="s"
    )  # fmt: skip
    with serving(script) as double:
        run = TrialRun(root, made, "6", double.url.removesuffix("/v1"), TrialPlan("canary", 0.5, probes), print)
        try:
            yield run, double
        finally:
            run.close()


def test_an_answer_without_a_verdict_is_no_failure_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def asked(run: TrialRun) -> None:
        async with run._client() as http:
            for probe in (example(answer=None), example()):
                await run._ask(http, "candidate", probe)

    with trial(tmp_path, [(200, answer("888"), 0)], []) as (run, _):
        asyncio.run(asked(run))
        figures = run.figures()
    assert (figures["candidate.requests"], figures["candidate.failed"], figures["candidate.judged"]) == (2, 0, 1)
    assert [record.message for record in caplog.records] == ["JudgeError: e1: no expected answer to compare with"]


def test_a_trial_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without requests of users it lasts for its minutes once all probes are answered."""
    monkeypatch.setattr(module, "SAY_EVERY_S", 0.0)
    with trial(tmp_path, [(200, answer("888"), 0)], PROBES, requests=400, minutes=0.02) as (run, _):
        assert run.run().verdict == "passed"
    said = capsys.readouterr().out
    assert re.search(r"candidate 30 requests, 0 failed \(\d s; ends at 400 or 0\.02 min\)", said)


def test_both_are_asked_several_probes_at_once(tmp_path: Path) -> None:
    with trial(tmp_path, [(200, answer("888"), 0.1)], PROBES, probes_at_once=3) as (run, double):
        found = run.run()
        figures = run.figures()
    assert found.verdict == "passed" and double.most_at_once == 6
    assert figures["candidate.judged"] == 30 and figures["candidate.accuracy"] == 1
    # The verdict comes with the last answer of the candidate; the champion's may still be on its way.
    assert figures["champion.judged"] >= 27


def test_a_busy_gateway_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    busy: list[tuple[int, Any, float]] = [(status, {}, 0.0) for status in (503, 429) * 20]
    with trial(tmp_path, [*busy, (200, answer("888"), 0.0)], PROBES) as (run, double):
        assert run.run().verdict == "passed"
        assert run.figures()["candidate.judged"] == 30 and len(double.asked) >= 100


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_of_another_gateway_is_no_fault_of_the_candidate(tmp_path: Path, status: int) -> None:
    with trial(tmp_path, [(status, {}, 0.0)], PROBES) as (run, _):
        with pytest.raises(ServiceError, match=rf"HTTP {status} — give ORCHESTRA_API_KEY a key of this gateway"):
            run.run()
        assert run.figures()["candidate.failed"] == 0


def test_a_release_that_waits_says_so(tmp_path: Path) -> None:
    with trial(tmp_path, [(200, answer("888"), 0.0)], PROBES) as (run, _):
        write_trial(tmp_path, run._trial)
        os.utime(tmp_path / TRIAL, (0, 0))
        assert not is_waited_for(tmp_path)
        run.run()
        assert is_waited_for(tmp_path)


def test_answers_that_take_longer_than_the_trial_are_waited_for(tmp_path: Path) -> None:
    """They are paid, and without 30 of them there is no verdict."""
    with trial(tmp_path, [(200, answer("888"), 0.3)], PROBES, minutes=0.01, probes_at_once=10) as (run, _):
        assert run.run().verdict == "passed"
        assert run.figures()["candidate.judged"] == 30


def test_a_candidate_that_does_not_answer_fails_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before a request's own limit: a question that hangs holds the place of another one."""
    monkeypatch.setattr(module, "LEAST_S", 0.2)

    def script(request: dict[str, Any]) -> tuple[int, Any, float]:
        return 200, answer("888"), 60.0 if request["model"] == "7" and len(double.asked) > 8 else 0.0

    began = time.monotonic()
    with trial(tmp_path, script, PROBES) as (run, double):
        found = run.run()
    assert found.verdict == "worse" and "requests in a row failed" in found.why
    assert time.monotonic() - began < 20


def test_answers_that_are_now_quick_now_slow_fail_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_S", 0.02)

    def script(request: dict[str, Any]) -> tuple[int, Any, float]:
        number = int(request["messages"][0]["content"].removeprefix("what is ").removesuffix("+0?"))
        return 200, answer("888"), 0.4 if number % 2 else 0.0

    probes = [example(instruction=f"what is {number}+0?") for number in range(40)]
    with trial(tmp_path, script, probes, probes_at_once=16, requests=30) as (run, _):
        assert run.run().verdict == "passed"
        assert run.figures()["candidate.failed"] == run.figures()["champion.failed"] == 0


def test_a_gateway_that_stays_busy_does_not_hold_the_verdict_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.05)
    with trial(tmp_path, [(503, {}, 0.0)], PROBES, minutes=0.01) as (run, _):
        assert run.run().verdict == "ended"


def test_without_a_verdict_a_candidate_is_not_worse(tmp_path: Path) -> None:
    with trial(tmp_path, [(200, answer("888"), 0.0)], PROBES[:5], minutes=0.01) as (run, _):
        found = run.run()
    assert found.verdict == "ended" and "only 5 of its answers were judged" in found.why


def test_a_key_that_may_spend_no_more_ends_the_trial(tmp_path: Path) -> None:
    refusal = {"error": {"message": "the key's budget is spent", "code": "insufficient_quota"}}
    with trial(tmp_path, [(429, refusal, 0.0)], PROBES) as (run, double):
        with pytest.raises(ServiceError, match="the key of the probes may spend no more"):
            run.run()
        assert len(double.asked) <= 8
