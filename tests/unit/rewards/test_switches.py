"""What each switch of the reward promises, as properties over random groups, preferences and toolboxes."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.config.reward import RewardParams
from orchestra.evaluation.outcomes import Unit, outcome, utility
from orchestra.rewards.advantages import Group, Normalise, advantages, step_advantages
from orchestra.rewards.group import Reward, group_rewards, weights
from orchestra.rewards.parts import dollars_of, seconds_of
from orchestra.types import Preference, Price, ToolKind, ToolSpec
from tests.support.worlds import episode, example
from tests.unit.rewards.test_group import TOOLS, dollars, groups, preferences, seconds, value

WIDE = 1e9
kinds = st.sampled_from(["any", "prefer", "avoid"])
units = st.sampled_from([{"unit": "group"}, {"unit": "example"}, {"unit": "fixed", "unit_usd": 0.05, "unit_s": 20.0}])


def shaped(unit: dict[str, Any], **others: Any) -> RewardParams:
    return RewardParams(**unit, **others)


shapes = st.builds(
    shaped,
    units,
    unit_ceiling=st.floats(1, 5),
    among=st.sampled_from(["all", "solved"]),
    homogeneity=st.sampled_from(["group", "part"]),
    scale=st.sampled_from(["group", "batch", "none"]),
    batch_normalise=st.booleans(),
    liked=st.sampled_from(["count", "use", "share"]),
)
orders = st.sampled_from(["sum_then_normalise", "normalise_then_sum"])
toolboxes = st.lists(st.tuples(dollars, seconds), max_size=4)
many = settings(max_examples=150, deadline=None)


def spec(name: str, usd: Decimal | float | str, latency_s: float) -> ToolSpec:
    return ToolSpec(
        name=name, tool=name, kind=ToolKind.EXPERT, description="", parameters={}, price=Price(),
        call_usd=Decimal(str(usd)), latency_s=latency_s,
    )  # fmt: skip


def toolbox(costs: list[tuple[Decimal, float]]) -> tuple[ToolSpec, ...]:
    names = [*TOOLS, "other", "another"]
    return tuple(spec(name, usd, latency_s) for name, (usd, latency_s) in zip(names, costs, strict=False))


def score(
    rows: list[dict[str, Any]], wish: Preference, shape: RewardParams, tools: tuple[ToolSpec, ...]
) -> list[Reward]:
    return group_rewards([episode(**row) for row in rows], wish, shape=shape, toolbox=tools)


@many
@given(groups, preferences, kinds, shapes, toolboxes, st.data())
def test_every_shape_keeps_the_properties_of_a_reward(
    rows: list[dict[str, Any]], wish: Preference, kind: str, shape: RewardParams, costs: list[Any], data: st.DataObject
) -> None:
    wish, tools = wish.model_copy(update={"kind": kind}), toolbox(costs)
    index = data.draw(st.integers(0, len(rows) - 1))
    rows[index]["solved"] = True
    found = score(rows, wish, shape, tools)
    values = [value(reward) for reward in found]
    bound = sum(weights(wish, shape=shape, toolbox=tools).values())
    assert all(0 <= one <= bound + 1e-9 for one in values)
    failed = [one for one, row in zip(values, rows, strict=True) if not row["solved"]]
    assert not any(failed)
    assert all(sum(r.parts.values()) == pytest.approx(value(r), abs=1e-12) for r in found)
    order = data.draw(st.permutations(range(len(rows))))
    assert score([rows[i] for i in order], wish, shape, tools) == [found[i] for i in order]
    field, more = data.draw(st.sampled_from([("cost_usd", dollars), ("latency_s", seconds)]))
    worse = {**rows[index], field: rows[index][field] + data.draw(more)}
    after = score([*rows[:index], worse, *rows[index + 1 :]], wish, shape, tools)
    assert value(after[index]) <= values[index] + 1e-12
    same = score([rows[index]] * 3, wish, shape, tools)
    assert len({reward.value for reward in same}) == 1
    assert shape.unit != "group" or same[0].value == 0


@many
@given(groups, preferences, kinds, shapes, orders, toolboxes, st.floats(0, 0.3))
def test_every_shape_ranks_solved_episodes_above_failed_ones(
    rows: list[dict[str, Any]], wish: Preference, kind: str, shape: RewardParams, order: Normalise, costs: list[Any],
    min_std: float,
) -> None:  # fmt: skip
    wish, tools = wish.model_copy(update={"kind": kind}), toolbox(costs)
    found = advantages(
        score(rows, wish, shape, tools), weights(wish, shape=shape, toolbox=tools), min_std=min_std, clip=WIDE,
        normalise=order, shape=shape,
    )  # fmt: skip
    failed = [one for one, row in zip(found, rows, strict=True) if not row["solved"]]
    solved = [one for one, row in zip(found, rows, strict=True) if row["solved"]]
    assert not (failed and solved) or min(solved) >= max(failed) - 1e-6
    assert all(abs(one) < WIDE for one in found)


CHEAP = Preference(kind="cheap", words="", outcome=1, compute=0.6, latency=0)
APART = RewardParams(homogeneity="part", among="solved")
SOLVED: list[dict[str, Any]] = [{"cost_usd": cost} for cost in (1, 1, 1, 1, 9, 9, 9, 9)]


def of_group(
    rows: list[dict[str, Any]], wish: Preference, shape: RewardParams, order: Normalise = "normalise_then_sum",
    min_std: float = 0.1, tools: tuple[ToolSpec, ...] = (),
) -> list[float]:  # fmt: skip
    rewards = score(rows, wish, shape, tools)
    weighed = weights(wish, shape=shape, toolbox=tools)
    return advantages(rewards, weighed, min_std=min_std, clip=WIDE, normalise=order, shape=shape)


@pytest.mark.parametrize("order", ["sum_then_normalise", "normalise_then_sum"])
def test_a_group_that_is_all_solved_trains_on_its_dollars_at_low_weights_too(order: Normalise) -> None:
    small = CHEAP.model_copy(update={"compute": 0.1})
    assert not any(of_group(SOLVED, small, RewardParams(), order))
    found = of_group(SOLVED, small, RewardParams(homogeneity="part"), order)
    assert found[0] > 0 > found[-1]


def test_a_part_that_is_alike_is_left_out_and_the_others_train() -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": cost} for cost in (1, 2, 3)] + [{"solved": False, "cost_usd": 0}]
    tools = (spec("one", "0.001", 1), spec("other", 100, 1))
    wish = CHEAP.model_copy(update={"compute": 0.5})
    absolute = RewardParams(homogeneity="part", unit="example", among="solved", scale="none")
    # Between 0.001 and 100 dollars 1, 2 and 3 are alike: only being right trains.
    assert of_group(rows, wish, absolute, tools=tools) == pytest.approx([0.25, 0.25, 0.25, -0.75])


def test_the_weight_survives_where_all_are_solved_only_without_the_sum_s_division() -> None:
    """Eq. 3 gives a neutral and a cheap user the same; per part, and without std, each gets what P says."""
    neutral = CHEAP.model_copy(update={"compute": 0.15})
    summed = [of_group(SOLVED, wish, RewardParams(), "sum_then_normalise", 0.0)[0] for wish in (neutral, CHEAP)]
    assert summed == pytest.approx([0.935, 0.935], abs=2e-3)
    apart = [of_group(SOLVED, wish, APART)[0] for wish in (neutral, CHEAP)]
    assert apart == pytest.approx([0.15 * 0.935, 0.6 * 0.935], abs=1e-3)
    plain = [
        of_group(SOLVED, wish, RewardParams(scale="none"), "sum_then_normalise", 0.0)[0] for wish in (neutral, CHEAP)
    ]
    assert plain == pytest.approx([0.075, 0.3])


def test_dollars_of_failed_episodes_set_no_end_and_no_mean_among_the_solved() -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": 1}, {"cost_usd": 2}, {"solved": False, "cost_usd": 0}]
    assert [reward.parts.get("compute") for reward in score(rows, CHEAP, APART, ())] == [0.6, 0.0, None]
    found = of_group(rows, CHEAP, RewardParams(among="solved", scale="none"), min_std=0)
    # Outcome: 1/3, 1/3, -2/3; compute among the two solved: 0.3, -0.3.
    assert found == pytest.approx([1 / 3 + 0.3, 1 / 3 - 0.3, -2 / 3])


def test_a_failed_episode_is_put_no_higher_than_the_least_solved_one() -> None:
    wish = Preference(kind="cheap", words="", outcome=0.1, compute=1, latency=0)
    rows: list[dict[str, Any]] = [{"cost_usd": cost} for cost in (0, 0, 0, 0, 9)] + [{"solved": False}]
    found = of_group(rows, wish, APART)
    assert found[5] == found[4] < 0


ENDS = (spec("cheap", "0.001", 2), spec("strong", "0.101", 52), spec("middling", "0.01", 20))
ABSOLUTE = RewardParams(unit="example", unit_ceiling=1.0)


def test_an_absolute_dollar_is_worth_the_same_in_every_group() -> None:
    one: list[dict[str, Any]] = [{"cost_usd": "0.001"}, {"cost_usd": "0.011"}]
    other: list[dict[str, Any]] = [{"cost_usd": "0.001"}, {"cost_usd": "0.101"}, {"cost_usd": "0.011"}]
    first = [value(reward) for reward in score(one, CHEAP, ABSOLUTE, ENDS)]
    second = [value(reward) for reward in score(other, CHEAP, ABSOLUTE, ENDS)]
    assert first == pytest.approx([1.6, 1.54]) and second == pytest.approx([1.6, 1.0, 1.54])
    # Eq. 2 takes the most expensive of the group for the worst there is.
    assert [value(r) for r in score(one, CHEAP, RewardParams(), ENDS)] == pytest.approx([0.6, 0.0])


@given(st.lists(dollars, min_size=2, max_size=6), dollars)
def test_one_expensive_episode_changes_nobody_else_s_absolute_reward(costs: list[Decimal], outlier: Decimal) -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": cost} for cost in costs]
    with_it = score([*rows, {"cost_usd": outlier}], CHEAP, ABSOLUTE, ENDS)
    assert with_it[:-1] == score(rows, CHEAP, ABSOLUTE, ENDS)


def test_the_ceiling_says_up_to_where_dollars_are_told_apart() -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": usd} for usd in ("0.101", "0.201", "0.5")]
    one, two = (RewardParams(unit="example", unit_ceiling=ceiling) for ceiling in (1.0, 2.0))
    assert [r.parts["compute"] for r in score(rows, CHEAP, one, ENDS)] == pytest.approx([0, 0, 0])
    assert [r.parts["compute"] for r in score(rows, CHEAP, two, ENDS)] == pytest.approx([0.3, 0, 0])


@pytest.mark.parametrize("ceiling", [1.0, 3.0])
def test_the_ends_of_one_price_and_of_tools_without_an_expert(ceiling: float) -> None:
    shape = RewardParams(unit="example", unit_ceiling=ceiling)
    one = spec("one", "0.2", 5)
    basic = [each.model_copy(update={"kind": ToolKind.BASIC}) for each in (one, spec("other", "0.1", 8))]
    assert (dollars_of([one, *basic], shape), seconds_of([one, *basic], shape)) == (
        (-0.2 * ceiling, 0),
        (-5 * ceiling, 0),
    )
    assert dollars_of(basic, shape) == pytest.approx((-0.1 - 0.1 * ceiling, -0.1))
    assert seconds_of(basic, shape) == (-5 - 3 * ceiling, -5)


@pytest.mark.parametrize("tools", [(), (spec("free", 0, 0),)])
def test_without_a_price_in_the_toolbox_dollars_add_nothing(tools: tuple[ToolSpec, ...]) -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": 1}, {"cost_usd": 2}]
    assert [r.parts["compute"] for r in score(rows, CHEAP, ABSOLUTE, tools)] == [0.0, 0.0]


LIKE = Preference(kind="prefer", words="", outcome=1, compute=0, latency=0, tools={"gpt-5": 0.5})
NOT = Preference(kind="avoid", words="", outcome=1, compute=0, latency=0, tools={"search": 0.25, "other": 0.25})
OFFERED = (spec("gpt-5", 1, 1), spec("search", 1, 1), spec("other", 1, 1))


def tool_part(calls: list[dict[str, int]], wish: Preference, shape: RewardParams) -> list[float]:
    found = score([{"calls": one} for one in calls], wish, shape, OFFERED)
    return [sum(v for k, v in reward.parts.items() if ":" in k) for reward in found]


@pytest.mark.parametrize("unit", ["group", "example"])
def test_repeating_a_liked_tool_pays_as_published_and_only_its_use_pays_otherwise(unit: Any) -> None:
    calls = [{"gpt-5": count} for count in (0, 1, 2, 3, 4)]
    assert tool_part(calls, LIKE, RewardParams()) == pytest.approx([0, 0.125, 0.25, 0.375, 0.5])
    assert tool_part(calls, LIKE, RewardParams(liked="use", unit=unit)) == pytest.approx([0, 0.5, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("unit", ["group", "example"])
def test_using_a_disliked_tool_costs_and_using_many_others_earns_nothing(unit: Any) -> None:
    calls = [{"gpt-5": 1}, {"search": 1}, {"search": 1, "other": 1}, {}, {"search": 1, "gpt-5": 1}]
    assert tool_part(calls, NOT, RewardParams(liked="use", unit=unit)) == pytest.approx([0, 0.25, 0.25, 0.25, 0])
    # As published, whoever uses the disliked one beside the others loses nothing by it.
    published = tool_part(calls, NOT, RewardParams())
    assert published[4] == published[1]


def group_of(values: list[float]) -> Group:
    return Group([Reward(v, {"outcome": v}) for v in values], {"outcome": 1.0})


def test_the_divisor_is_the_group_s_the_step_s_or_none() -> None:
    step = [group_of([0.0, 1.0]), group_of([0.0, 0.5])]
    found = {
        scale: step_advantages(step, min_std=0, clip=WIDE, shape=RewardParams(scale=scale))
        for scale in ("group", "batch", "none")
    }
    assert found["none"] == [[-0.5, 0.5], [-0.25, 0.25]]
    assert found["group"][0] == pytest.approx(found["group"][1], abs=1e-3)
    # The standard deviation of 0, 1, 0, 0.5 is 0.4787.
    assert found["batch"][0] == pytest.approx([-0.5 / 0.4788, 0.5 / 0.4788], abs=1e-3)
    assert found["batch"][1] == pytest.approx([one / 2 for one in found["batch"][0]])


def test_the_step_s_divisor_is_of_the_solved_where_they_alone_have_the_part() -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": 1}, {"cost_usd": 2}, {"solved": False}, {"solved": False}]
    weighed, shape = weights(CHEAP), RewardParams(among="solved", scale="batch")
    step = [Group(score(rows[:last], CHEAP, shape, ()), weighed) for last in (3, 4)]
    for found in step_advantages(step, min_std=0, clip=WIDE, normalise="normalise_then_sum", shape=shape):
        # Of the four solved episodes' 1, 0, 1, 0.
        assert found[0] - found[1] == pytest.approx(0.6 / 3**-0.5, rel=1e-3)


@given(st.lists(st.lists(st.floats(0, 2), min_size=2, max_size=5), min_size=1, max_size=5), orders)
def test_a_step_normalised_together_has_mean_0_and_spread_1(values: list[list[float]], order: Normalise) -> None:
    groups_ = [group_of(one) for one in values]
    found = step_advantages(
        groups_, min_std=0.01, clip=WIDE, normalise=order, shape=RewardParams(batch_normalise=True, scale="none")
    )
    plain = step_advantages(groups_, min_std=0.01, clip=WIDE, normalise=order, shape=RewardParams(scale="none"))
    live = [one for group, before in zip(found, plain, strict=True) for one in group if any(before)]
    assert all(not any(group) for group, before in zip(found, plain, strict=True) if not any(before))
    if live:
        assert sum(live) == pytest.approx(0, abs=1e-6)
        spread = (sum(one * one for one in live) / (len(live) - 1)) ** 0.5
        assert spread == pytest.approx(1, abs=0.02)


@given(groups, preferences, orders, shapes)
def test_equal_shares_are_no_shares(
    rows: list[dict[str, Any]], wish: Preference, order: Normalise, shape: RewardParams
) -> None:
    rewards, weighed = score(rows, wish, shape, ()), weights(wish, shape=shape)
    even = advantages(
        rewards, weighed, min_std=0.1, clip=WIDE, normalise=order, shape=shape, shares=[1 / len(rows)] * len(rows)
    )
    assert even == pytest.approx(
        advantages(rewards, weighed, min_std=0.1, clip=WIDE, normalise=order, shape=shape), abs=1e-6
    )


def test_shares_make_an_expected_gradient() -> None:
    """Choices made in 90, 9 and 1 of 100 samples: what three episodes say is what 300 samples would."""
    chances, values = [0.9, 0.09, 0.01], [0.2, 1.0, 1.0]
    shape = RewardParams(scale="none")
    found = advantages([Reward(v, {}) for v in values], min_std=0, clip=WIDE, shape=shape, shares=chances)
    sampled = [v for v, p in zip(values, chances, strict=True) for _ in range(round(300 * p))]
    every = advantages([Reward(v, {}) for v in sampled], min_std=0, clip=WIDE, shape=shape)
    by_choice = [sum(every[:270]), sum(every[270:297]), sum(every[297:])]
    assert [100 * one for one in found] == pytest.approx(by_choice)
    assert sum(found) == pytest.approx(0)


@many
@given(groups, preferences, kinds, shapes, orders, toolboxes, st.data())
def test_where_all_spending_counts_it_is_a_loss_solved_or_not(
    rows: list[dict[str, Any]], wish: Preference, kind: str, shape: RewardParams, order: Normalise, costs: list[Any],
    data: st.DataObject,
) -> None:  # fmt: skip
    wish, tools = wish.model_copy(update={"kind": kind}), toolbox(costs)
    unit = shape.unit if shape.unit != "group" else "example"
    shape = shape.model_copy(update={"spent": "all", "unit": unit})
    index = data.draw(st.integers(0, len(rows) - 1))
    failed, solved = ({**rows[index], "solved": is_solved} for is_solved in (False, True))
    one, other = (
        score([*rows[:index], row, *rows[index + 1 :]], wish, shape, tools)[index] for row in (failed, solved)
    )
    every, weighed = score(rows, wish, shape, tools), weights(wish, shape=shape, toolbox=tools)
    found = advantages(every, weighed, min_std=0, clip=WIDE, normalise=order, shape=shape)
    assert len(found) == len(rows) and all(abs(each) < WIDE for each in found)
    # Being right earns the outcome and the tools; what was spent is the same.
    spent = {name: part for name, part in other.parts.items() if name in ("compute", "latency")}
    assert one.parts == spent and value(one) == pytest.approx(sum(spent.values()))
    assert value(other) >= value(one)
    field, more = data.draw(st.sampled_from([("cost_usd", dollars), ("latency_s", seconds)]))
    for row, before in ((failed, one), (solved, other)):
        worse = {**row, field: row[field] + data.draw(more)}
        assert (
            value(score([*rows[:index], worse, *rows[index + 1 :]], wish, shape, tools)[index]) <= value(before) + 1e-9
        )


def test_a_part_that_nobody_earned_adds_nothing() -> None:
    """Of a group that is all failed, dollars alone tell the episodes apart."""
    rows: list[dict[str, Any]] = [{"solved": False, "cost_usd": cost} for cost in (1, 3)]
    shape = RewardParams(unit="example", spent="all", among="solved", scale="none")
    wish = LIKE.model_copy(update={"compute": 0.5})
    plain = of_group(rows, wish.model_copy(update={"tools": {}}), shape, min_std=0, tools=OFFERED)
    assert of_group(rows, wish, shape, min_std=0, tools=OFFERED) == plain and plain[0] > 0 > plain[1]


def test_a_loss_has_no_bound() -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": cost, "solved": cost != 3} for cost in (1, 2, 3, 5)]
    tools, shape = (spec("one", 1, 1), spec("other", 2, 1)), RewardParams(unit="example", unit_ceiling=1, spent="all")
    assert [value(one) for one in score(rows, CHEAP, shape, tools)] == pytest.approx([1, 0.4, -1.2, -1.4])


def test_a_liked_tool_earns_its_share_of_the_calls() -> None:
    calls: list[dict[str, int]] = [{"other": 1}, {TOOLS[0]: 1}, {TOOLS[0]: 3}, {TOOLS[0]: 1, "other": 3}]
    assert tool_part(calls, LIKE, RewardParams(liked="share", unit="example")) == pytest.approx([0, 0.5, 0.5, 0.125])


@many
@given(groups, preferences, st.floats(1e-4, 1), st.floats(0.1, 500))
def test_with_fixed_units_the_reward_can_be_utility(
    rows: list[dict[str, Any]], wish: Preference, usd: float, seconds_each: float
) -> None:
    """What evaluation measures, by its own function."""
    shape = RewardParams(unit="fixed", unit_usd=usd, unit_s=seconds_each, unit_ceiling=1, spent="all", liked="share")
    tools = toolbox([(Decimal(1), 1.0)] * 4)
    asked = example(toolbox=list(tools), preference=wish)
    measure = Unit(cost_usd=usd, latency_s=seconds_each)
    made = [episode(**row) for row in rows]
    for one, reward in zip(made, group_rewards(made, wish, shape=shape, toolbox=tools), strict=True):
        assert value(reward) == pytest.approx(utility(outcome(one, asked), wish, measure), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("ceiling", [1.0, RewardParams().unit_ceiling, 5.0])
@pytest.mark.parametrize("spent", ["solved", "all"])
def test_a_dollar_is_worth_what_it_is_in_utility_over_the_ceiling(ceiling: float, spent: Any) -> None:
    shape = RewardParams(unit="fixed", unit_usd=0.1, unit_s=10, unit_ceiling=ceiling, spent=spent, liked="share")
    made = [episode(cost_usd=usd, latency_s=1) for usd in (0.02, 0.07)]
    one, other = (value(reward) for reward in group_rewards(made, CHEAP, shape=shape))
    asked = example(preference=CHEAP)
    less, more = (utility(outcome(each, asked), CHEAP, Unit(cost_usd=0.1, latency_s=10)) for each in made)
    assert (one - other) * ceiling == pytest.approx(less - more)


@pytest.mark.parametrize("given_ones", [{}, {"unit_usd": 1.0}, {"unit_s": 1.0}])
def test_fixed_units_are_given_where_they_are_used(given_ones: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="both given where unit is fixed"):
        RewardParams(unit="fixed", **given_ones)


def test_units_that_are_not_in_use_change_nothing() -> None:
    rows: list[dict[str, Any]] = [{"cost_usd": cost} for cost in (1, 2)]
    tools, shape = (spec("one", 1, 1), spec("other", 2, 1)), RewardParams(unit="example", unit_ceiling=1)
    beside = shape.model_copy(update={"unit_usd": 9.0, "unit_s": 9.0})
    assert score(rows, CHEAP, beside, tools) == score(rows, CHEAP, shape, tools)
