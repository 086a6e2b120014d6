"""Mean dollars within a limit: the reward is the Lagrangian, and dual ascent finds the multiplier."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.reward import Constraint
from orchestra.config.schema import load_params
from orchestra.rewards.group import group_rewards, weights
from orchestra.rewards.limits import Limit, Multipliers
from orchestra.rewards.properties import check_weights
from orchestra.synthesis.preferences.sentences import WORDS, stated
from orchestra.types import Preference
from tests.support.worlds import ROOT, episode
from tests.unit.rewards.test_group import dollars, groups, preferences, value

STATED = Preference(kind="neutral", words="", outcome=1, compute=0.3, latency=0)
CONSTRAINT = Constraint(usd={"neutral": 0.02, "cheap": 0.005})


def test_dollars_count_by_the_multiplier_and_for_failed_episodes_too() -> None:
    rows = [episode(cost_usd="0.01"), episode(cost_usd="0.04"), episode(solved=False, cost_usd="0.01")]
    found = group_rewards(rows, STATED, limit=Limit(usd=0.02, multiplier=0.5))
    # (outcome - m · dollars / limit) / (1 + m)
    assert [value(r) for r in found] == pytest.approx([(1 - 0.25) / 1.5, (1 - 1.0) / 1.5, -0.25 / 1.5])
    assert weights(STATED, limit=Limit(0.02, 0.5)) == pytest.approx(
        {"outcome": 1 / 1.5, "latency": 0, "limit": 0.5 / 1.5}
    )
    # The multiplier is 0 as long as less is spent: only being right counts.
    assert [value(r) for r in group_rewards(rows, STATED, limit=Limit(0.02, 0.0))] == [1, 1, 0]


@given(groups, preferences, dollars, st.floats(0, 10), st.data())
def test_spending_more_never_pays_and_what_is_alike_adds_a_constant(
    rows: list[dict[str, Any]], wish: Preference, more: Any, multiplier: float, data: st.DataObject
) -> None:
    limit, index = Limit(0.02, multiplier), data.draw(st.integers(0, len(rows) - 1))
    before = [value(r) for r in group_rewards([episode(**row) for row in rows], wish, limit=limit)]
    worse = {**rows[index], "cost_usd": rows[index]["cost_usd"] + more}
    changed = [*rows[:index], worse, *rows[index + 1 :]]
    after = [value(r) for r in group_rewards([episode(**row) for row in changed], wish, limit=limit)]
    assert after[index] <= before[index] + 1e-9
    order = data.draw(st.permutations(range(len(rows))))
    assert [value(r) for r in group_rewards([episode(**rows[i]) for i in order], wish, limit=limit)] == [
        before[i] for i in order
    ]
    same = group_rewards([episode(**rows[index])] * 3, wish, limit=limit)
    assert len({r.value for r in same}) == 1


def test_a_multiplier_rises_while_too_much_is_spent_and_falls_to_0_when_less_is() -> None:
    found = Multipliers(CONSTRAINT)
    assert found.limit("neutral") == Limit(0.02, 0.0) and found.limit("fast") is None
    assert found.ascend({"neutral": [(1.0, 0.04), (1.0, 0.08)], "fast": [(1.0, 9.0)]}) == {
        "neutral": pytest.approx(0.06)
    }
    assert found.values == {"neutral": pytest.approx(0.2), "cheap": 0.0}
    found.ascend({"neutral": [(0.75, 0.0), (0.25, 0.04)]})
    assert found.values["neutral"] == pytest.approx(0.15)
    for _ in range(5):
        found.ascend({"neutral": [(1.0, 0.0)]})
    assert found.values["neutral"] == 0.0
    found.ascend({"neutral": [(1.0, 1000.0)]})
    assert found.values["neutral"] == CONSTRAINT.most


def test_dual_ascent_meets_the_limit_of_a_population_that_answers_prices() -> None:
    """Each of 100 questions is worth an expensive expert's 5 cents up to its own price of a dollar."""
    found = Multipliers(Constraint(usd={"neutral": 0.02}, rate=0.05))
    worth = [place / 10 for place in range(100)]
    spent = []
    for _ in range(2000):
        limit = found.limit("neutral")
        assert limit is not None
        rows = [(1.0, 0.05 if gain > limit.multiplier * 0.05 / limit.usd else 0.001) for gain in worth]
        spent.append(found.ascend({"neutral": rows})["neutral"])
    assert sum(spent[-500:]) / 500 == pytest.approx(0.02, rel=0.02)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_logged_measures_restore_the_state_exactly(costs: list[float]) -> None:
    whole, first = Multipliers(CONSTRAINT), Multipliers(CONSTRAINT)
    for cost in costs:
        whole.ascend({"neutral": [(1.0, cost)], "cheap": [(1.0, cost / 2)]})
    for cost in costs[:-1]:
        first.ascend({"neutral": [(1.0, cost)], "cheap": [(1.0, cost / 2)]})
    second = Multipliers(CONSTRAINT)
    second.restore(first.measures())
    second.ascend({"neutral": [(1.0, costs[-1])], "cheap": [(1.0, costs[-1] / 2)]})
    assert second.values == whole.values


def test_the_check_before_a_training_passes_what_this_repository_states() -> None:
    limited = load_params(ROOT / "params.yaml").grpo.model_copy(
        update={"constraint": Constraint(usd=dict.fromkeys(("neutral", *WORDS), 0.01))}
    )
    check_weights([stated(kind, "", ["a", "b", "c"], "a") for kind in ("neutral", *WORDS)], limited)
