"""The properties that PAPER.md asks of Eq. 1-2."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import ConfigError
from orchestra.rewards.group import Reward, group_rewards, weights
from orchestra.rewards.registry import Parts, terms
from orchestra.types import Episode, Preference
from tests.support.worlds import episode

TOOLS = ("gpt-5", "search")
unit = st.floats(0, 1)
dollars = st.one_of(st.just(0.0), st.floats(1e-6, 100.0)).map(lambda x: Decimal(str(round(x, 6))))
seconds = st.floats(0, 10_000).map(lambda x: round(x, 3))
counts = st.fixed_dictionaries({name: st.integers(0, 3) for name in TOOLS})
rows: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, solved=st.sampled_from([True, True, False]), cost_usd=dollars, latency_s=seconds, calls=counts
)
groups = st.lists(rows, min_size=1, max_size=8)
preferences = st.builds(
    Preference,
    kind=st.just("any"),
    words=st.just(""),
    outcome=unit,
    compute=unit,
    latency=unit,
    tools=st.dictionaries(st.sampled_from(TOOLS), unit),
)


def features(run: Episode) -> dict[str, float]:
    """M of Eq. 1: minus dollars, minus seconds, the outcome, and how many calls of each of `TOOLS` ran."""
    every = Preference(kind="", words="", outcome=1, compute=1, latency=1, tools=dict.fromkeys(TOOLS, 1.0))
    return {term.name: term.measure(run) for term in terms(every) if term.weight > 0}


def score(rows: list[dict[str, Any]], preference: Preference, malformed: str = "zero") -> list[Reward]:
    return group_rewards([episode(**row) for row in rows], preference, malformed=malformed)


def value(reward: Reward) -> float:
    assert reward.value is not None
    return reward.value


@given(groups, preferences, st.data())
def test_raising_the_cost_or_latency_of_a_solved_rollout_never_raises_its_reward(
    rows: list[dict[str, Any]], preference: Preference, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(rows) - 1))
    rows[index]["solved"] = True
    before = value(score(rows, preference)[index])
    field = data.draw(st.sampled_from(["cost_usd", "latency_s"]))
    costlier = dict(rows[index])
    costlier[field] = rows[index][field] + data.draw(dollars if field == "cost_usd" else seconds)
    after = value(score([*rows[:index], costlier, *rows[index + 1 :]], preference)[index])
    assert after <= before + 1e-12


@given(groups, preferences)
def test_solved_never_below_failed_and_within_zero_and_the_sum_of_weights(
    rows: list[dict[str, Any]], preference: Preference
) -> None:
    rewards = score(rows, preference)
    bound = sum(weights(preference).values())
    for row, reward in zip(rows, rewards, strict=True):
        assert 0 <= value(reward) <= bound + 1e-9
        if not row["solved"]:
            assert reward.value == 0.0
            assert reward.reason == "wrong answer"


@given(groups, preferences)
def test_the_parts_add_up_to_the_value(rows: list[dict[str, Any]], preference: Preference) -> None:
    for reward in score(rows, preference):
        assert sum(reward.parts.values()) == pytest.approx(value(reward), abs=1e-12)
        assert set(reward.parts) <= set(weights(preference))


@given(groups, preferences)
def test_constant_features_contribute_nothing(rows: list[dict[str, Any]], preference: Preference) -> None:
    measured = [features(episode(**row)) for row in rows]
    constant = {name for name in measured[0] if len({row[name] for row in measured}) == 1}
    for reward in score(rows, preference):
        assert all(reward.parts.get(name, 0.0) == 0.0 for name in constant)


@given(groups, preferences, st.data())
def test_permuting_a_group_permutes_its_rewards(
    rows: list[dict[str, Any]], preference: Preference, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    straight = score(rows, preference)
    assert score([rows[i] for i in order], preference) == [straight[i] for i in order]


@given(st.lists(dollars, min_size=2, max_size=8), st.floats(0.01, 1), seconds, counts)
def test_a_group_that_is_all_solved_prefers_the_cheaper(
    costs: list[Decimal], compute: float, latency_s: float, calls: dict[str, int]
) -> None:
    preference = Preference(kind="cheap", words="", outcome=1, compute=compute, latency=0.5)
    rewards = score([{"cost_usd": c, "latency_s": latency_s, "calls": calls} for c in costs], preference)
    for one, first in zip(costs, rewards, strict=True):
        for other, second in zip(costs, rewards, strict=True):
            if one < other:
                assert value(first) > value(second)


@given(groups, preferences, st.data())
def test_an_infrastructure_failure_is_left_out_not_scored_zero(
    rows: list[dict[str, Any]], preference: Preference, data: st.DataObject
) -> None:
    """Its dollars and seconds do not even enter the others' normalisation."""
    alone = score(rows, preference)
    index = data.draw(st.integers(0, len(rows)))
    dead = {"solved": None, "cost_usd": Decimal(1000), "latency_s": 1e6}
    rewards = score([*rows[:index], dead, *rows[index:]], preference)
    assert rewards.pop(index) == Reward(None, {}, "infrastructure")
    assert rewards == alone


