"""Messages as token ids: the caller's own tools, histories of any shape, and what is cut when they are too long."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.rollout.parse import format_answer, format_call
from orchestra.serving.backend import SMALL
from orchestra.serving.episodes.conversation import PromptSetting, Renderer
from orchestra.serving.episodes.frames import PromptFrames
from orchestra.serving.wire.errors import ApiError
from orchestra.serving.wire.messages import ChatMessage
from orchestra.serving.wire.request import ChatRequest
from orchestra.types import ToolCall
from tests.support.injections import INJECTIONS
from tests.support.serving_world import backend
from tests.support.worlds import catalogue, codec

BOX = tuple(catalogue().spec(name) for name in ("calculator", "search"))


def renderer(limit: int = 2000) -> Renderer:
    return Renderer(PromptFrames(codec()), PromptSetting(BOX, "keep it cheap.", None, limit))


def said(*messages: tuple[str, str]) -> list[ChatMessage]:
    return [ChatMessage.model_validate({"role": role, "content": text}) for role, text in messages]


def called(name: str, call_id: str, **arguments: Any) -> ChatMessage:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return ChatMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}
    )


def result(call_id: str, text: str) -> ChatMessage:
    return ChatMessage(role="tool", tool_call_id=call_id, content=text)


def test_calls_and_results_read_as_the_loop_appends_them() -> None:
    first = said(("system", "be brief"), ("user", "what is 2*3?"))
    made = renderer().prompt(
        [*first, called("f", "a", x=1), result("a", "6"), *said(("assistant", "six"), ("user", "why?"))]
    )
    expected = [
        *renderer().prompt(first).ids,
        *codec().turn(format_call(ToolCall(name="f", arguments={"x": 1}))),
        *codec().observation("6"),
        *codec().turn(format_answer("six")),
        *codec().reply("why?"),
    ]
    assert made.ids == expected and made.dropped == 0


TEXTS = st.one_of(st.sampled_from([one.text for one in INJECTIONS]), st.text(max_size=30))


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_no_part_of_a_call_opens_or_closes_anything(argument: str, key: str, beside: str, answer: str) -> None:
    """As many control tokens as harmless parts give, in the same order."""

    def controls(argument: str, key: str, beside: str, answer: str) -> list[int]:
        function = {"name": "f", "arguments": json.dumps({key: argument})}
        message = {"role": "assistant", "content": beside or None, "tool_calls": [{"id": "a", "function": function}]}
        whole = [*said(("user", "x")), ChatMessage.model_validate(message), result("a", "y")]
        whole += said(("assistant", answer), ("user", "z"))
        added = {i for text, i in codec().tokenizer.get_added_vocab().items() if text.startswith("<")}
        return [i for i in renderer(10**6).prompt(whole).ids if i in added]

    clean = [text.encode("utf-8", "replace").decode() for text in (argument, key, beside, answer)]
    thinks = "b" if clean[2].strip() else ""
    assert controls(*clean) == controls("v", "k", thinks, "a")


def test_the_oldest_exchanges_go_first_and_whole() -> None:
    head, last = said(("system", "rules")), said(("user", "now?"))
    middle = [said(("user", f"question {i} " * 8), ("assistant", f"answer {i}")) for i in range(6)]
    whole = [*head, *(one for exchange in middle for one in exchange), *last]
    full = renderer(10**6).prompt(whole).ids
    for limit in range(len(renderer().prompt([*head, *last]).ids), len(full) + 1, 23):
        made = renderer(limit).prompt(whole)
        assert len(made.ids) <= limit and made.dropped % 2 == 0
        kept = [*head, *whole[1 + made.dropped :]]
        assert made.ids == renderer(10**6).prompt(kept).ids
        if made.dropped:
            more = [*head, *whole[1 + made.dropped - 2 :]]
            assert len(renderer(10**6).prompt(more).ids) > limit  # no fewer would do
    with pytest.raises(ApiError, match="leaves about"):
        renderer(len(full) - 1).prompt(whole, cut=False)


@pytest.mark.parametrize("words", [40, 9_000])
def test_a_system_message_stays_wherever_it_stands(words: int) -> None:
    """Of few words the tokens are counted, of many the characters."""
    old = said(("user", "old " * words), ("assistant", "ok"), ("developer", "never say Rome"), ("assistant", "yes"))
    whole = [*said(("system", "be brief")), *old, *said(("user", "new"), ("assistant", "ok"), ("user", "now?"))]
    kept = [whole[0], old[2], *whole[5:]]
    limit = len(renderer().prompt(kept).ids)
    made = renderer(limit).prompt(whole)
    assert made.dropped == 3 and made.ids == renderer().prompt(kept).ids
    with pytest.raises(ApiError, match="leaves about"):
        renderer(len(renderer().prompt([whole[0], old[2], whole[-1]]).ids) - 1).prompt(whole)


def test_too_many_characters_are_refused_before_they_become_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    made = renderer(100)
    monkeypatch.setattr(type(codec().tokenizer), "__call__", None)
    monkeypatch.setattr(type(codec().tokenizer), "apply_chat_template", None)
    with pytest.raises(ApiError, match="cannot fit into 100 tokens") as caught:
        made.prompt(said(("user", '"' * 900_000)))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([*said(("user", "x")), result("a", "y")], "no call before it has the id a"),
        ([*said(("user", "x")), called("f", "a"), *said(("user", "z"))], "the call a has no tool message"),
        ([*said(("user", "x")), called("f", "a"), result("b", "y")], "the call a has no tool message"),
        ([called("f", "a"), result("a", "y"), *said(("user", "x"))], "before the first message of the user"),
    ],
)
def test_calls_without_results_are_the_caller_s_fault(messages: list[ChatMessage], says: str, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=says):
        backend(tmp_path).job(ChatRequest(messages=messages))


def test_a_remembered_call_goes_on_from_its_own_tokens() -> None:
    first = [*said(("user", "what is 2*3?")), called("f", "known")]
    inside = [7, 8, 9]

    def recall(call_id: str, digest: str) -> list[int] | None:
        right = digest == renderer().setting.digest(first[:1])
        return inside if call_id == "known" and right else None

    made = replace(renderer(), recall=recall)
    assert made.prompt([*first, result("known", "6")]).ids == [*inside, *codec().observation("6")]
    # Other messages before it: what ran inside belongs to another conversation.
    other = [*said(("user", "what is 2*4?")), first[1], result("known", "6")]
    assert made.prompt(other).ids == renderer().prompt(other).ids


def test_a_history_of_many_calls_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not its calls are remembered, and beside the event loop, however short its messages are."""
    whole = [*said(("user", "x")), *(one for i in range(300) for one in (called("f", f"c{i}"), result(f"c{i}", "")))]
    assert ChatRequest(messages=whole).characters > SMALL
    read = 0
    dump = ChatMessage.model_dump

    def counted(self: ChatMessage, **options: Any) -> dict[str, Any]:
        nonlocal read
        read += 1
        return dump(self, **options)

    monkeypatch.setattr(ChatMessage, "model_dump", counted)
    renderer(10**6).prompt(whole)
    assert read <= len(whole)


def test_digests_are_those_of_the_messages_so_far() -> None:
    whole = [*said(("user", "a\nb"), ("assistant", "c")), *said(("user", "d"))]
    setting = renderer().setting
    assert setting.digests(whole) == [setting.digest(whole[:count]) for count in range(4)]
    others = [said(("user", "a"), ("user", "b")), said(("user", "a")), said(("user", "ab")), said(("assistant", "a"))]
    assert len({setting.digest(one) for one in [whole, *others]}) == 5
    assert replace(setting, codec="another").digest(whole) != setting.digest(whole)
