"""The measures of a step, each named reason to stop, and which steps were good."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.rewards.group import Reward, group_rewards
from orchestra.training.grpo.health import (
    RECENT,
    WINDOW,
    averages,
    declined,
    failed_to_the_end,
    is_good,
    measure,
    outcomes,
    reason_to_stop,
    shares,
    trends,
)
from orchestra.types import Charge, Component, Episode, ToolCall, Turn
from tests.support.worlds import NEUTRAL, catalogue, episode, example

GOOD = {
    "failed": 0.0, "valid": 0.9, "expert_calls": 1.0, "expert_share/gpt-5": 0.5, "top_tool_share": 0.4,
    "accuracy": 0.7, "reward": 1.0, "entropy": 0.2, "dead_groups": 0.3,
}  # fmt: skip


def run(*changes: dict[str, float], steps: int = WINDOW) -> list[dict[str, float]]:
    return [GOOD | change for change in changes for _ in range(steps)]


def test_a_healthy_run_goes_on() -> None:
    assert reason_to_stop([], 0.2) is None
    assert reason_to_stop(run({}, {"reward": 2.0, "accuracy": 0.8}), 0.2) is None


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("infrastructure", {"failed": 0.3}),
        ("format lost", {"valid": 0.4}),
        ("collapse: 99% of expert calls", {"expert_share/gpt-5": 0.99}),
        ("collapse: 97% of calls", {"top_tool_share": 0.97}),
        ("reward hacking", {"accuracy": 0.5, "reward": 1.5}),
        ("decline", {"accuracy": 0.35, "reward": 0.5}),
        ("entropy lost", {"entropy": 0.001}),
        ("no signal", {"dead_groups": 1.0}),
    ],
)
def test_each_reason_has_its_name_and_holds_for_a_window(name: str, now: dict[str, float]) -> None:
    found = reason_to_stop(run({}, now), 0.2)
    assert found is not None
    assert found.startswith(name)
    # One bad step is no reason.
    assert reason_to_stop([*run({}), GOOD | now], 0.2) is None
    assert declined(found) == (name not in ("infrastructure", "no signal"))


def test_learning_worse_without_more_reward_is_not_hacking() -> None:
    assert reason_to_stop(run({}, {"accuracy": 0.5, "reward": 0.5}), 0.2) is None


def test_dead_infrastructure_is_named_before_what_follows_from_it() -> None:
    nothing = [{"failed": 1.0, "reward": 0.0}] * WINDOW
    assert (reason_to_stop(nothing, 0.2) or "").startswith("infrastructure")


def test_measures_add_up() -> None:
    group = [
        episode(cost_usd=1, latency_s=10, calls={"gpt-5": 2}),
        episode(cost_usd=3, latency_s=20, calls={"gpt-5": 1, "search": 1}),
        episode(solved=False, answer=None, parse_error="error", cost_usd=2),
        episode(solved=None),
    ]
    rewards = group_rewards(group, NEUTRAL)
    row = measure([group, group], [rewards, rewards], [[1.0, -1.0, 0.0, 0.0], [0.0] * 4])
    assert row["failed"] == row["left_out"] == 0.25
    assert row["dead_groups"] == 0.5
    assert row["accuracy"] == row["valid"] == pytest.approx(2 / 3)
    assert row["cost_usd"] == pytest.approx(2)
    assert "spent_usd" not in row, "episodes cannot tell: copies cost nothing"
    parts = sum(row[f"reward_{name}"] for name in ("outcome", "compute", "latency"))
    assert row["reward"] == pytest.approx(parts)
    assert row["reward"] == pytest.approx(sum(r.value or 0 for r in rewards) / 3)


def test_nothing_known_is_no_crash() -> None:
    dead = [episode(solved=None)] * 2
    row = measure([dead], [[Reward(None, {}, "infrastructure")] * 2], [[0.0, 0.0]])
    assert (row["failed"], row["reward"], row["dead_groups"]) == (1.0, 0.0, 1.0)
    assert outcomes(dead) == {}
    assert outcomes([]) == {}


def test_a_short_run_is_not_judged() -> None:
    for now in ({"failed": 1.0}, {"valid": 0.0}, {"expert_share/gpt-5": 1.0}, {"dead_groups": 1.0}):
        assert reason_to_stop(run(now, steps=WINDOW - 1), 0.2) is None


def test_a_world_that_needs_one_tool_is_no_collapse() -> None:
    assert reason_to_stop(run({"top_tool_share": 1.0}, {"top_tool_share": 1.0}), 0.2) is None


def test_a_decline_is_measured_from_the_best_window_not_the_first() -> None:
    better = run({"accuracy": 0.4}, {"accuracy": 0.9}, {"accuracy": 0.55})
    assert (reason_to_stop(better, 0.2) or "").startswith("decline: accuracy fell by 35%")


def test_failures_before_a_restart_do_not_count_but_everything_else_does() -> None:
    """A run continued after a kill must decide as an uninterrupted one would."""
    dead = run({"failed": 1.0})
    assert reason_to_stop([*dead, *run({}, steps=5)], 0.2, since=WINDOW) is None
    assert (reason_to_stop([*dead, *dead], 0.2, since=WINDOW) or "").startswith("infrastructure")
    lost = run({}, {"valid": 0.1})
    assert reason_to_stop(lost, 0.2, since=len(lost) - 1) == reason_to_stop(lost, 0.2)


@pytest.mark.parametrize(
    ("now", "good"),
    [
        ({}, True),
        ({"accuracy": 0.9, "valid": 1.0, "reward": 2.0}, True),
        ({"valid": 0.75}, True),
        ({"valid": 0.65}, False),
        ({"expert_share/gpt-5": 0.7}, True),
        ({"expert_share/gpt-5": 0.8}, False),
        ({"accuracy": 0.65, "reward": 1.1}, True),
        ({"accuracy": 0.6, "reward": 1.1}, False),
        ({"accuracy": 0.6, "reward": 0.9}, True),
        ({"accuracy": 0.5, "reward": 0.9}, False),
        ({"entropy": 0.15}, True),
        ({"entropy": 0.05}, False),
        # Neither says anything about the weights.
        ({"failed": 1.0}, True),
        ({"dead_groups": 1.0}, True),
    ],
)
def test_a_step_is_good_until_half_way_to_where_it_would_be_stopped(now: dict[str, float], good: bool) -> None:
    assert is_good([*run({}), *run(now, steps=RECENT)], 0.2) is good


def test_what_is_good_from_the_start() -> None:
    assert not is_good([], 0.2)
    assert is_good(run({}, steps=2), 0.2)
    # It began badly, and has not become worse: still nothing to go back to below the limit.
    assert is_good(run({"valid": 0.55}), 0.2)
    assert not is_good(run({"valid": 0.45}), 0.2)


MEASURES = ("failed", "valid", "expert_calls", "expert_share/gpt-5", "top_tool_share", "accuracy")
rows = st.fixed_dictionaries(
    {name: st.floats(0, 1) for name in MEASURES},
    optional={"reward": st.floats(0, 2), "entropy": st.floats(0, 3), "dead_groups": st.sampled_from([0.0, 1.0])},
)


@given(st.lists(rows, min_size=1, max_size=3), st.floats(0, 1))
def test_a_run_that_stands_still_at_a_stop_was_never_good(few: list[dict[str, float]], max_failed: float) -> None:
    history = [row for row in few for _ in range(WINDOW)]
    reason = reason_to_stop(history, max_failed)
    assert reason is None or "\n" not in reason
    assert not (declined(reason) and is_good(history, max_failed))
    assert set(trends(history)) == {"divergence", "decline", "entropy_lost"}
    assert all(name in averages(history) for row in few for name in row)


def test_averages_leave_out_the_steps_that_lack_a_measure() -> None:
    assert averages([{"a": 1.0}, {"a": 3.0, "b": 5.0}]) == {"a": 2.0, "b": 5.0}
    assert averages([]) == {}


def test_averages_of_parts_add_up_as_the_parts_of_each_step_do() -> None:
    """A step that offers no domain tool, or in which no preference names a tool, has none of that part."""
    plain = {"calls": 2.0, "reward": 0.5, "reward_outcome": 0.5, "kind_share/domain": 0.0, "tool_share/search": 1.0}
    mixed = {
        "calls": 1.0, "reward": 0.9, "reward_outcome": 0.7, "reward_share": 0.2, "kind_share/domain": 0.5,
        "tool_share/search": 0.5, "tool_share/domain": 0.5,
    }  # fmt: skip
    means = averages([plain, mixed, {"failed": 1.0}])
    assert means["tool_share/domain"] == means["kind_share/domain"] == 0.25
    assert sum(value for name, value in means.items() if name.startswith("tool_share/")) == 1.0
    assert means["reward_outcome"] + means["reward_share"] == pytest.approx(means["reward"])


def test_shares_are_of_catalogue_entries_whatever_they_were_called() -> None:
    spec = catalogue().spec("gpt-5").model_copy(update={"name": "oracle"})
    item = example(toolbox=[spec, catalogue().spec("search"), catalogue().spec("gpt-5-mini")])
    made = [called(("oracle", Component.EXPERT), ("search", Component.SEARCH)), called(("oracle", Component.EXPERT))]
    assert shares(made, {item.id: item}) == pytest.approx(
        {
            "calls": 1.5, "kind_share/basic": 1 / 3, "kind_share/expert": 2 / 3, "kind_share/domain": 0,
            "tool_share/gpt-5": 2 / 3, "tool_share/gpt-5-mini": 0, "tool_share/search": 1 / 3,
            "top_tool_share": 2 / 3, "expert_calls": 1.0, "expert_share/gpt-5": 1.0,
        }
    )  # fmt: skip
    assert shares(made, {})["tool_share/oracle"] == pytest.approx(2 / 3)
    both = shares([called(("pay_fine", Component.DOMAIN)), called(("get_book", Component.DOMAIN))], {})
    assert both["tool_share/domain"] == both["kind_share/domain"] == both["top_tool_share"] == 1


def called(*tools: tuple[str, Component]) -> Episode:
    turns = [
        Turn(ids=(1,), text="", call=ToolCall(name=name), charges=(Charge(component=component, name=name),))
        for name, component in tools
    ]
    return episode().model_copy(update={"turns": tuple(turns)})


def test_collapse_counts_experts_only() -> None:
    made = [episode(calls={"gpt-5": 3}), episode(calls={"gpt-5-mini": 1})]
    found = shares(made, {})
    assert (found["expert_calls"], found["expert_share/gpt-5"], found["expert_share/gpt-5-mini"]) == (2.0, 0.75, 0.25)
    assert shares([episode()], {})["expert_calls"] == shares([], {})["top_tool_share"] == 0.0


def test_where_one_expert_is_offered_alone_nothing_collapses() -> None:
    item = example(toolbox=[catalogue().spec("gpt-5"), catalogue().spec("search")])
    found = shares([episode(calls={"gpt-5": 3})], {item.id: item})
    assert found["tool_share/gpt-5"] == 1 and found["expert_calls"] == 0
    assert not any(name.startswith("expert_share/") for name in found)


def test_experts_that_take_turns_are_no_collapse() -> None:
    """Each step asks one alone, as with one example a step; over all steps both are asked alike."""
    steps = [{"expert_calls": 1.0, f"expert_share/{name}": 1.0} for name in ("a", "b")] * WINDOW
    history = [{**{k: v for k, v in GOOD.items() if not k.startswith("expert")}, **step} for step in steps]
    assert reason_to_stop(history, 0.2) is None and is_good(history, 0.2)
    assert (reason_to_stop(history[::2], 0.2) or "").startswith("collapse: 100% of expert calls")


def test_tools_that_fail_to_the_end_of_a_short_training_are_told() -> None:
    dead = run({"failed": 1.0}, steps=4)
    assert reason_to_stop(dead, 0.2) is None
    assert failed_to_the_end(dead, 0.2) == "infrastructure: 100% of episodes failed over 4 steps"
    assert failed_to_the_end([*dead, *run({})], 0.2) is failed_to_the_end([], 0.2) is None
    # What failed before a restart does not count, and after it does.
    assert failed_to_the_end(dead, 0.2, since=4) is None
    assert (failed_to_the_end([*run({}), *dead], 0.2, since=WINDOW) or "").endswith("over 4 steps")


def test_entropy_is_the_mean_surprise_of_the_policy_s_own_tokens() -> None:
    turn = Turn(ids=(1, 2), logprobs=(-0.5, -1.5), text="", observation_ids=(3, 4, 5))
    run_ = episode().model_copy(update={"turns": (turn, turn.model_copy(update={"logprobs": (0.0, -2.0)}))})
    found = outcomes([run_])
    assert found["entropy"] == 1.0
    assert (found["tokens"], found["longest"], found["cut"]) == (4, 4, 0)
    # A policy that does not know its log-probabilities has no entropy, rather than one of 0.
    assert "entropy" not in outcomes([episode()])
