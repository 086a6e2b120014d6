"""The client against strange servers: every failure is one line that says whose it is."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.serving import client
from orchestra.serving.client import Called, _read, ask, ask_async, gateway_url
from orchestra.serving.releases.state import SERVING, write
from tests.support.serving_world import backend, reply
from tests.support.worlds import ROOT
from tests.unit.rollout.policies.test_vllm import server


def test_nothing_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRA_URL", raising=False)
    with pytest.raises(ServiceError, match="nothing serves here — make pipeline"):
        ask("x", root=tmp_path)
    with pytest.raises(ServiceError, match="nothing serves here"):
        ask("x", root=str(tmp_path))
    monkeypatch.setenv("ORCHESTRA_URL", "http://elsewhere:1/")
    assert gateway_url(tmp_path) == "http://elsewhere:1"


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (["--preference", "cheap"], "cheap"),
        (["--avoid", "gpt-5", "--avoid", "python"], {"avoid": ["gpt-5", "python"]}),
        (
            ["--preference", "be quick", "--prefer", "gpt-5", "--only", "gpt-5"],
            {"words": "be quick", "prefer": ["gpt-5"], "tools_allowed": ["gpt-5"]},
        ),
    ],
)
def test_tools_that_a_user_rules_out_are_sent_as_such(
    options: list[str], sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[dict[str, Any]] = []

    def refuse(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        bodies.append(body)
        return 400, {"error": {"message": "seen", "type": "invalid_request_error"}}

    monkeypatch.chdir(ROOT)
    with server(refuse) as url:
        done = CliRunner().invoke(app, ["ask", "why?", *options, "--url", url])
    assert "seen" in str(done.exception) and bodies[0]["preference"] == sent


@pytest.mark.parametrize("url", ["localhost:8800", "ftp://localhost:8800", "//localhost"])
def test_an_address_without_http_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_URL", url)
    with pytest.raises(ConfigError, match=f"^{url}: .* begins with http:// or https:// — write http://localhost"):
        ask("x", root=tmp_path)


@pytest.mark.parametrize(("kind", "seconds"), [("own", 7260), ("another", 1860), ("damaged", 1860)])
def test_an_answer_may_take_as_long_as_the_own_gateway_lets_it(
    kind: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    real = client._timeout

    def timeout(answer_s: float) -> httpx.Timeout:
        waited.append(answer_s)
        return real(answer_s)

    monkeypatch.setattr(client, "_timeout", timeout)
    write(tmp_path, backend(tmp_path, gateway={"request_s": 7200}).serving)
    if kind == "damaged":
        (tmp_path / SERVING).write_text("{")
    refused = {"error": {"message": "no domain x", "type": "invalid_request_error"}}
    with server(lambda _: (400, refused)) as url:
        here = [] if kind == "another" else [SimpleNamespace(url=url)]
        monkeypatch.setattr(client, "gateways", lambda root: here)
        with pytest.raises(ConfigError, match="no domain x"):
            ask("x", root=tmp_path, url=url)
        with pytest.raises(ConfigError, match="no domain x"):
            asyncio.run(ask_async("x", root=tmp_path, url=url))
    assert waited == [seconds, seconds]


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (200, {"choices": []}, ServiceError, "no chat completion"),
        (500, {}, ServiceError, "HTTP 500 with a body"),
        (503, {"error": {"message": "being loaded", "type": "service_unavailable"}}, ServiceError, "being loaded"),
        (502, {"error": {"message": "a tool failed", "type": "tool_error"}}, ServiceError, "a tool failed"),
        (502, {"error": {"message": "unreadable", "type": "model_error"}}, ServiceError, "no chat completion"),
        (400, {"error": {"message": "m", "type": "t"}, "orchestra": "x"}, ServiceError, "no chat completion"),
        (400, {"error": {"message": "no domain x", "type": "invalid_request_error"}}, ConfigError, "no domain x$"),
        (401, {"error": {"message": "no key", "type": "x"}}, ConfigError, "no key — set ORCHESTRA_API_KEY; .* NAME$"),
    ],
)
def test_what_is_no_answer_is_an_error(status: int, body: dict[str, object], kind: type, words: str) -> None:
    with server(lambda _: (status, body)) as url, pytest.raises(OrchestraError, match=words) as caught:
        ask("x", url=url)
    assert type(caught.value) is kind and "\n" not in str(caught.value)


def test_a_reply_that_is_nested_too_deep_is_no_chat_completion() -> None:
    deep = httpx.Response(200, content=b"[" * 200_000)
    with pytest.raises(ServiceError, match="HTTP 200 with a body that is no chat completion"):
        _read("x", "http://host", deep)


def test_a_host_that_no_name_can_be_does_not_answer() -> None:
    with pytest.raises(ServiceError, match="the gateway does not answer"):
        ask("x", url=f"http://{'a' * 70}.de")


@pytest.mark.parametrize("key", ["schlüssel", "a\nb"])
def test_a_key_that_no_header_can_hold_is_refused_without_its_text(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_API_KEY", key)
    with pytest.raises(ConfigError, match=r"^ORCHESTRA_API_KEY: ") as caught:
        ask("x", url="http://127.0.0.1:1")
    assert key not in str(caught.value)


@pytest.mark.parametrize("asked", [("\ud800",), ("x", "cheap \udc00")])
def test_half_a_surrogate_pair_is_refused(asked: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="half a surrogate pair is no text"):
        ask(*asked, url="http://127.0.0.1:1")


def test_a_model_that_could_not_answer_is_a_reply() -> None:
    made = {"cost_usd": 0.1, "latency_s": 1, "wall_s": 1, "engine": "vllm", "version": "3", "simulated": False}
    made |= {"stop": "malformed", "trace_id": "t", "tool_calls": []}
    body = {"error": {"message": "unreadable", "type": "model_error"}, "orchestra": made}
    with server(lambda _: (502, body)) as url:
        said = ask("x", url=url)
    assert said.answer == "" and said.stop == "malformed" and said.cost_usd == 0.1


def test_a_reply_reads_well() -> None:
    call = Called(name="gpt-5", arguments={}, observation="Tesk\n", cost_usd=0.062, latency_s=96)
    said = reply(tool_calls=(call,))
    assert said.lines() == [
        "Q: who wrote Opal?",
        "   gpt-5() → Tesk  [$0.062000]",
        "A: Tesk",
        "   1 tool call, $0.062100, 96.2 s by the ledger, 0.4 s by the clock; version 3, vllm, simulated experts",
    ]
    broke = said.model_copy(update={"answer": "", "stop": "budget", "tool_calls": ()})
    assert broke.lines()[1] == "A: no answer (budget)"


def test_a_failure_that_cost_dollars_says_so() -> None:
    failed: dict[str, Any] = {"name": "gpt-5", "arguments": {}, "observation": None, "cost_usd": 0.041, "latency_s": 96}
    free = {**failed, "cost_usd": 0.0}
    lines = reply(tool_calls=(Called.model_validate(failed), Called.model_validate(free))).lines()
    assert "→ failed  [$0.041000]" in lines[1] and "→ not called  [$0.000000]" in lines[2]
    body = {"error": {"message": "a tool failed", "type": "tool_error"}, "orchestra": {"cost_usd": 0.041}}
    with server(lambda _: (502, body)) as url, pytest.raises(ServiceError, match=r"a tool failed; \$0\.041000 was"):
        ask("x", url=url)


def test_what_a_foreign_gateway_says_of_itself_steers_no_terminal() -> None:
    hostile = "\x1b]52;c;eA==\x07\nA: forged"
    lines = reply(answer="", stop=hostile, version=hostile, engine=hostile).lines()
    assert all(line.isprintable() for line in lines)
