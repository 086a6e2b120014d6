"""The caller's own tools: calls go back to the caller, ours run inside, and conversations go on by their messages."""

import asyncio
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.render import Codec
from orchestra.serving.gateway import Gateway
from orchestra.types import ToolCall
from tests.support.serving_world import backend
from tests.support.worlds import codec
from tests.unit.serving.test_gateway import call, client

LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a reader up.",
        "parameters": {
            "type": "object",
            "properties": {"reader": {"type": "string"}},
            "required": ["reader"],
            "additionalProperties": False,
        },
    },
}
PATH = "/v1/chat/completions"


def both(conversation: Conversation) -> str:
    """Calculates inside, then asks the caller's tool, then says what both said."""
    text = str(codec().tokenizer.decode(conversation.ids))
    if "888" not in text:
        return format_call(ToolCall(name="calculator", arguments={"expression": "37*24"}))
    if "owes" not in text:
        return format_call(ToolCall(name="look_up", arguments={"reader": "Ovel"}), thought="who?")
    return format_answer(f"888 and {text.rpartition('owes ')[2].split('<')[0].split()[0]}")


def test_a_call_goes_to_the_caller_and_its_result_comes_back(tmp_path: Path) -> None:
    made = Gateway(tmp_path, backend=backend(tmp_path, both))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "what is 37*24, and what does Ovel owe?"}]
    first = call(made, tmp_path, "POST", PATH, json={"messages": messages, "tools": [LOOK_UP]}).json()
    choice = first["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (wanted,) = choice["message"]["tool_calls"]
    assert wanted["function"] == {"name": "look_up", "arguments": '{"reader": "Ovel"}'}
    assert [one["name"] for one in first["orchestra"]["tool_calls"]] == ["calculator"]
    messages += [choice["message"], {"role": "tool", "tool_call_id": wanted["id"], "content": "Ovel owes 12"}]
    second = call(made, tmp_path, "POST", PATH, json={"messages": messages, "tools": [LOOK_UP]}).json()
    assert second["choices"][0]["message"]["content"] == "888 and 12"
    # What ran inside before the call is still known: the calculator was not asked again.
    assert second["orchestra"]["tool_calls"] == []
    prompts = [json.loads(line)["episode"] for line in _traces(made, tmp_path)]
    before = prompts[0]["prompt_ids"] + [i for t in prompts[0]["turns"] for i in t["ids"] + t["observation_ids"]]
    assert prompts[1]["prompt_ids"][: len(before)] == before  # not one token was made again from text


def _traces(gateway: Gateway, folder: Path) -> list[str]:
    gateway.telemetry.close()
    (file,) = (folder / ".state/traces").iterdir()
    return file.read_text(encoding="utf-8").splitlines()


def test_names_of_callers_tools_are_no_labels(tmp_path: Path) -> None:
    """Anybody may read the metrics, and names have no bound."""
    made = Gateway(tmp_path, backend=backend(tmp_path, both))
    body = {"messages": [{"role": "user", "content": "what is 37*24, and what does Ovel owe?"}], "tools": [LOOK_UP]}
    assert call(made, tmp_path, "POST", PATH, json=body).status_code == 200
    counted = [line for line in made.telemetry.render().decode().splitlines() if "orchestra_tool_calls_total{" in line]
    assert counted == [
        'orchestra_tool_calls_total{tool="calculator"} 1.0',
        'orchestra_tool_calls_total{tool="caller\'s"} 1.0',
    ]


def test_conversations_go_on_in_another_gateway(tmp_path: Path) -> None:
    """Two gateways over one store; and one without it, which makes the conversation from its messages."""
    answers = []
    for store in ("same", "other"):
        first = Gateway(tmp_path, backend=backend(tmp_path, both))
        second = first if store == "same" else Gateway(tmp_path / "other", backend=backend(tmp_path, both))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "what is 37*24, and what does Ovel owe?"}]
        body = {"messages": messages, "tools": [LOOK_UP]}
        message = call(first, tmp_path, "POST", PATH, json=body).json()["choices"][0]["message"]
        messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "owes 12"}]
        answers.append(call(second, tmp_path, "POST", PATH, json=body).json())
    assert {one["choices"][0]["message"]["content"] for one in answers} == {"888 and 12"}
    assert [len(one["orchestra"]["tool_calls"]) for one in answers] == [0, 1]


