"""Why tools and judges failed is in the log, once in a while, and the most frequent reason is known."""

import logging
from decimal import Decimal
from typing import Any

import pytest

from orchestra.errors import JudgeError, ToolError
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.chat import chat_policy
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.failure_log import AGAIN_S, MOST_LINES, MOST_REASONS, FailureLog
from orchestra.tools.failures import CircuitError
from orchestra.types import Component, Episode, StopReason
from tests.support.endpoint import serving
from tests.support.experts import KEY, expert, real
from tests.support.scripts import LIMITS, RIGHT, SUM, call, play, says
from tests.support.worlds import PRICE, catalogue, codec, example, toolkit

LOGGER = "orchestra.rollout"


class Unlicensed:
    component = Component.SANDBOX

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        raise ToolError("no licence")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_a_reason_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    failures = FailureLog(lambda: now)
    for number in range(1000):
        failures.lost(JudgeError("no judge is configured", where=f"e{number}"))
        failures.lost(CircuitError(f"asked again in {number}.5 s", where="gpt-5"))
    assert lines(caplog) == [
        "JudgeError: e0: no judge is configured",
        "CircuitError: gpt-5: asked again in 0.5 s",
    ]
    failures.lost(ToolError("gone", where="gpt-5"))
    assert failures.most_frequent == "JudgeError: no judge is configured" and len(lines(caplog)) == 3
    now = AGAIN_S
    failures.lost(ToolError("gone", where="gpt-5"))
    assert lines(caplog)[3:] == ["ToolError: gpt-5: gone"]


def test_reasons_that_all_differ_flood_neither_the_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(lambda: 0.0)
    for number in range(3 * MOST_REASONS):
        failures.lost(ToolError(f"request {number} refused", where="gpt-5"))
    failures.lost(ToolError("gone", where="python"))
    assert len(lines(caplog)) == MOST_LINES + 1 and len(failures._lost) == MOST_REASONS
    assert lines(caplog)[-1] == "ToolError: python: gone"


def test_texts_that_differ_in_counts_alone_are_one_reason(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(lambda: 0.0)
    for number in range(5000, 5100):
        failures.lost(ToolError(f"HTTP 400: you requested {number} tokens", where="gpt-5"))
    for _ in range(50):
        failures.lost(ToolError("HTTP 401: no key", where="gpt-5"))
    assert len(lines(caplog)) == 2
    assert failures.most_frequent == "ToolError: gpt-5: HTTP 400: you requested … tokens"


def test_a_tool_that_fails_is_named_and_records_hold_no_more(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    kit = toolkit(tmp_path, tools={"calculator": Unlicensed()})
    runs = rollout([example(f"e{n}") for n in range(9)], says(SUM), codec(), kit, RolloutOptions(LIMITS, PRICE))
    assert lines(caplog) == ["ToolError: calculator: no licence"]
    assert {run.stop for run in runs} == {StopReason.TOOL_FAILURE}
    assert kit.resources.failures.most_frequent == "ToolError: calculator: no licence"
    assert "licence" not in runs[0].model_dump_json()


def test_a_schema_that_is_none_ends_its_episode_with_and_without_a_budget(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spec = catalogue().spec("calculator").model_copy(update={"parameters": {"type": "no such type"}})

    def attempt(budget_usd: Decimal | None = None, handed_over: frozenset[str] = frozenset()) -> Episode:
        options = RolloutOptions(LIMITS, PRICE, budget_usd=budget_usd, handed_over=handed_over)
        return rollout([example(toolbox=[spec])], says(SUM), codec(), toolkit(tmp_path), options)[0]

    ended = [attempt(), attempt(Decimal(1)), attempt(handed_over=frozenset({"calculator"}))]
    assert [one.stop for one in ended] == [StopReason.TOOL_FAILURE] * 3
    assert len(lines(caplog)) == 3 and all("schema" in line for line in lines(caplog))


def test_a_verdict_that_nobody_can_give_says_why(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    kit = toolkit(tmp_path)
    assert play(kit, says(RIGHT), example(kind="judge")).verdict is None
    assert lines(caplog) == [
        "JudgeError: e1: no judge is configured — name one in world.judge, or use exact or numeric"
    ]
    kit = toolkit(tmp_path)
    assert play(kit, says(RIGHT), example(kind="judge", answer=None)).verdict is None
    assert len(lines(caplog)) == 1, "a question without an answer expects no verdict"
    assert kit.resources.failures.most_frequent == "JudgeError: no expected answer to compare with"


@pytest.mark.parametrize("fallback", [None, "gpt-5-mini"])
def test_a_refused_expert_s_line_has_the_provider_s_answer_and_no_key(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fallback: str | None
) -> None:
    with serving([(401, {"error": {"message": f"Incorrect API key {KEY}"}}, 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, ours=expert(fallback=fallback))
        item = example(toolbox=[kit.catalogue.spec("ours")])
        run = play(kit, says(call("ours"), RIGHT), item)
        played = play(kit, chat_policy("chat:ours", kit, codec().turn), item)
    assert run.stop is (StopReason.TOOL_FAILURE if fallback is None else StopReason.ANSWERED)
    assert played.stop is StopReason.TOOL_FAILURE
    told = [record for record in caplog.records if record.name == LOGGER]
    assert len(told) == 2 and {record.levelno for record in told} == {logging.WARNING}
    assert all("HTTP 401" in line and "Incorrect API key" in line and KEY not in line for line in lines(caplog))
