"""Real experts against a local endpoint that misbehaves in every way an endpoint can."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestra.errors import ConfigError, ToolError
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.catalogue import Entry
from orchestra.tools.experts import Endpoint
from orchestra.types import Component, Price, ToolKind, Usage
from tests.endpoint import Double, answer, serving

PRICE = Price(input_per_million=Decimal(2), cached_input_per_million=Decimal(1), output_per_million=Decimal(10))


@contextmanager
def endpoint(
    monkeypatch: pytest.MonkeyPatch, script: list[tuple[int, Any, float]], deadline_s: float = 5
) -> Iterator[tuple[Double, Endpoint]]:
    with serving(script) as double:
        monkeypatch.setenv("TEST_EXPERT_URL", double.url + "/")
        monkeypatch.setenv("TEST_EXPERT_KEY", "k-1")
        yield double, Endpoint("real", entry(deadline_s), backoff_s=0.01)


def entry(deadline_s: float = 5) -> Entry:
    return Entry(
        kind=ToolKind.EXPERT,
        role="generalist",
        component=Component.EXPERT,
        description="a real one",
        parameters={"type": "object"},
        price="p/m",
        latency_s=1,
        implementation="openai",
        base_url_env="TEST_EXPERT_URL",
        api_key_env="TEST_EXPERT_KEY",
        endpoint_model="model-1",
        deadline_s=deadline_s,
        source="test",
    )


def ask(expert: Endpoint, arguments: dict[str, Any] | None = None, notes: tuple[str, ...] = ()) -> ToolResult:
    async def once() -> ToolResult:
        try:
            return await expert.call(arguments or {}, ToolContext("who leads Borvane?", PRICE, 1, notes=notes))
        finally:
            await expert.aclose()

    return asyncio.run(once())


def test_an_answer_is_read_charged_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(monkeypatch, [(200, answer("  Kelmar \n"), 0)]) as (double, expert):
        result = ask(expert, notes=("a note",))
        assert result.text == "Kelmar" and not result.simulated
        assert result.usage == Usage(input_tokens=100, cached_input_tokens=40, output_tokens=7)
        assert result.cost_usd == Decimal("0.00023") and result.latency_s > 0
        assert double.asked[0]["model"] == "model-1" and double.keys == ["Bearer k-1"]
        assert double.asked[0]["messages"][0]["content"] == "who leads Borvane?\na note"
        ask(expert, {"question": "and who else?"})
        assert double.asked[1]["messages"][0]["content"] == "and who else?"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with endpoint(monkeypatch, [(status, {}, 0), (200, b"<html>", 0), (200, answer(), 0)]) as (double, expert):
        assert ask(expert).text == "Kelmar" and len(double.asked) == 3


@pytest.mark.parametrize(
    ("script", "said", "times"),
    [
        ([(503, {}, 0.0)], "HTTP 503 after 3 attempts", 3),
        ([(401, {"error": "bad key"}, 0.0)], "HTTP 401", 1),
        ([(200, answer(None), 0.0)], "empty answer", 1),
        ([(200, answer(" \n"), 0.0)], "empty answer", 1),
        ([(200, {"choices": []}, 0.0)], "another shape", 1),
        ([(200, [1], 0.0)], "another shape", 1),
        ([(200, {"choices": [{"message": None}]}, 0.0)], "another shape", 1),
        ([(200, {**answer(), "usage": {"prompt_tokens": -4}}, 0.0)], "another shape", 1),
    ],
)
def test_a_failure_is_the_tool_s_and_never_an_answer(
    monkeypatch: pytest.MonkeyPatch, script: list[tuple[int, Any, float]], said: str, times: int
) -> None:
    with endpoint(monkeypatch, script) as (double, expert):
        with pytest.raises(ToolError, match=said):
            ask(expert)
        assert len(double.asked) == times


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """json.dumps writes both as escapes, as endpoints do; only the whole pair is text."""
    with endpoint(monkeypatch, [(200, answer("Kel\ud83dmar \U0001f600 \udc00"), 0)]) as (_, expert):
        result = ask(expert)
        assert result.text == "Kel\ufffdmar \U0001f600 \ufffd"
        assert ToolResult.model_validate_json(result.model_dump_json()) == result


def test_missing_usage_counts_as_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(monkeypatch, [(200, {**answer(), "usage": None}, 0)]) as (_, expert):
        assert ask(expert).usage == Usage()


def test_the_deadline_ends_a_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        endpoint(monkeypatch, [(200, answer(), 1.0)], deadline_s=0.15) as (_, expert),
        pytest.raises(ToolError, match=r"no answer within 0\.15 s|ReadTimeout"),
    ):
        ask(expert)


def test_nobody_listening_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_EXPERT_KEY", "k")
    monkeypatch.delenv("TEST_EXPERT_URL", raising=False)
    with pytest.raises(ConfigError, match="TEST_EXPERT_URL is not set"):
        Endpoint("real", entry())
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    monkeypatch.setenv("TEST_EXPERT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(ToolError, match="after 2 attempts"):
        ask(Endpoint("real", entry(), attempts=2, backoff_s=0.01))