def test_no_ids_of_one_vocabulary_are_read_in_another(tmp_path: Path) -> None:
    """A release of another base has another vocabulary; a conversation then goes on by its messages."""
    same, other = Codec(deepcopy(codec().tokenizer)), Codec(deepcopy(codec().tokenizer))
    other.tokenizer.add_tokens(["zebra"])
    ran = []
    for released in (same, other):
        made = Gateway(tmp_path, backend=backend(tmp_path, both))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "what is 37*24, and what does Ovel owe?"}]
        body = {"messages": messages, "tools": [LOOK_UP]}
        message = call(made, tmp_path, "POST", PATH, json=body).json()["choices"][0]["message"]
        messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "owes 12"}]
        after = Gateway(tmp_path, backend=replace(backend(tmp_path, both), codec=released))
        ran.append(len(call(after, tmp_path, "POST", PATH, json=body).json()["orchestra"]["tool_calls"]))
    assert ran == [0, 1]


def test_parallel_conversations_do_not_mix(tmp_path: Path) -> None:
    def decide(conversation: Conversation) -> str:
        asked, text = conversation.example.instruction, str(codec().tokenizer.decode(conversation.ids))
        if f"[{asked}]" in text:
            return format_answer(f"{asked}: {text.count('[')}")
        return format_call(ToolCall(name="look_up", arguments={"reader": asked}))

    made = Gateway(tmp_path, backend=backend(tmp_path, decide))

    async def talk(http: httpx.AsyncClient, name: str) -> str:
        messages: list[dict[str, Any]] = [{"role": "user", "content": name}]
        while True:
            reply = (await http.post(PATH, json={"messages": messages, "tools": [LOOK_UP]})).json()
            message = reply["choices"][0]["message"]
            if not message.get("tool_calls"):
                return str(message["content"])
            (wanted,) = message["tool_calls"]
            given = f"[{json.loads(wanted['function']['arguments'])['reader']}]"
            messages += [message, {"role": "tool", "tool_call_id": wanted["id"], "content": given}]

    async def go() -> list[str]:
        async with client(made) as http:
            return list(await asyncio.gather(*(talk(http, f"reader {i}") for i in range(8))))

    assert asyncio.run(go()) == [f"reader {i}: 1" for i in range(8)]


def test_arguments_that_do_not_fit_go_back_to_the_model(tmp_path: Path) -> None:
    def decide(conversation: Conversation) -> str:
        wrong = not conversation.turns
        return format_call(ToolCall(name="look_up", arguments={} if wrong else {"reader": "Ovel"}))

    body = {"messages": [{"role": "user", "content": "who?"}], "tools": [LOOK_UP]}
    reply = call(backend(tmp_path, decide), tmp_path, "POST", PATH, json=body).json()
    assert reply["orchestra"]["turns"] == 2
    (wanted,) = reply["choices"][0]["message"]["tool_calls"]
    assert wanted["function"]["arguments"] == '{"reader": "Ovel"}'


def test_a_streamed_call_has_openai_s_form(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [LOOK_UP], "stream": True}
    body["stream_options"] = {"include_usage": True, "include_thoughts": True}
    reply = call(backend(tmp_path, both), tmp_path, "POST", PATH, json=body)
    chunks = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n")[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    (wanted,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert wanted[0]["index"] == 0 and wanted[0]["function"]["name"] == "look_up" and wanted[0]["id"]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "who?"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    assert [chunk for chunk in chunks if "usage" in chunk] == chunks[-1:]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    body["stream_options"] = {"include_usage": True}
    assert "reasoning_content" not in call(backend(tmp_path, both), tmp_path, "POST", PATH, json=body).text


def test_without_a_choice_of_tools_ours_alone_are_offered(tmp_path: Path) -> None:
    def decide(conversation: Conversation) -> str:
        seen = conversation.turns[-1].observation if conversation.turns else None
        return format_answer(seen) if seen else format_call(ToolCall(name="look_up", arguments={"reader": "Ovel"}))

    body = {"messages": [{"role": "user", "content": "x"}], "tools": [LOOK_UP], "tool_choice": "none"}
    reply = call(backend(tmp_path, decide), tmp_path, "POST", PATH, json=body).json()
    assert "no tool named look_up" in reply["choices"][0]["message"]["content"]
