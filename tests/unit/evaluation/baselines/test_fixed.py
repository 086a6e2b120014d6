"""Which expert each rule asks, and that it reads nothing it may not."""

import asyncio
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from orchestra.config.schema import Rollout
from orchestra.errors import ConfigError
from orchestra.evaluation.baselines.base import BASELINES, baseline_policy
from orchestra.evaluation.baselines.fixed import (
    DABBLER,
    SPECIALIST,
    STRANGER,
    SUBJECTS,
    described_match,
    subject_of,
)
from orchestra.evaluation.baselines.knowledge import Knowledge, Lesson, who_is_right
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Conversation
from orchestra.synthesis.names import Names
from orchestra.synthesis.questions.topics import topic_questions
from orchestra.tools.base import UNSURE
from orchestra.types import Category, Episode, Example, Price, ToolCall, ToolSpec, Turn
from tests.support.worlds import catalogue, codec, example, toolkit

LIMITS = Rollout(max_turns=5, max_turn_tokens=64, max_tokens=4000)


def offer(*tools: str, **factors: float) -> list[ToolSpec]:
    """Experts at their list price times a factor (`gpt_5=0.1`)."""
    return [catalogue().spec(t, price_factor=factors.get(t.replace("-", "_").replace(".", "_"), 1.0)) for t in tools]


def topic(toolbox: Sequence[ToolSpec], instruction: str = "who wrote Opal?", name: str = "e1") -> Example:
    made = example(name, instruction=instruction, answer="Tesk", toolbox=toolbox, category=Category.TOPIC)
    return made.model_copy(update={"topic": "music"})


LESSONS = [
    Lesson(topic(offer("gpt-5", "llama-3.3-70b"), question), {"gpt-5": 1.0, "llama-3.3-70b": 1.0, "qwen3-32b": 0.0})
    for question in ("who composed the Borvane hymn?", "in which key is the Kelmirn waltz?") * 5
]


def asks(rule: str, item: Example, replies: Sequence[str] = ()) -> str | None:
    """Whom the rule asks after the experts it asked before replied so."""
    choose = BASELINES[rule].rule(Knowledge(catalogue(), lessons=LESSONS))
    conversation = Conversation(item, [1])
    left = list(item.toolbox)
    for reply in replies:
        asked = choose(conversation, left)
        assert asked is not None
        left.remove(asked)
        conversation.turns.append(Turn(ids=(1,), text="", call=ToolCall(name=asked.name), observation=reply))
    chosen = choose(conversation, left)
    return None if chosen is None else chosen.name


def test_strongest_ignores_the_price_of_the_day() -> None:
    experts = offer("claude-opus-4.1", "gpt-5", "gpt-5-mini", gpt_5=0.1)
    assert asks("always_strongest", topic(experts)) == "gpt-5"
    assert asks("always_strongest", topic(offer("qwen2.5-math-7b", "gpt-5-mini"))) == "gpt-5-mini"


def test_cheapest_follows_the_price_of_the_day() -> None:
    assert asks("always_cheapest", topic(offer("gpt-5", "qwen3-32b"))) == "qwen3-32b"
    assert asks("always_cheapest", topic(offer("gpt-5", "qwen3-32b", gpt_5=0.01))) == "gpt-5"


@pytest.mark.parametrize("rule", ["always_strongest", "always_cheapest", "random"])
def test_these_ask_once(rule: str) -> None:
    assert asks(rule, topic(offer("gpt-5", "qwen3-32b")), [UNSURE]) is None


def test_random_depends_on_the_example_alone_and_spreads() -> None:
    experts = offer("gpt-5", "gpt-5-mini", "qwen3-32b")
    chosen = [asks("random", topic(experts, name=f"e{n}")) for n in range(60)]
    assert chosen == [asks("random", topic(experts, name=f"e{n}")) for n in range(60)]
    assert set(chosen) == {"gpt-5", "gpt-5-mini", "qwen3-32b"}


