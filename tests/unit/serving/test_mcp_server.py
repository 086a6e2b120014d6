"""`orchestra mcp` with real MCP clients: a process over stdio and HTTP before a gateway; a checkpoint in process."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import CallToolResult

from orchestra.errors import ConfigError, ServiceError
from orchestra.rollout.policies.base import ScriptedPolicy
from orchestra.serving.app import create_app
from orchestra.serving.client import AskResponse
from orchestra.serving.gateway import Gateway
from orchestra.serving.mcp_server import TOOL, Answerer, Ask, Deployed, InProcess, build, keep_log
from tests.support.real_gateway import listening
from tests.support.serving_world import MADE, backend, calculate, checkpoint, params, workspace
from tests.support.worlds import ROOT, codec
from tests.unit.rollout.policies.test_vllm import server
from tests.unit.serving.wire.test_leaving import SECONDS, Slow


@contextmanager
def gateway(status: int = 200, **made: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Answers "Tesk" to everything, and keeps what it was asked."""
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        asked.append(body)
        error = {"message": "a tool failed", "type": "tool_error"}
        choices = [{"message": {"content": "" if made else "Tesk"}}]
        return status, {"choices": choices, "error": error, "orchestra": {**MADE, **made}}

    with server(answer) as url:
        yield url, asked


def tell(answerer: Answerer, **arguments: Any) -> CallToolResult:
    """One call through a real client, in this process."""

    async def go() -> CallToolResult:
        async with Client(build(answerer)) as client:
            return await client.call_tool(TOOL, arguments)

    return asyncio.run(go())


def texts(result: CallToolResult) -> list[str]:
    return [part.text for part in result.content if part.type == "text"]


def test_no_secret_is_in_a_traceback_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXPERT_API_KEY", "a-long-secret-of-an-expert")
    monkeypatch.setattr(logging, "root", logging.Logger("root"))
    keep_log()
    try:
        raise ValueError("Illegal header value b'Bearer a-long-secret-of-an-expert'")
    except ValueError:
        logging.root.exception("the handler failed")
    said = capsys.readouterr().err
    assert "Illegal header value" in said and "a-long-secret" not in said


