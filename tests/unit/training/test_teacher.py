"""Who the warm-up imitates: known solutions followed, experts picked by known habits."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.schema import Habits, Rollout
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Conversation
from orchestra.tools.toolkit import Toolkit
from orchestra.training.teacher import (
    CANDIDATE_SKILL,
    FREE,
    HEEDING,
    PRICES,
    PROMISE,
    Candidate,
    Plan,
    candidates,
    grade,
    merit,
    show,
    teacher_policy,
)
from orchestra.types import Category, Episode, Example, Preference, ToolKind
from tests.support.worlds import NEUTRAL, PRICE, catalogue, codec, example, toolkit

LIMITS = Rollout(max_turns=5, max_turn_tokens=400, max_tokens=4000)
EXPERTS = [catalogue().spec(name) for name in catalogue().names(ToolKind.EXPERT)]
CAREFUL = Preference(kind="accurate", words="It must be right.", outcome=1, compute=0, latency=0)
LIKED = Preference(kind="prefer", words="I like gpt-5.", outcome=1, compute=0, latency=0, tools={"gpt-5": 0.5})
CHEAP = Preference(kind="cheap", words="Keep it cheap.", outcome=0.3, compute=1, latency=0)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


def topic(name: str = "e1", preference: Preference = NEUTRAL, instruction: str = "who wrote Opal?") -> Example:
    made = example(
        name, instruction=instruction, answer="Tesk", toolbox=EXPERTS, category=Category.TOPIC, preference=preference
    )
    return made.model_copy(update={"topic": "music"})


def taught(tools: Toolkit, items: list[Example], *, seed: int = 0, **habits: float) -> list[Episode]:
    chosen = Habits.model_validate(
        {"bias": 0.0, "follow_preference": 0.0, "random_choice": 0.0, "weigh_value": 0.0, "patience": 1.0} | habits
    )
    policy = teacher_policy(tools.catalogue, chosen, seed, codec().turn)
    return rollout(items, policy, codec(), tools, RolloutOptions(LIMITS, PRICE))


def first(run: Episode) -> str:
    assert run.turns[0].call is not None
    return run.turns[0].call.name


def test_a_known_solution_is_followed(tools: Toolkit) -> None:
    calls = ({"name": "search", "arguments": {"query": "Norvik"}},)
    (run,) = taught(tools, [example(instruction="when was Norvik founded?", answer="1911", golden_calls=calls)])
    assert [t.call.name for t in run.turns if t.call] == ["search"]
    assert run.solved


def test_the_same_seed_teaches_the_same_whatever_the_order(tools: Toolkit) -> None:
    items = [topic(f"e{i}") for i in range(12)]
    once = {e.example_id: e for e in taught(tools, items, bias=0.3, random_choice=0.3)}
    again = {e.example_id: e for e in taught(tools, items[::-1], bias=0.3, random_choice=0.3)}
    assert once == again
    other = taught(tools, items, seed=1, bias=0.3, random_choice=0.3)
    assert [first(e) for e in other] != [first(once[e.example_id]) for e in other]


def fitting() -> list[str]:
    return [s.name for s in EXPERTS if catalogue().skill(s.tool, "music") >= CANDIDATE_SKILL]


def plan_of(run: Episode) -> str:
    return run.turns[0].text.partition("\n</think>")[0].splitlines()[-1]


def test_habits_decide_the_plan(tools: Toolkit) -> None:
    items = [topic(f"e{i}") for i in range(80)]
    assert {plan_of(e) for e in taught(tools, items)} == set(FREE)
    costliest = max((s for s in EXPERTS if s.name in fitting()), key=lambda s: s.call_usd).name
    assert {(plan_of(e), first(e)) for e in taught(tools, items, bias=1.0)} == {("dear", costliest)}
    anyone = taught(tools, items, random_choice=1.0)
    assert {plan_of(e) for e in anyone} == {"any"} and {first(e) for e in anyone} - set(fitting())


def test_the_thought_names_whom_the_wish_is_about(tools: Toolkit) -> None:
    disliked = LIKED.model_copy(update={"kind": "avoid", "tools": {s.name: 0.25 for s in EXPERTS if s.name != "gpt-5"}})
    lines = {}
    for preference in (LIKED, disliked, CHEAP, NEUTRAL):
        (run,) = taught(tools, [topic(preference=preference)], follow_preference=1.0)
        lines[preference.kind] = run.turns[0].text.splitlines()[1:3]
    named = {kind: [line for line in found if line in ("like gpt-5", "not gpt-5")] for kind, found in lines.items()}
    assert named == {"prefer": ["like gpt-5"], "avoid": ["not gpt-5"], "cheap": [], "neutral": []}


def asked(run: Episode) -> list[str]:
    return [turn.call.name for turn in run.turns if turn.call is not None]


@pytest.mark.parametrize("hard", [True, False])
def test_sense_pays_for_a_strong_expert_where_a_question_is_hard(tools: Toolkit, hard: bool) -> None:
    cheap = [s.model_copy(update={"call_usd": Decimal("0.001")}) for s in EXPERTS]
    items = [topic(f"e{i}").model_copy(update={"hard": hard, "toolbox": tuple(cheap)}) for i in range(5)]
    runs = taught(tools, items, weigh_value=1.0)
    assert {plan_of(e) for e in runs} == {"value"}
    assert {grade(catalogue(), catalogue().spec(first(e)), "music") for e in runs} == {"strong" if hard else "expert"}


def music(name: str, **changes: object) -> Candidate:
    spec = catalogue().spec(name).model_copy(update=changes)
    return Candidate(spec, grade(catalogue(), spec, "music"))


@given(
    plan=st.sampled_from([*FREE, "wish"]),
    hard=st.booleans(),
    graded=st.lists(st.sampled_from(sorted(PROMISE[True])), min_size=2, max_size=2),
    usd=st.lists(st.floats(0.0001, 1), min_size=2, max_size=2),
    seconds=st.lists(st.floats(1, 300), min_size=2, max_size=2),
)
def test_a_plan_weighs_promise_against_dollars_and_seconds(
    plan: Plan, hard: bool, graded: list[str], usd: list[float], seconds: list[float]
) -> None:
    spec = EXPERTS[0]
    one, other = (
        Candidate(spec.model_copy(update={"call_usd": Decimal(repr(u)), "latency_s": s}), g)
        for u, s, g in zip(usd, seconds, graded, strict=True)
    )
    better = merit(plan, one, hard=hard) > merit(plan, other, hard=hard)
    if (one.grade == "poor") != (other.grade == "poor"):
        assert better == (other.grade == "poor")
    elif plan == "dear":
        assert better == (usd[0] > usd[1])
    else:
        compute, latency = PRICES[plan]
        promise = [PROMISE[hard][g] for g in graded]
        gain = promise[0] - promise[1] - compute * (usd[0] - usd[1]) - latency * (seconds[0] - seconds[1])
        assert better == (gain > 0) or abs(gain) < 1e-9


def test_who_wishes_for_cheap_weighs_dollars_most_and_who_wishes_for_fast_seconds() -> None:
    assert max(PRICES, key=lambda plan: PRICES[plan][0]) == HEEDING["cheap"]
    assert max(PRICES, key=lambda plan: PRICES[plan][1]) == HEEDING["fast"]
    assert all(PRICES[HEEDING["accurate"]][i] <= PRICES["value"][i] for i in (0, 1))


def test_a_liked_expert_that_does_not_suit_is_asked_first_and_another_after_it(tools: Toolkit) -> None:
    stranger = next(s for s in EXPERTS if s.name not in fitting())
    wish = Preference(kind="prefer", words="I like it.", outcome=1, compute=0, latency=0, tools={stranger.name: 0.5})
    item = topic(preference=wish)
    assert stranger.name not in {one.spec.name for one in candidates(catalogue(), item)}
    (run,) = taught(tools, [item], follow_preference=1.0, patience=0.0)
    assert asked(run)[0] == stranger.name and asked(run)[1] in fitting() and len(asked(run)) == 2
    assert stranger.name not in asked(taught(tools, [item], bias=1.0, patience=0.0)[0])


def test_an_avoided_expert_is_not_asked_whatever_the_plan_unless_nobody_else_suits(tools: Toolkit) -> None:
    names = [s.name for s in EXPERTS]
    stranger = next(name for name in names if name not in fitting())
    for avoided in fitting():
        others = dict.fromkeys(set(names) - {avoided}, 0.25)
        wish = Preference(kind="avoid", words="Not that one.", outcome=1, compute=0, latency=0, tools=others)
        item = topic(preference=wish)
        marks = {one.spec.name: one.mark for one in candidates(catalogue(), item)}
        assert marks == {name: "not" if name == avoided else "" for name in fitting()}
        (run,) = taught(tools, [item], bias=1.0)
        assert avoided not in asked(run)
        alone = item.model_copy(update={"toolbox": tuple(s for s in EXPERTS if s.name in (avoided, stranger))})
        (run,) = taught(tools, [alone], bias=1.0)
        assert asked(run)[0] == avoided


def test_where_nobody_suits_the_cheapest_that_is_not_to_be_avoided_is_asked(tools: Toolkit) -> None:
    strangers = sorted((s for s in EXPERTS if s.name not in fitting()), key=lambda s: (s.call_usd, s.name))
    wish = Preference(
        kind="avoid", words="Not that one.", outcome=1, compute=0, latency=0,
        tools={s.name: 0.25 for s in strangers[1:]},
    )  # fmt: skip
    (run,) = taught(tools, [topic(preference=wish).model_copy(update={"toolbox": tuple(strangers)})], weigh_value=1.0)
    assert asked(run)[0] == strangers[1].name


@pytest.mark.parametrize(("wish", "plan"), [(CHEAP, "cheap"), (LIKED, "wish")])
def test_a_stated_preference_is_heeded_and_an_unstated_one_is_not(tools: Toolkit, wish: Preference, plan: str) -> None:
    runs = taught(tools, [topic(f"e{i}", wish) for i in range(5)], follow_preference=1.0, bias=1.0)
    assert {plan_of(e) for e in runs} == {plan}
    assert {plan_of(e) for e in taught(tools, [topic(f"e{i}") for i in range(5)], follow_preference=1.0, bias=1.0)} == {
        "dear"
    }


def test_the_thought_lists_the_candidates_as_the_prompt_shows_them(tools: Toolkit) -> None:
    item = topic()
    (run,) = taught(tools, [item])
    prompt = codec().tokenizer.decode(list(run.prompt_ids))
    thought = run.turns[0].text.partition("</think>")[0].splitlines()
    by_price = sorted((s for s in EXPERTS if s.name in fitting()), key=lambda s: (s.call_usd, s.name))
    assert thought[1:-1] == ["music", *(show(music(s.name)) for s in by_price)]
    assert show(replace(music("gpt-5"), mark="like")) == f"{show(music('gpt-5'))} like"
    assert thought[-1] in FREE
    for spec, line in zip(by_price, thought[2:-1], strict=True):
        price, seconds, _, name = line.split()
        assert f"{spec.description}: {price} {seconds} {name}\n" in prompt


def test_a_grade_says_what_a_description_promises() -> None:
    grades = {s.name: grade(catalogue(), s, "math") for s in EXPERTS if catalogue().skill(s.tool, "math") >= 0.38}
    for spec in EXPERTS:
        words = set(spec.description.replace(",", "").split())
        if spec.name in grades and "math" not in words:
            assert grades[spec.name] in words
        elif spec.name in grades:
            assert grades[spec.name] == ("some" if words & {"some", "easy"} else "expert")


def test_a_hard_question_is_called_hard(tools: Toolkit) -> None:
    (run,) = taught(tools, [topic().model_copy(update={"hard": True})])
    assert run.turns[0].text.splitlines()[1] == "music hard"


def test_patience_is_how_often_it_asks_on(tools: Toolkit) -> None:
    """A question in nobody's book: every expert is unsure."""
    item = topic(instruction="who wrote Nothing?")
    (patient,), (not_so,) = taught(tools, [item], weigh_value=1.0), taught(tools, [item], weigh_value=1.0, patience=0.0)
    worth = [s.name for s in EXPERTS if s.name in fitting() and s.call_usd < Decimal("0.2")]
    assert set(worth) <= set(asked(patient)) <= set(fitting())
    assert len(asked(not_so)) == 1
    assert not_so.answer == "I am not sure."


def test_no_expert_left_is_an_answer(tools: Toolkit) -> None:
    item = topic().model_copy(update={"toolbox": ()})
    policy = teacher_policy(
        tools.catalogue,
        Habits(bias=1, follow_preference=1, random_choice=1, weigh_value=0, patience=1),
        0,
        codec().turn,
    )
    (run,) = rollout([item], policy, codec(), tools, RolloutOptions(LIMITS, PRICE))
    assert run.answer == "I am not sure."
    assert Conversation(item, list(run.prompt_ids)).ids == list(run.prompt_ids)
