"""`orchestra chat`: a conversation over several questions, its settings, and its failures in one line."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import ServiceError
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.serving.app import create_app
from orchestra.serving.chat import HELP, TerminalChat, halved
from orchestra.serving.demonstration import NOTICE
from orchestra.serving.gateway import Gateway
from orchestra.system import progress
from orchestra.types import ToolCall, ToolKind
from tests.support.real_gateway import listening
from tests.support.serving_world import MADE, backend, questions
from tests.support.worlds import codec


def decide(conversation: Conversation) -> str:
    """Calculates once, then tells how often the user has spoken, and what the preference is."""
    if not conversation.turns:
        return format_call(ToolCall(name="calculator", arguments={"expression": "37*24"}))
    text = str(codec().tokenizer.decode(conversation.prompt_ids))
    return format_answer(f"question {text.count('<|im_start|>user')} \x1b[2J cheap {'keep it cheap' in text}")


def test_a_conversation(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, backend=backend(tmp_path, decide))
    written: list[str] = []
    with listening(create_app(gateway, load=False)) as port:
        chat = TerminalChat(f"http://127.0.0.1:{port}", {}, written.append)
        lines = [
            "what is it?",
            "",
            "/preference cheap",
            "and now?",
            "/nothing",
            "/new",
            "/budget much",
            "again?",
            "/budget",
            "again?",
        ]
        assert all(chat.say(line) for line in lines) and not chat.say("/quit")
    said = "".join(written)
    assert said.count("calculator → 888") == 3 and "\x1b" not in said and said.count("$0.0") >= 6
    assert "question 1" in said and "question 2" in said and said.count("cheap False") == 1
    assert "error: " in said and "budget_usd" in said and "/preference WORDS" in said
    # After /new the history is gone; a question that failed is not in it.
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    assert json.loads(json.dumps(chat.messages))[0]["content"] == "again?"


@pytest.mark.parametrize("profile", ["embedded", "qwen3-8b"])
def test_a_conversation_begins_with_what_the_gateways_model_is(tmp_path: Path, profile: str) -> None:
    made = backend(tmp_path)
    made.serving = made.serving.model_copy(update={"params": {**made.serving.params, "profile": profile}})
    written: list[str] = []
    with listening(create_app(Gateway(questions(tmp_path), backend=made), load=False)) as port:
        TerminalChat(f"http://127.0.0.1:{port}", {}, written.append).greet()
    notes = "".join(written[1:]).splitlines()
    shown = [f"note: {NOTICE}", "note: try: What is 2 + 3?", "note: try: When was the Battle of Opal?"]
    assert written[0] == f"{HELP}\n" and notes == (shown if profile == "embedded" else [])


def test_a_silent_gateway_is_greeted_with_the_commands_alone() -> None:
    written: list[str] = []
    TerminalChat("http://127.0.0.1:1", {}, written.append).greet()
    assert written == [f"{HELP}\n"]


def test_beside_the_answer_stands_the_strongest_experts_own_reply(tmp_path: Path) -> None:
    asked: list[Conversation] = []

    def experts(conversation: Conversation) -> str:
        asked.append(conversation)
        if conversation.turns:
            return format_answer("so they say")
        offered = [spec.name for spec in conversation.example.toolbox if spec.kind is ToolKind.EXPERT]
        if offered == ["gpt-5"]:
            return format_call(ToolCall(name="gpt-5", arguments={"question": "who wrote Opal?"}))
        return format_answer("Tesk")

    written: list[str] = []
    gateway = Gateway(tmp_path, backend=backend(tmp_path, experts))
    with listening(create_app(gateway, load=False)) as port:
        chat = TerminalChat(f"http://127.0.0.1:{port}", {}, written.append, budget_usd="1.00")
        assert chat.say("/compare who wrote Opal?") and chat.say("/compare")
    left, _, right = "".join(written).partition("gpt-5's own reply:\n")
    assert left.startswith("Tesk\n   $") and right.startswith("   gpt-5 → ")
    reply = right.splitlines()[1]
    assert reply and reply == asked[-1].turns[0].observation and "so they say" not in right
    assert right.endswith(f"{HELP}\n") and {one.example.preference.kind for one in asked} == {"neutral"}
    gateway.telemetry.close()
    traces = [json.loads(line) for file in (tmp_path / ".state/traces").iterdir() for line in file.open()]
    assert [one["request"]["budget_usd"] for one in traces] == ["0.50", "0.50"]
    # The small model's answer is what the conversation goes on from.
    assert [message["content"] for message in chat.messages] == ["who wrote Opal?", "Tesk"]


@pytest.mark.parametrize(
    ("usd", "half"), [("1.00", "0.50"), ("0.0001", "0.00005"), ("much", "much"), ("1e9999999", "1e9999999")]
)
def test_both_sides_of_a_comparison_have_half_of_the_dollars(usd: str, half: str) -> None:
    assert halved(usd) == half


def test_no_gateway_is_one_line() -> None:
    written: list[str] = []
    assert TerminalChat("http://127.0.0.1:1", {}, written.append).say("hello?")
    assert "".join(written).startswith("error: http://127.0.0.1:1: the gateway does not answer: ConnectError")


def test_where_nobody_types_a_failure_ends_the_conversation() -> None:
    written: list[str] = []
    with pytest.raises(ServiceError, match="does not answer"):
        TerminalChat("http://127.0.0.1:1", {}, written.append, goes_on=False).say("hello?")
    assert not written


ACCOUNT = {**MADE, "dropped_messages": 0}


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (
            {
                "choices": [{"delta": {}, "finish_reason": "length"}],
                "orchestra": {**ACCOUNT, "stop": "token_limit\x1b[2J"},
            },
            "The three are … cut off (token_limit\\x1b[2J)\n   $0.0621",
        ),
        (
            {"error": {"message": "a tool failed"}, "orchestra": {"cost_usd": 0.041}},
            "The three are\nerror: {url}: a tool failed; $0.041000 was charged\n",
        ),
    ],
)
def test_an_answer_that_did_not_end_shows_why_and_what_it_cost(last: dict[str, Any], said: str) -> None:
    failed: dict[str, Any] = {"name": "gpt-5", "arguments": {}, "observation": None, "cost_usd": 0.041, "latency_s": 96}
    told = [
        {"choices": [{"delta": {}}], "orchestra": {"tool_call": failed}},
        {"choices": [{"delta": {"content": "The three are"}}]},
        last,
    ]
    written: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = "".join(f"data: {json.dumps(one)}\n\n" for one in told)
        await send({"type": "http.response.body", "body": body.encode()})

    with listening(app) as port:
        url = f"http://127.0.0.1:{port}"
        assert TerminalChat(url, {}, written.append).say("who?")
    shown = "".join(written)
    assert shown.startswith("   gpt-5 → failed  [$0.041000, 96.0 s]\n" + said.format(url=url)), shown


@pytest.mark.parametrize("compare", [False, True])
def test_a_model_that_works_for_long_is_seen_to_until_its_answer_begins(
    compare: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.05)
    call: dict[str, Any] = {"name": "gpt-5", "arguments": {}, "observation": "888", "cost_usd": 0.041, "latency_s": 96}
    begins: dict[str, Any] = {"choices": [{"delta": {"content": "888"}}]}
    if compare:
        begins = {"choices": [{"delta": {}}], "orchestra": {"tool_call": call}}
    told = [": working\n\n", f"data: {json.dumps(begins)}\n\n", ": working\n\n", "data: [DONE]\n\n"]
    before: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for one in told:
            await send({"type": "http.response.body", "body": one.encode(), "more_body": one != told[-1]})
            await asyncio.sleep(0.25)

    def write(text: str) -> None:
        if text:
            time.sleep(0.02)
            before.append(capsys.readouterr().err)

    with listening(app) as port:
        chat = TerminalChat(f"http://127.0.0.1:{port}", {}, write)
        assert chat._told({}, "gpt-5" if compare else None) == "888"
    assert "the model works (0 s)\n" in "".join(before) and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "event", ["{", "[]", "{}", '{"choices": [{}]}', '{"choices": [], "orchestra": {"stop": "x"}}', '{"error": "down"}']
)
def test_what_a_foreign_gateway_streams_is_one_line(event: str) -> None:
    written: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode()})

    with listening(app) as port:
        assert TerminalChat(f"http://127.0.0.1:{port}", {}, written.append).say("who?")
    assert "".join(written).endswith(f"error: http://127.0.0.1:{port}: the answer is no chat completion\n")


def test_a_proxys_page_in_another_encoding_is_no_silent_gateway() -> None:
    written: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": "réessayez".encode("latin-1")})

    with listening(app) as port:
        assert TerminalChat(f"http://127.0.0.1:{port}", {}, written.append).say("who?")
    assert "".join(written).endswith(f"error: http://127.0.0.1:{port}: the answer is no chat completion\n")
