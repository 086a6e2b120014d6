"""The measures of a step, and each named reason to stop."""

import pytest

from orchestra.rewards.group import Reward, group_rewards
from orchestra.training.health import WINDOW, measure, outcomes, reason_to_stop, top_expert_share
from tests.worlds import NEUTRAL, episode

GOOD = {"failed": 0.0, "valid": 0.9, "top_expert_share": 0.5, "accuracy": 0.7, "reward": 1.0}


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
        ("collapse", {"top_expert_share": 0.99}),
        ("reward hacking", {"accuracy": 0.5, "reward": 1.5}),
    ],
)
def test_each_reason_has_its_name_and_holds_for_a_window(name: str, now: dict[str, float]) -> None:
    found = reason_to_stop(run({}, now), 0.2)
    assert found is not None
    assert found.startswith(name)
    # One bad step is no reason, nor is a run shorter than the window.
    assert reason_to_stop([*run({}), GOOD | now], 0.2) is None
    assert reason_to_stop(run(now, steps=WINDOW - 1), 0.2) is None


def test_learning_worse_without_more_reward_is_not_hacking() -> None:
    assert reason_to_stop(run({}, {"accuracy": 0.3, "reward": 0.5}), 0.2) is None


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
    assert row["spent_usd"] == pytest.approx(2 * (1 + 3 + 2))
    parts = sum(row[f"reward_{name}"] for name in ("outcome", "compute", "latency"))
    assert row["reward"] == pytest.approx(parts)
    assert row["reward"] == pytest.approx(sum(r.value or 0 for r in rewards) / 3)


def test_nothing_known_is_no_crash() -> None:
    dead = [episode(solved=None)] * 2
    row = measure([dead], [[Reward(None, {}, "infrastructure")] * 2], [[0.0, 0.0]])
    assert (row["failed"], row["reward"], row["dead_groups"]) == (1.0, 0.0, 1.0)
    assert outcomes(dead) == {}
    assert outcomes([]) == {}


def test_collapse_counts_experts_only() -> None:
    assert top_expert_share([episode(calls={"gpt-5": 3}), episode(calls={"gpt-5-mini": 1})]) == 0.75
    assert top_expert_share([episode()]) == 0.0
