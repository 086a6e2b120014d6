"""The frontier over turn limits and preferences: what is tried, what is counted, what is drawn."""

from pathlib import Path

import pytest

from orchestra.evaluation.analyses.frontier import (
    FrontierAnalysis,
    by_kind,
    given,
    metrics,
    plot,
    point,
    settings,
    table,
)
from tests.support.worlds import NEUTRAL, episode, example

CHEAP = NEUTRAL.model_copy(update={"kind": "cheap", "words": "save.", "compute": 0.9})
TIGHT = CHEAP.model_copy(update={"words": "money is tight."})
NAMED = NEUTRAL.model_copy(update={"kind": "prefer", "tools": {"gpt-5": 1.0}})
EXAMPLES = [example(f"e{n}", preference=one) for n, one in enumerate((NEUTRAL, CHEAP, TIGHT, NAMED))]


def test_turn_limits_come_first_and_then_the_kinds_that_suit_any_example() -> None:
    kinds = by_kind(EXAMPLES)
    assert {kind: len(found) for kind, found in kinds.items()} == {"cheap": 2, NEUTRAL.kind: 1}
    made = settings([3, 1, 3], 8, list(kinds))
    assert [(one.name, one.max_turns, one.preference) for one in made] == [
        ("1 turn", 1, ""),
        ("3 turns", 3, ""),
        ("cheap", 8, "cheap"),
        (NEUTRAL.kind, 8, NEUTRAL.kind),
    ]


def test_budgets_come_last_and_say_which_share_is_spent() -> None:
    made = settings([2], 2, [], [0.05, 0.002, 0.05])
    assert [(one.name, one.budget_usd) for one in made] == [("2 turns", None), ("0.002 USD", 0.002), ("0.05 USD", 0.05)]
    spent = point(made[2], [episode(cost_usd=0.02), episode(cost_usd=0.03)], EXAMPLES[:2], 50, 0)
    rows = table(
        FrontierAnalysis(policy="grpo", simulated=True, points=(point(made[0], [episode()], EXAMPLES, 50, 0), spent))
    )
    assert [row[-1] for row in rows[1:]] == ["—", "50 %"]


def test_everybody_gets_a_preference_of_the_kind_and_stays_the_same_example() -> None:
    asked = given(EXAMPLES, [CHEAP, TIGHT], 0)
    assert [one.id for one in asked] == [one.id for one in EXAMPLES]
    assert {one.preference.kind for one in asked} == {"cheap"} and asked == given(EXAMPLES, [CHEAP, TIGHT], 0)
    assert asked[1:] == given(EXAMPLES[1:], [CHEAP, TIGHT], 0), "the draw is the example's own"


def test_a_point_leaves_out_what_infrastructure_ended(tmp_path: Path) -> None:
    found = [
        episode(solved=True, cost_usd=0.02, latency_s=4),
        episode(solved=False, cost_usd=0.04, latency_s=8, calls={"gpt-5": 1}),
        episode(solved=None, cost_usd=9),
    ]
    usual = settings([1, 2], 2, ["cheap"])
    first = point(usual[0], found[:1], EXAMPLES[:1], 50, 0)
    last = point(usual[2], found, given(EXAMPLES, [CHEAP], 0), 50, 0)
    assert (last.examples, last.accuracy.value, last.turns) == (2, 0.5, 1.5)
    assert last.cost_usd.value == pytest.approx(0.03) and last.weights[1] == pytest.approx(0.9)
    analysis = FrontierAnalysis(policy="grpo", simulated=True, points=(first, last))
    assert metrics(analysis)["cheap.accuracy"] == 0.5 and metrics(analysis)["1 turn.latency_s"] == 4
    assert table(analysis)[2][:2] == ("cheap", "50.0 %")
    nothing = point(usual[1], [], EXAMPLES, 50, 0)
    assert table(analysis.model_copy(update={"points": (nothing,)}))[1][1] == "—"
    plot(analysis.model_copy(update={"points": (first, last, nothing)}), tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 1000
