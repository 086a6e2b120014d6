"""`orchestra chat`: a conversation over several questions, its settings, and its failures in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import ServiceError
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.serving.app import create_app
from orchestra.serving.chat import TerminalChat
from orchestra.serving.gateway import Gateway
from orchestra.types import ToolCall
from tests.support.real_gateway import listening
from tests.support.serving_world import MADE, backend
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
