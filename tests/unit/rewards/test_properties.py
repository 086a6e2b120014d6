"""The check of the configured weights finds every wrong reward it should, and passes the right one."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.config.schema import Grpo, load_params
from orchestra.errors import DataError
from orchestra.rewards.group import Reward, group_rewards, weights
from orchestra.rewards.properties import Score, broken_property, check_weights, largest_std
from orchestra.rewards.registry import FEATURES, Feature
from orchestra.synthesis.preferences.sentences import WORDS, stated
from orchestra.types import Episode, Preference
from tests.support.worlds import ROOT, episode
from tests.unit.rewards.test_group import preferences

STATED = Preference(kind="prefer", words="", outcome=1, compute=0.6, latency=0.3, tools={"gpt-5": 0.4})
SETTINGS = load_params(ROOT / "params.yaml").grpo


def right(group: Sequence[Episode]) -> list[Reward]:
    return group_rewards(group, STATED)


def changed(reward: Reward, value: float) -> Reward:
    return Reward(None if reward.value is None else value, {}, reward.reason)


def grows_with_cost(group: Sequence[Episode]) -> list[Reward]:
    """The published code's mistake: cost enters without its sign."""
    differ = len({e.cost_usd for e in group if e.counted}) > 1
    turned = [0.6 - 2 * r.parts.get("compute", 0.0) if r.parts and differ else 0.0 for r in right(group)]
    return [changed(r, (r.value or 0.0) + more) for r, more in zip(right(group), turned, strict=True)]


def adds_a_constant(group: Sequence[Episode]) -> list[Reward]:
    """And its other one: counts of 0 earn something."""
    return [changed(r, (r.value or 0.0) + 0.1 if e.solved else 0.0) for r, e in zip(right(group), group, strict=True)]


def pays_for_failing(group: Sequence[Episode]) -> list[Reward]:
    return [changed(r, (r.value or 0.0) if e.solved else 1.9) for r, e in zip(right(group), group, strict=True)]


def scores_the_dead(group: Sequence[Episode]) -> list[Reward]:
    return [Reward(0.0, {}) if r.value is None else r for r in right(group)]


def favours_the_first(group: Sequence[Episode]) -> list[Reward]:
    return [changed(r, (r.value or 0.0) / (1 + place)) for place, r in enumerate(right(group))]


def ignores_cost(group: Sequence[Episode]) -> list[Reward]:
    return group_rewards(group, STATED.model_copy(update={"compute": 0.0}))


def pays_twice(group: Sequence[Episode]) -> list[Reward]:
    return [changed(r, 2 * (r.value or 0.0)) for r in right(group)]


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (grows_with_cost, "becomes more expensive"),
        (adds_a_constant, "do not differ"),
        (pays_for_failing, "lower reward than a failed one"),
        (scores_the_dead, "infrastructure"),
        (favours_the_first, "order of the group"),
        (ignores_cost, "less compute does not have the higher reward"),
        (pays_twice, "outside"),
    ],
)
def test_a_wrong_reward_is_named(score: Score, said: str) -> None:
    problem = broken_property(score, weights(STATED))
    assert problem is not None and said in problem


def test_the_right_reward_has_every_property() -> None:
    assert broken_property(right, weights(STATED)) is None


@settings(max_examples=10)
@given(preferences, st.sampled_from(["outcome", "efficiency", "full"]), st.sampled_from(["zero", "drop"]))
def test_any_weights_in_range_pass_under_every_setting(preference: Preference, reward: str, malformed: str) -> None:
    chosen = SETTINGS.model_copy(update={"reward": reward, "malformed": malformed})
    fit = preference.model_copy(update={"outcome": max(preference.outcome, 0.01)})
    check_weights([fit], chosen)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"outcome": 0.0}, "prefer: the weight of outcome is 0"),
        ({"compute": 1.5}, "the weight of compute is 1.5"),
        ({"latency": -0.1}, "the weight of latency is -0.1"),
        ({"compute": float("nan")}, "the weight of compute is nan"),
        ({"tools": {"gpt-5": 2.0}}, "the weight of gpt-5 is 2"),
    ],
)
def test_bad_weights_are_refused_in_one_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        check_weights([STATED, STATED.model_copy(update=change)], SETTINGS)
    assert "\n" not in str(caught.value)


def test_the_weights_that_this_repository_states_pass() -> None:
    check_weights([stated(kind, "", ["a", "b", "c"], "a") for kind in ("neutral", *WORDS)], SETTINGS)


@pytest.mark.parametrize("usd", [1e-6, 0.058, 0.9, 1000.0])
@pytest.mark.parametrize("spent", ["solved", "all"])
def test_a_fixed_unit_of_any_size_passes(usd: float, spent: str) -> None:
    fixed = {"unit": "fixed", "unit_usd": usd, "unit_s": 10 * usd, "unit_ceiling": 1.0, "spent": spent}
    check_weights([STATED], SETTINGS.model_copy(update=fixed))


def test_weights_too_small_for_the_homogeneity_filter_are_noted() -> None:
    small = STATED.model_copy(update={"compute": 0.1, "latency": 0.05, "tools": {}})
    notes = check_weights([small, STATED], SETTINGS.model_copy(update={"min_group_std": 0.1, "homogeneity": "group"}))
    assert len(notes) == 1 and "0.080 at most" in notes[0]
    assert check_weights([small], SETTINGS.model_copy(update={"min_group_std": 0.05, "homogeneity": "group"})) == []
    # Without cost and latency a group of solved episodes has nothing to tell apart, and nothing to note.
    assert check_weights([small], SETTINGS.model_copy(update={"reward": "outcome"})) == []


@given(preferences, st.integers(2, 9), st.data())
def test_no_group_of_solved_episodes_spreads_wider_than_stated(
    preference: Preference, size: int, data: st.DataObject
) -> None:
    chosen: Grpo = SETTINGS.model_copy(update={"group_size": size})
    costs = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=size, max_size=size))
    made = [episode(cost_usd=c, latency_s=s, calls={"gpt-5": c, "search": s}) for c, s in costs]
    values = [r.value or 0.0 for r in group_rewards(made, preference)]
    mean = sum(values) / size
    std = (sum((v - mean) ** 2 for v in values) / (size - 1)) ** 0.5
    assert std <= largest_std(preference, chosen) + 1e-9


def test_a_part_whose_ends_are_equal_pays_nothing_and_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Feature("turns", "brevity", lambda one: -1.0, "full", lambda *_: (-1.0, -1.0), True, False, None)
    monkeypatch.setitem(FEATURES, "turns", turns)
    preference = stated("cheap", "", ["a", "b", "c"])
    shape = load_params(ROOT / "params.yaml").grpo.model_copy(update={"weights": {"brevity": 0.2}})
    (reward,) = group_rewards([episode()], preference, shape=shape)
    assert reward.parts["turns"] == 0.0
    assert any("turns pays all episodes alike" in note for note in check_weights([preference], shape))
