"""What a served request is offered, and how long its calls wait."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import CallError, ToolError
from orchestra.serving.episodes.frames import PromptFrames
from orchestra.serving.toolbox import (
    DOMAIN_TOOLS,
    STATED,
    Shelf,
    ToolChoice,
    _weights,
    experts,
    preference,
    spelt,
    toolbox,
)
from orchestra.serving.wire.errors import ApiError
from orchestra.serving.wire.messages import ChatMessage
from orchestra.serving.wire.request import ChatRequest, PreferenceSpec
from orchestra.synthesis.preferences.sentences import WEIGHTS, WORDS
from orchestra.tools import resources
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.catalogue.entry import DECENT
from orchestra.tools.chat.breaker import longest_wait_s
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, StopReason, ToolKind, ToolSpec
from tests.support.serving_world import backend
from tests.support.worlds import ROOT, catalogue, codec, toolkit


@pytest.mark.parametrize("count", [1, 3, 5, 99])
def test_experts_are_as_many_as_asked_and_distinct(count: int) -> None:
    chosen = experts(catalogue(), count)
    assert len(chosen) == len(set(chosen)) == min(count, len(catalogue().names(ToolKind.EXPERT)))


def test_experts_hold_the_strongest_and_cover_the_topics() -> None:
    book = catalogue()
    chosen = experts(book, 5)
    every = book.names(ToolKind.EXPERT)
    assert max(book.strength(name) for name in every) == book.strength(chosen[0])
    for topic in book.topics:
        if any(book.skill(name, topic) >= DECENT for name in every):
            assert any(book.skill(name, topic) >= DECENT for name in chosen), topic


def test_a_toolbox_is_at_the_price_books_prices(tmp_path: Path) -> None:
    specs = toolbox(toolkit(tmp_path), "what is 1+1?", None, 4)
    assert len(specs) == 4 + len(catalogue().names(ToolKind.BASIC))
    assert all(spec.price == catalogue().prices[spec.tool] for spec in specs)
    assert len({spec.name for spec in specs}) == len(specs)


def test_a_domain_brings_the_tools_that_fit_the_question(tmp_path: Path) -> None:
    tools = toolkit(tmp_path)
    names = [s.name for s in toolbox(tools, "hello", "mock", 3) if s.kind is ToolKind.DOMAIN]
    assert 0 < len(names) <= DOMAIN_TOOLS and set(names) <= set(tools.domain("mock").tools)


def test_of_many_domain_tools_the_fitting_ones_come_first(tmp_path: Path) -> None:
    folder = ROOT / "data/domains/ecommerce"
    if not (folder / "tools.yaml").is_file():
        pytest.skip("the ecommerce domain is not here")
    tools = Toolkit(catalogue(), {"ecommerce": folder}, tmp_path)
    every = tools.domain("ecommerce").tools
    for wanted in ("cancel_order", "get_order"):
        if wanted in every and len(every) > DOMAIN_TOOLS:
            question = wanted.replace("_", " ") + " 17 please"
            offered = [s.name for s in toolbox(tools, question, "ecommerce", 3) if s.kind is ToolKind.DOMAIN]
            assert wanted in offered and len(offered) == DOMAIN_TOOLS


def test_named_preferences_use_words_the_policy_was_trained_on() -> None:
    for kind, words in STATED.items():
        assert words in WORDS[kind]["train"]
        made = preference(PreferenceSpec(words=kind))
        assert made.words == words and made.kind == kind
    assert set(STATED) == set(WEIGHTS) - {"neutral"}
    for nothing in (None, "", "neutral", "  "):
        made = preference(PreferenceSpec(words=nothing))
        assert made.words == "" and made.kind == "neutral"
    assert preference(PreferenceSpec(words="please use gpt-5.")).words == "please use gpt-5."


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("Cheap", "cheap"),
        (" FAST! ", "fast"),
        ("Neutral.", "neutral"),
        ("Cheap but right", "Cheap but right"),
        ("ask GPT-5 Mini first", "ask gpt-5-mini first"),
        ("gpt5, or else Llama 3.3 70B.", "gpt-5, or else llama-3.3-70b."),
        ("qwen 2.5 coder 32b", "qwen2.5-coder-32b"),
        ("my-gpt-5 and gpt-5.5 are others", "my-gpt-5 and gpt-5.5 are others"),
        ("  ", "  "),
        (None, None),
    ],
)
def test_words_are_spelt_as_the_policy_knows_them(typed: str | None, told: str | None) -> None:
    assert spelt(PreferenceSpec(words=typed), catalogue()).words == told


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("Please ask qwen3-32b.", {"qwen3-32b"}),
        ("Claude Opus 4.1 or qwen3 32b, please", {"claude-opus-4.1", "qwen3-32b"}),
        # Offering what a wish may be against would let the policy call it.
        ("please do not ask qwen3-32b", set()),
        ("anything but qwen3-32b", set()),
        ("I don't trust qwen3-32b", set()),
        ("keep it cheap", set()),
    ],
)
def test_an_expert_that_the_words_ask_for_is_offered(words: str, more: set[str], tmp_path: Path) -> None:
    tools, wanted = toolkit(tmp_path), PreferenceSpec(words=words)
    plain = [spec.name for spec in toolbox(tools, "why?", None, 5)]
    offered = [spec.name for spec in toolbox(tools, "why?", None, 5, ToolChoice.of(wanted, tools.catalogue))]
    assert {*offered} - {*plain} == more and len(offered) == len(plain) and offered[0] == plain[0]
    barred = ToolChoice.of(wanted.model_copy(update={"avoid": sorted(more)}), tools.catalogue)
    assert not more & {spec.name for spec in toolbox(tools, "why?", None, 5, barred)}


def test_a_request_s_words_are_spelt_and_what_they_name_is_offered(tmp_path: Path) -> None:
    asked = ChatRequest(messages=[ChatMessage(role="user", content="why?")], preference="Ask Claude Opus 4.1.")
    example = backend(tmp_path).job(asked).example
    assert example.preference.words == "Ask claude-opus-4.1."
    assert "claude-opus-4.1" in {spec.name for spec in example.toolbox}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"compute": 0.9, "latency": 0.2}, STATED["cheap"]),
        ({"outcome": 1, "compute": 0.3, "latency": 0.8}, STATED["fast"]),
        ({"outcome": 1, "compute": 0, "latency": 0}, STATED["accurate"]),
        ({"outcome": 1, "compute": 0.3, "latency": 0.1}, ""),
        ({"prefer": ["gpt-5"]}, "use gpt-5 if you can."),
        ({"tools": {"gpt-5": 0.9, "search": 0.2}}, "use gpt-5 if you can."),
        ({"words": "cheap", "prefer": ["gpt-5"]}, f"{STATED['cheap']} use gpt-5 if you can."),
    ],
)
def test_a_structured_preference_is_told_in_words(wanted: dict[str, Any], words: str) -> None:
    assert preference(PreferenceSpec.model_validate(wanted)).words == words


def test_a_choice_of_tools_holds_and_another_expert_takes_the_place(tmp_path: Path) -> None:
    tools = toolkit(tmp_path)
    plain = [spec.name for spec in toolbox(tools, "why?", None, 4)]
    strongest = plain[0]
    avoiding = [spec.name for spec in toolbox(tools, "why?", None, 4, ToolChoice(avoid=frozenset({strongest})))]
    assert strongest not in avoiding and len(avoiding) == len(plain)
    only = toolbox(tools, "why?", None, 4, ToolChoice(allowed=frozenset({"calculator"})))
    assert [spec.name for spec in only] == ["calculator"]
    liked = sorted(set(tools.catalogue.names(ToolKind.EXPERT)) - set(plain))[0]
    assert liked in [spec.name for spec in toolbox(tools, "why?", None, 4, ToolChoice(prefer=frozenset({liked})))]


def test_what_is_preferred_is_offered_in_a_place_of_another(tmp_path: Path) -> None:
    tools = Toolkit(catalogue(), {"travel": ROOT / "data/domains/travel"}, tmp_path)

    def offered(domain: str | None, prefer: set[str]) -> list[str]:
        return [s.name for s in toolbox(tools, "hello", domain, 3, ToolChoice(frozenset(prefer)))]

    plain = offered("travel", set())
    experts_, actions = catalogue().names(ToolKind.EXPERT), [*tools.domain("travel").tools]
    unfit = next(name for name in actions if name not in plain)
    # The tool that fits least makes room; the others stay, and as many as before are offered.
    assert set(offered("travel", {unfit})) == {*plain[:-1], unfit}
    many = {*experts_[:5], "python"}
    made = offered("travel", many)
    assert len(made) == len(plain) and many < set(made) and set(plain[3:-2]) < set(made)
    assert len(offered(None, {*experts_[:5]})) == len(offered(None, set()))
    with pytest.raises(ApiError, match="25 tools are preferred, and 12 are offered") as caught:
        offered("travel", {*actions})
    assert caught.value.param == "preference.prefer"


def test_what_is_preferred_and_ruled_out_is_known() -> None:
    def contrary(**wanted: Any) -> list[str]:
        return ToolChoice.of(PreferenceSpec.model_validate(wanted)).contrary(["mine"])

    assert contrary(prefer=["a", "mine"], avoid=["b"]) == contrary(prefer=["a", "mine"], tools_allowed=["a"]) == []
    assert contrary(prefer=["a", "mine"], avoid=["a", "mine"]) == ["a", "mine"]
    assert contrary(tools={"a": 0.9, "b": 0.2}, avoid=["a", "b"]) == ["a"]
    assert contrary(prefer=["a"], tools_allowed=["b"]) == ["a"]


def test_the_tools_of_a_question_are_the_same_in_every_process() -> None:
    """Sums of floats hang on their order, and a set's order on the process."""
    tools = tuple((f"find_{word}_{other}", f"looks a {other} up by its {word}") for word in "abcd" for other in "efgh")
    for own in _weights(tools).values():
        assert len(own) > 4 and [term for term, _ in own] == sorted(term for term, _ in own)