def test_a_group_of_failures_only_has_no_value_at_all() -> None:
    assert [r.value for r in score([{"solved": None}, {"solved": None}], EVERYTHING)] == [None, None]


EVERYTHING = Preference(kind="prefer", words="", outcome=1, compute=1, latency=1, tools={"search": 1})
BROKEN: list[dict[str, Any]] = [
    {"parse_error": "error: not JSON", "cost_usd": 0},
    {"solved": False, "answer": None, "cost_usd": 0},
]


@pytest.mark.parametrize("broken", BROKEN)
def test_malformed_zero_keeps_the_rollout_and_drop_leaves_it_out(broken: dict[str, Any]) -> None:
    good: list[dict[str, Any]] = [{"cost_usd": 1}, {"cost_usd": 2}]
    assert not episode(**broken).well_formed
    kept = score([*good, broken], EVERYTHING, "zero")
    assert kept[2].value is not None
    # At no cost it sets the maximum, so the cheaper of the two good ones no longer has the whole compute weight.
    assert kept[0].parts["compute"] == pytest.approx(0.5)
    dropped = score([*good, broken], EVERYTHING, "drop")
    assert dropped[2] == Reward(None, {}, "malformed")
    assert dropped[0].parts["compute"] == 1.0


ABLATED: list[tuple[Parts, set[str]]] = [
    ("outcome", {"outcome"}),
    ("efficiency", {"outcome", "compute", "latency"}),
    ("full", {"outcome", "compute", "latency", "tool:search"}),
]


@pytest.mark.parametrize(("parts", "left"), ABLATED)
@given(rows=groups)
def test_an_ablated_reward_is_the_full_one_without_the_other_parts(
    parts: Parts, left: set[str], rows: list[dict[str, Any]]
) -> None:
    assert set(weights(EVERYTHING, parts)) == left
    made = [episode(**row) for row in rows]
    for full, part in zip(group_rewards(made, EVERYTHING), group_rewards(made, EVERYTHING, parts=parts), strict=True):
        assert part.parts == {name: earned for name, earned in full.parts.items() if name in left}
        assert value(part) == sum(part.parts.values())
        assert part.reason == full.reason


def test_a_call_that_never_ran_earns_no_preference() -> None:
    """Otherwise free calls with bad arguments would be the way to please a user who prefers a tool."""
    ran = episode(calls={"search": 1})
    refused = ran.model_copy(update={"turns": (ran.turns[0].model_copy(update={"charges": ()}), ran.turns[1])})
    assert ran.tool_counts == {"search": 1}
    assert refused.tool_counts == {}


def test_cost_and_latency_count_every_charge() -> None:
    run: Episode = episode(cost_usd="0.25", latency_s=3, calls={"gpt-5": 2})
    assert features(run) == {
        "tool:gpt-5": 2.0,
        "tool:search": 0.0,
        "outcome": 1.0,
        "compute": -0.25,
        "latency": -3.0,
    }


@pytest.mark.parametrize("wrong", [{"malformed": "Drop"}, {"parts": "outcomes"}])
def test_a_misspelt_switch_is_refused(wrong: dict[str, Any]) -> None:
    plain = Preference(kind="", words="", outcome=1, compute=0, latency=0)
    with pytest.raises(ConfigError, match=rf"{next(iter(wrong))} is '.*write one of"):
        group_rewards([episode()], plain, **wrong)