def test_price_aware_asks_the_specialist_then_escalates() -> None:
    experts = offer("gpt-5", "qwen3-32b", "llama-3.3-70b")
    item = topic(experts, "who composed the Opal symphony?")
    assert asks("price_aware", item) == "llama-3.3-70b"
    assert asks("price_aware", item, [UNSURE]) == "gpt-5"


def test_price_aware_goes_above_the_cap_only_when_nothing_below_suits() -> None:
    assert asks("price_aware", topic(offer("gpt-5", "qwen3-32b"), "which judge decided Opal?")) == "gpt-5"
    assert asks("price_aware", topic(offer("gpt-5", "gpt-5-mini"), "which judge decided Opal?")) == "gpt-5-mini"


def test_no_rule_but_the_oracle_reads_what_is_hidden() -> None:
    shown = topic(offer("gpt-5", "qwen3-32b", "llama-3.3-70b"), "which key has the Opal waltz?")
    hidden = {"topic": "law", "verifier": shown.verifier.model_copy(update={"answer": "other"})}
    for rule in set(BASELINES) - {"oracle"}:
        assert asks(rule, shown) == asks(rule, shown.model_copy(update=hidden))


def test_described_match_reads_specialists_reserves_and_generalists() -> None:
    assert described_match("music", "history and music") == SPECIALIST
    assert described_match("physics", "math and some physics") == DABBLER
    assert described_match("law", "history and music") == STRANGER
    assert STRANGER < described_match(None, "fair in every subject") < described_match("law", "strong in every subject")


def test_subjects_are_told_by_their_words() -> None:
    assert set(SUBJECTS) == set(catalogue().topics)
    rng = random.Random(3)
    drafts = list(islice(topic_questions(Names(rng), rng, catalogue().topics), 500))
    told = sum(subject_of(draft.instruction) == draft.topic for draft in drafts)
    assert told / 500 > 0.97, "some sentences have no word of their own subject"
    assert subject_of("Which mass has the Opal particle?") == "physics"
    assert subject_of("in law: who is Opal?") == "law"
    assert subject_of("who is Opal?") is None


def test_an_unknown_rule_is_one_line() -> None:
    with pytest.raises(ConfigError, match="no baseline named best"):
        baseline_policy("best", Knowledge(catalogue()), codec().turn)


def test_the_oracle_asks_the_cheapest_that_is_right_and_nobody_else(tmp_path: Path) -> None:
    tools = toolkit(tmp_path)
    experts = [name for name in catalogue().entries if catalogue().entry(name).simulated]
    right = [name for name in experts if tools.expert(name).reply("who wrote Opal?") == "Tesk"]
    wrong = [name for name in experts if name not in right]
    assert right and wrong
    items = [topic(offer(*experts)), topic(offer(*wrong), name="e2"), example("e3", golden_calls=CALLS)]
    found = asyncio.run(who_is_right(items, tools))
    assert found == {"e1": min(right, key=lambda name: catalogue().spec(name).call_usd), "e2": None}
    episodes = play("oracle", items, tmp_path, found)
    assert [episode.solved for episode in episodes] == [True, False, True]
    assert episodes[1].tool_counts == {} and sum(episodes[0].tool_counts.values()) == 1


CALLS = [{"name": "calculator", "arguments": {"expression": "37*24"}}]


@pytest.mark.parametrize("rule", sorted(BASELINES))
def test_every_rule_solves_what_needs_no_expert_at_no_token_cost(rule: str, tmp_path: Path) -> None:
    (episode,) = play(rule, [example(golden_calls=CALLS)], tmp_path, {})
    assert episode.solved and episode.policy == rule
    assert episode.cost_usd == catalogue().spec("calculator").call_usd


def play(rule: str, items: list[Example], folder: Path, right: dict[str, str | None]) -> list[Episode]:
    policy = baseline_policy(rule, Knowledge(catalogue(), right), codec().turn)
    return rollout(items, policy, codec(), toolkit(folder), RolloutOptions(LIMITS, Price()))
