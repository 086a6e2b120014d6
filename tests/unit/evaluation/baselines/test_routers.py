"""Routers learn from training questions only, read prices, and trace a frontier with their knob."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.accounting.budget import Budget
from orchestra.config.judge import JudgeSettings
from orchestra.errors import ConfigError, JudgeError
from orchestra.evaluation.baselines.base import BASELINES, baseline_policy, find_rule, frontier, rivals
from orchestra.evaluation.baselines.knowledge import Knowledge, Lesson, take_lessons, who_is_right
from orchestra.evaluation.baselines.routers import Neighbours, cascade, knn_router, pick, play
from orchestra.rollout.policies.base import Conversation
from orchestra.tools.base import NO_ANSWER, UNSURE
from orchestra.tools.experts.judging import KEY, URL, JudgeEndpoint
from orchestra.types import Category, Component, Example, Preference, ToolCall, ToolKind, ToolSpec, Turn, Verifier
from tests.support.endpoint import answer, serving
from tests.support.worlds import PRICE, catalogue, codec, example, toolkit

MUSIC = ("who composed the {} symphony?", "in which key is the {} sonata?", "which chord ends the {} hymn?")
LAW = ("which court decided {} v. the Crown?", "which statute overruled the {} verdict?")
GIVEN = ("Borvane", "Kelmirn", "Tamtora", "Zanlosi", "Lirfodu", "Movjunik", "Pelmogar", "Darsatas")


def offer(*tools: str, **factors: float) -> tuple[ToolSpec, ...]:
    """Experts at their list price times a factor (`gpt_5=0.1`)."""
    factor = {name.replace("_", "-"): value for name, value in factors.items()}
    return tuple(catalogue().spec(tool, price_factor=factor.get(tool, 1.0)) for tool in tools)


def question(text: str, *tools: str, name: str = "e1", **factors: float) -> Example:
    made = example(name, instruction=text, answer="Tesk", toolbox=offer(*tools, **factors), category=Category.TOPIC)
    return made.model_copy(update={"topic": "music"})


def lessons() -> list[Lesson]:
    """Llama knows music and nothing of law, gpt-5 knows both; both are always sure."""
    both = ("gpt-5", "llama-3.3-70b")
    return [
        Lesson(question(text.format(name), *both), {"gpt-5": 1.0, "llama-3.3-70b": float(text in MUSIC)})
        for name in GIVEN
        for text in (*MUSIC * 5, *LAW * 5)
    ]


def ask(choose: object, item: Example, *replies: str) -> str | None:
    """Whom a rule asks after the experts asked before replied so."""
    assert callable(choose)
    conversation, left = Conversation(item, [1]), list(item.toolbox)
    for reply in replies:
        asked = choose(conversation, left)
        left.remove(asked)
        conversation.turns.append(Turn(ids=(1,), text="", call=ToolCall(name=asked.name), observation=reply))
    chosen = choose(conversation, left)
    return None if chosen is None else chosen.name


def test_the_router_asks_the_cheap_one_where_it_was_right_and_the_dear_one_elsewhere() -> None:
    choose = knn_router(Knowledge(catalogue(), lessons=lessons()))
    assert ask(choose, question("who composed the Olmar symphony?", "gpt-5", "llama-3.3-70b")) == "llama-3.3-70b"
    assert ask(choose, question("which court decided Olmar v. the Crown?", "gpt-5", "llama-3.3-70b")) == "gpt-5"


def test_the_router_weighs_the_price_of_the_example() -> None:
    choose = find_rule("knn_router@10")(Knowledge(catalogue(), lessons=lessons()))
    text = "who composed the Olmar symphony?"
    assert ask(choose, question(text, "gpt-5", "llama-3.3-70b")) == "llama-3.3-70b"
    assert ask(choose, question(text, "gpt-5", "llama-3.3-70b", gpt_5=0.01)) == "gpt-5"


def test_the_router_asks_on_only_while_it_is_worth_the_price() -> None:
    known = Knowledge(catalogue(), lessons=lessons())
    item = question("which court decided Olmar v. the Crown?", "gpt-5", "llama-3.3-70b")
    assert ask(find_rule("knn_router@1")(known), item, UNSURE) is None  # Llama was never right on law.
    music = question("who composed the Olmar symphony?", "gpt-5", "llama-3.3-70b")
    assert ask(find_rule("knn_router@1")(known), music, UNSURE) == "gpt-5"
    assert ask(find_rule("knn_router@100")(known), music, UNSURE) is None


def test_the_router_without_lessons_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="no training questions"):
        ask(knn_router(Knowledge(catalogue())), question("who is Olm?", "gpt-5"))


def test_lambda_follows_what_the_training_users_want() -> None:
    def taught(compute: float) -> list[Lesson]:
        wish = Preference(kind="neutral", words="", outcome=1, compute=compute, latency=0)
        # Llama is right every other time; the questions set aside are every fifth, so they hold both.
        return [
            Lesson(lesson.example.model_copy(update={"preference": wish}), {"gpt-5": 1.0, "llama-3.3-70b": n % 2})
            for n, lesson in enumerate(lessons())
        ]

    item = question("who composed the Olmar symphony?", "gpt-5", "llama-3.3-70b")
    assert ask(knn_router(Knowledge(catalogue(), lessons=taught(0.01))), item) == "gpt-5"
    assert ask(knn_router(Knowledge(catalogue(), lessons=taught(1.0))), item) == "llama-3.3-70b"


def test_neighbours_are_those_with_the_same_words() -> None:
    chances = Neighbours(lessons()).chances
    assert chances("who composed the Olmar symphony?") == {"gpt-5": 1.0, "llama-3.3-70b": 1.0}
    assert chances("which statute overruled the Olmar verdict?") == {"gpt-5": 1.0, "llama-3.3-70b": 0.0}


def test_play_pays_for_everyone_asked_and_stops_at_the_sure_one() -> None:
    lesson = Lesson(
        question("who wrote Opal?", "gpt-5", "llama-3.3-70b", "qwen3-32b"),
        {"gpt-5": 1.0, "llama-3.3-70b": 0.0, "qwen3-32b": 0.0},
        frozenset({"llama-3.3-70b"}),
    )
    chance = {"gpt-5": 0.6, "llama-3.3-70b": 0.9, "qwen3-32b": 0.1}
    found = play(lesson, chance, 0.0, 5)
    assert found.solved and found.calls == {"llama-3.3-70b": 1, "gpt-5": 1}
    assert found.cost_usd == pytest.approx(sum(float(s.call_usd) for s in lesson.example.toolbox[:2]))
    assert play(lesson, chance, 0.0, 2).calls == {"llama-3.3-70b": 1}  # The second turn must answer.


def test_the_cascade_climbs_by_price_until_somebody_is_sure() -> None:
    item = question("who is Olm?", "gpt-5", "qwen3-32b", "claude-opus-4.1", "gpt-5-mini")
    known = Knowledge(catalogue())
    climbed = [ask(cascade(known), item, *[UNSURE] * n) for n in range(4)]
    assert climbed == sorted(
        (spec.name for spec in item.toolbox), key=lambda name: {s.name: s.call_usd for s in item.toolbox}[name]
    )
    assert ask(find_rule("cascade@1")(known), item, UNSURE, UNSURE) is None
    assert ask(find_rule("cascade@0")(known), item) == ask(BASELINES["always_cheapest"].rule(known), item)


def test_no_rule_pays_for_an_expert_that_it_can_no_longer_quote() -> None:
    tools = [name for name in catalogue().names(ToolKind.EXPERT)][:5]
    item = question("who is Olm?", *tools)
    policy = baseline_policy("cascade", Knowledge(catalogue(), max_turns=3), codec().turn)
    conversation = Conversation(item, [1])
    for said in (UNSURE, f"{NO_ANSWER}it refused]"):
        (generation,) = asyncio.run(policy.generate([conversation], [64]))
        text = codec().decode(generation.ids)
        called = next(tool for tool in tools if f'"{tool}"' in text)
        conversation.turns.append(Turn(ids=(1,), text=text, call=ToolCall(name=called), observation=said))
    (generation,) = asyncio.run(policy.generate([conversation], [64]))
    assert codec().decode(generation.ids).endswith(UNSURE)


def test_lessons_hold_what_every_expert_said(tmp_path: Path) -> None:
    tools = toolkit(tmp_path)
    calls = [{"name": "calculator", "arguments": {"expression": "37*24"}}]
    items = [question("who wrote Opal?", "gpt-5"), example("e2", golden_calls=calls)]
    (lesson,) = asyncio.run(take_lessons(items, tools))
    said = {name: tools.expert(name).reply("who wrote Opal?") for name in catalogue().names(ToolKind.EXPERT)}
    assert lesson.right == {name: float(reply == "Tesk") for name, reply in said.items()}
    assert lesson.unsure == {name for name, reply in said.items() if reply == UNSURE}


def test_what_no_rule_can_tell_the_judge_decides_under_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
    endpoint = JudgeEndpoint(JudgeSettings(model="judge-2025-01-31", price="openai/o3-mini"), PRICE)
    tools = toolkit(tmp_path, budget=budget, judge=endpoint)
    experts = catalogue().names(ToolKind.EXPERT)
    asked = question("who wrote Opal?", *experts)
    judged = Verifier(kind="judge", answer="it was written by the composer whom everybody calls Tesk")
    item = asked.model_copy(update={"verifier": judged})

    def verdict(request: dict[str, Any]) -> tuple[int, Any, float]:
        return 200, answer(f"Decision: {'TRUE' if 'Answer: Tesk' in request['messages'][0]['content'] else 'FALSE'}"), 0

    monkeypatch.setenv(KEY, "sk-judge-secret")
    said = {name: tools.expert(name).reply("who wrote Opal?") for name in experts}
    with serving(verdict) as double:
        monkeypatch.setenv(URL, double.url)
        (lesson,) = asyncio.run(take_lessons([item], tools))
        assert len(double.asked) == len(set(said.values())), "equal replies are judged once"
        right = asyncio.run(who_is_right([item], tools))
    assert lesson.right == {name: float(reply == "Tesk") for name, reply in said.items()}
    assert right == asyncio.run(who_is_right([asked], tools)) and right["e1"] is not None
    assert budget.by_component()[Component.JUDGE].cost_usd > 0


def test_an_expert_whose_judge_failed_is_no_wrong_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-judge-secret")
    monkeypatch.setattr("orchestra.tools.chat.client.RETRIED", frozenset[int]())
    endpoint = JudgeEndpoint(JudgeSettings(model="judge-2025-01-31", price="openai/o3-mini"), PRICE)
    tools = toolkit(tmp_path, budget=Budget(tmp_path / "ledger.jsonl", Decimal(1)), judge=endpoint)
    asked = question("who wrote Opal?", *catalogue().names(ToolKind.EXPERT))
    item = asked.model_copy(update={"verifier": Verifier(kind="judge", answer="what nobody ever says about this")})
    with serving([(500, "down", 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        (lesson,) = asyncio.run(take_lessons([item], tools))
        with pytest.raises(JudgeError, match=r"no verdict on what \S+ said"):
            asyncio.run(who_is_right([item], tools))
    assert lesson.right == {}


def test_names_with_a_knob_are_rules_and_others_are_errors() -> None:
    assert set(rivals()) >= set(BASELINES) and len(rivals()) == len(set(rivals()))
    for name in rivals():
        assert callable(find_rule(name)(Knowledge(catalogue())))
    assert frontier("cascade") == ["cascade", "cascade@0", "cascade@1", "cascade@2", "cascade@3"]
    knobs = [entry.knobs for entry in BASELINES.values()]
    assert all(list(settings) == sorted(set(settings)) for settings in knobs)
    for wrong in ("cascade@", "cascade@much", "oracle@1", "nobody@1"):
        with pytest.raises(ConfigError, match="no baseline named"):
            find_rule(wrong)


@settings(max_examples=60, deadline=None)
@given(
    chances=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    low=st.floats(0, 100),
    more=st.floats(0, 100),
)
def test_a_greater_lambda_never_asks_a_dearer_expert(chances: list[float], low: float, more: float) -> None:
    left = offer("gpt-5", "gpt-5-mini", "qwen3-32b", "claude-opus-4.1")
    chance = {spec.tool: value for spec, value in zip(left, chances, strict=True)}
    cheap, dear = (pick(chance, left, weight, first=True) for weight in (low + more, low))
    assert cheap is not None and dear is not None and cheap.call_usd <= dear.call_usd