def test_no_request_waits_until_the_check_of_a_tools_arguments_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = toolkit(tmp_path)
    shelf = Shelf(tools, PromptFrames(codec()))
    shelf.prepare(["mock"], 3)
    monkeypatch.setattr(resources, "checker", lambda spec: pytest.fail(f"{spec.name} has no check yet"))
    for spec in shelf.toolbox("which books are there", "mock", 3):
        with pytest.raises(CallError):
            tools.check(spec, {"never": 1})


def test_a_tool_whose_schema_is_none_hinders_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(spec: ToolSpec) -> None:
        raise ToolError("its schema is none", where=f"tool {spec.name}")

    monkeypatch.setattr(resources, "checker", refused)
    tools = toolkit(tmp_path)
    shelf = Shelf(tools, PromptFrames(codec()))
    shelf.prepare(["mock"], 3)
    with pytest.raises(ToolError, match="schema"):
        tools.check(shelf.toolbox("", None, 3)[0], {})


class KeepsWaits:
    """A calculator that keeps how long its calls may wait for an open breaker."""

    component = Component.SANDBOX

    def __init__(self) -> None:
        self.waits = list[float]()

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self.waits.append(longest_wait_s())
        return ToolResult(text="2")


@pytest.mark.parametrize("deploy", [{}, {"gateway": {"expert_wait_s": 20}}])
def test_a_request_waits_for_no_expert_that_is_down_unless_its_release_says_so(
    tmp_path: Path, deploy: dict[str, Any]
) -> None:
    made, watch = backend(tmp_path, **deploy), KeepsWaits()
    made.toolkit = made.toolkit.with_tools({"calculator": watch})
    job = made.job(ChatRequest(messages=[ChatMessage(role="user", content="what is 1+1?")]))
    assert asyncio.run(made.run(job)).stop is StopReason.ANSWERED
    assert watch.waits == [20 if deploy else 0]
