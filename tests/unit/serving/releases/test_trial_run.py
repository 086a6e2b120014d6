"""The release's side of a trial: what it asks, and what it says of answers that get no verdict."""

from pathlib import Path

import pytest

from orchestra.config.deploy import Canary
from orchestra.serving.releases.trial import ReleaseTrial
from orchestra.serving.releases.trial_run import TrialPlan, TrialRun
from tests.support.endpoint import answer, serving
from tests.support.serving_world import backend
from tests.support.worlds import example


def test_an_answer_without_a_verdict_is_no_failure_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = ReleaseTrial(
        id="t1", mode="canary", share=0.5, serving=backend(tmp_path).serving, settings=Canary(), secret="s"
    )
    plan = TrialPlan("canary", 0.5, [example(answer=None), example()])
    with serving([(200, answer("888"), 0)]) as double:
        run = TrialRun(tmp_path, trial, "6", double.url.removesuffix("/v1"), plan, print)
        for probe in plan.examples:
            run._ask("candidate", probe)
        figures = run.figures()
        run.close()
    assert (figures["candidate.requests"], figures["candidate.failed"], figures["candidate.judged"]) == (2, 0, 1)
    assert [record.message for record in caplog.records] == ["JudgeError: e1: no expected answer to compare with"]