def orchestra(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orchestra.cli.main", *arguments]


def check(result: CallToolResult) -> None:
    """The answer, the account in words, and both as data."""
    answer, account = texts(result)
    assert answer == "Tesk" and not result.is_error
    assert "gpt-5(question='who?') → Tesk  [$0.062000]" in account and "1 tool call, $0.062100" in account
    reply = AskResponse.model_validate(result.structured_content)
    assert (reply.answer, reply.cost_usd, reply.tool_calls[0].name) == ("Tesk", 0.0621, "gpt-5")


def test_a_process_over_stdio_asks_the_gateway() -> None:
    with gateway() as (url, asked):
        command = orchestra("mcp", "--url", url)
        started = StdioServerParameters(command=command[0], args=command[1:], cwd=ROOT, env={"PYTHONPATH": str(ROOT)})

        async def go() -> CallToolResult:
            async with Client(stdio_client(started)) as client:
                (tool,) = (await client.list_tools()).tools
                assert tool.name == TOOL and set(tool.input_schema["required"]) == {"question"}
                wish = {"preference": "cheap", "budget_usd": "0.10", "max_turns": 3, "domain": "mock"}
                return await client.call_tool(TOOL, {"question": "who wrote Opal?", **wish})

        check(asyncio.run(go()))
    assert asked[0]["messages"][-1]["content"] == "who wrote Opal?"
    assert {key: asked[0][key] for key in ("preference", "budget_usd", "max_turns", "domain")} == {
        "preference": "cheap",
        "budget_usd": "0.10",
        "max_turns": 3,
        "domain": "mock",
    }


def test_a_process_over_http_is_a_server_that_others_can_call() -> None:
    with gateway() as (url, _):
        command = orchestra("mcp", "--http", "0", "--url", url)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("MCP server at http://127.0.0.1:") and line.endswith("/mcp\n")

            async def go() -> CallToolResult:
                async with Client(line.split()[-1]) as client:
                    return await client.call_tool(TOOL, {"question": "who wrote Opal?"})

            check(asyncio.run(go()))
        finally:
            process.terminate()
            process.wait()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "question: Field required"),
        ({"question": ""}, "question: String should have at least 1 character"),
        ({"question": "x", "budget_usd": -1}, "budget_usd: Input should be greater than or equal to 0"),
        ({"question": "x", "temperature": 1}, "temperature: Extra inputs are not permitted"),
    ],
)
def test_arguments_are_checked_before_anything_is_asked(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    result = tell(Deployed(tmp_path, "http://127.0.0.1:9"), **arguments)
    assert result.is_error and texts(result)[0].startswith(f"error: {said}")


def test_failures_and_limits_are_errors_of_the_tool_with_the_bill(tmp_path: Path) -> None:
    with gateway(502) as (url, _):
        result = tell(Deployed(tmp_path, url), question="who?")
    assert result.is_error and "a tool failed" in texts(result)[0] and result.structured_content is None
    with gateway(stop="budget") as (url, _):
        result = tell(Deployed(tmp_path, url), question="who?")
    assert result.is_error and texts(result)[0] == "no answer (budget)" and "$0.062100" in texts(result)[1]
    result = tell(Deployed(tmp_path), question="who?")
    assert result.is_error and "nothing serves here" in texts(result)[0]


def test_a_cancelled_call_ends_the_work(tmp_path: Path) -> None:
    working = backend(tmp_path, policy=Slow("slow", calculate, codec().turn))

    async def until(count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while working.in_flight != count:
                await asyncio.sleep(0.01)

    async def go(url: str) -> None:
        async with Client(build(Deployed(tmp_path, url))) as client:
            asking = asyncio.ensure_future(client.call_tool(TOOL, {"question": "what is 2*3?"}))
            await until(1)
            asking.cancel()
            await until(0)

    with listening(create_app(Gateway(tmp_path, backend=working), load=False)) as port:
        asyncio.run(go(f"http://127.0.0.1:{port}"))


class Patient:
    """Answers when the client was told of progress twice."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str | None]] = []
        self.twice = asyncio.Event()

    async def hear(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append((progress, message))
        if len(self.told) == 2:
            self.twice.set()

    async def ask(self, asked: Ask) -> AskResponse:
        async with asyncio.timeout(SECONDS):
            await self.twice.wait()
        return AskResponse.of(asked.question, "Tesk", MADE)


def test_a_client_hears_that_a_long_call_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.serving.mcp_server.TOLD_S", 0.01)

    async def go() -> tuple[CallToolResult, list[tuple[float, str | None]]]:
        patient = Patient()
        async with Client(build(patient)) as client:
            found = await client.call_tool(TOOL, {"question": "who?"}, progress_callback=patient.hear)
        return found, patient.told

    found, told = asyncio.run(go())
    check(found)
    assert told[0][0] < told[1][0] and told[0][1] == "working on it (0 s)"


def test_a_backend_in_this_process_answers_alike(tmp_path: Path) -> None:
    result = tell(InProcess(backend(tmp_path)), question="what is 37*24?", budget_usd=1)
    reply = AskResponse.model_validate(result.structured_content)
    assert texts(result)[0] == "888" and reply.tool_calls[0].name == "calculator" and reply.engine == "in_process"
    assert reply.cost_usd > 0 and reply.stop == "answered"


@pytest.mark.parametrize(
    ("says", "asked", "kind", "words"),
    [
        ("<tool_call>", {"domain": "atlantis"}, ConfigError, "no domain named atlantis"),
        ("<tool_call>", {"max_turns": 99}, ConfigError, "at most 4 turns"),
        ("<tool_call>", {}, None, "malformed"),
    ],
)
def test_what_the_backend_refuses(
    tmp_path: Path, says: str, asked: dict[str, Any], kind: type[Exception] | None, words: str
) -> None:
    answerer = InProcess(backend(tmp_path, policy=ScriptedPolicy("broken", lambda _: says, codec().turn)))
    ask: Callable[[], AskResponse] = lambda: asyncio.run(answerer.ask(Ask(question="what?", **asked)))  # noqa: E731
    if kind is None:
        assert ask().stop == words and ask().answer == ""
    else:
        with pytest.raises(kind, match=words):
            ask()


def test_a_checkpoint_is_loaded_as_a_release_would(tmp_path: Path) -> None:
    root = workspace(tmp_path)
    folder = checkpoint(root, 0, "v1").folder
    made = InProcess.load(root, folder, params())
    reply = asyncio.run(made.ask(Ask(question="what is 1+1?", max_turns=1)))
    assert reply.engine == "in_process" and reply.version == folder.name and reply.cost_usd > 0
    with pytest.raises(ConfigError, match="no checkpoint here"):
        InProcess.load(root, root / "data", params())


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    import socket

    from orchestra.serving.mcp_server import serve_http

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServiceError, match="give another --http"):
            serve_http(Deployed(tmp_path), taken.getsockname()[1])
