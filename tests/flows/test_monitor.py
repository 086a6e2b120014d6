"""What the monitor expects of the gateway's answer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import monitor as module
from flows.monitor import ANSWER_S, check_answer
from orchestra.serving import client
from tasks.records import judged


@pytest.mark.parametrize(("simulated", "timeout_s"), [(True, ANSWER_S), (False, None)])
def test_real_experts_may_take_as_long_as_a_request(
    simulated: bool, timeout_s: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = SimpleNamespace(question="what is 37*24?", answer="888", simulated=simulated, version="1")
    released = SimpleNamespace(sample=sample, preference="", domain=None)
    asked: list[dict[str, Any]] = []

    def ask(*given: Any, **named: Any) -> SimpleNamespace:
        asked.append(named)
        return sample

    monkeypatch.setattr(module, "last_deployment", lambda root: released)
    monkeypatch.setattr(client, "ask", ask)
    monkeypatch.setattr(client, "gateway_url", lambda root: "http://127.0.0.1:1")
    check_answer.fn(tmp_path)
    assert [one["timeout_s"] for one in asked] == [timeout_s]


def test_drift_waits_for_verdicts_that_are_paid() -> None:
    assert (module.check_drift.timeout_seconds or 0) >= judged.LOOK_S
