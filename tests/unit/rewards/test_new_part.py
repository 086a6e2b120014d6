"""A new reward part is one decorated function with its weight's name, as CONTRIBUTING says, and no other file."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, DataError
from orchestra.rewards.group import group_rewards, weights
from orchestra.rewards.properties import check_weights
from orchestra.rewards.registry import FEATURES, feature, of_no_toolbox
from orchestra.training.grpo.health import measure
from orchestra.types import Episode, Preference
from tests.support.worlds import ROOT, episode

SETTINGS = load_params(ROOT / "params.yaml").grpo
BRIEF = Preference(kind="brief", words="keep it short.", outcome=1, compute=0.1, latency=0.1, weights={"brevity": 0.4})
GROUP = [episode(calls={"search": count}) for count in (0, 1, 3)]


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The register without CONTRIBUTING's example, where somebody has followed it to the letter."""
    monkeypatch.delitem(FEATURES, "turns", raising=False)


@pytest.fixture
def brevity(shipped: None) -> Iterator[None]:
    @feature("turns", weight="brevity", ends=lambda toolbox, shape: (-5.0, -1.0))
    def turns(episode: Episode) -> float:
        """Turns as a negative number, so that fewer are larger."""
        return -float(len(episode.turns))

    yield
    del FEATURES["turns"]


@pytest.fixture
def lavish() -> Iterator[None]:
    @feature("lavish", weight="spending")
    def lavish(episode: Episode) -> float:
        """Dollars with the wrong sign."""
        return float(episode.cost_usd)

    yield
    del FEATURES["lavish"]


@pytest.mark.usefixtures("brevity")
def test_it_is_paid_weighed_checked_and_logged() -> None:
    rewards = group_rewards(GROUP, BRIEF)
    assert [reward.parts["turns"] for reward in rewards] == pytest.approx([0.4, 0.8 / 3, 0])
    assert weights(BRIEF)["turns"] == 0.4
    assert "turns" not in weights(BRIEF, "efficiency")
    assert measure([GROUP], [rewards], [[1, 0, -1]])["reward_turns"] == pytest.approx((0.4 + 0.8 / 3) / 3)
    assert check_weights([BRIEF], SETTINGS) == []


@pytest.mark.usefixtures("brevity")
def test_its_ends_count_where_the_group_has_none() -> None:
    rewards = group_rewards(GROUP, BRIEF, shape=SETTINGS)
    assert SETTINGS.unit == "fixed" and [reward.parts["turns"] for reward in rewards] == pytest.approx([0.4, 0.3, 0.1])


@pytest.mark.usefixtures("brevity")
@pytest.mark.parametrize("unit", ["fixed", "example"])
def test_a_part_that_is_beyond_its_ends_is_named_before_a_training(unit: str) -> None:
    FEATURES["turns"] = replace(FEATURES["turns"], ends=of_no_toolbox)  # The fixture takes it out again.
    settings = SETTINGS.model_copy(update={"unit": unit})
    assert {reward.parts["turns"] for reward in group_rewards(GROUP, BRIEF, shape=settings)} == {0}
    assert check_weights([BRIEF], settings) == [
        "brief: turns pays all episodes alike, which lie beyond its ends 0 and 1: give the reward part other ends"
    ]
    assert check_weights([BRIEF.model_copy(update={"weights": {}})], settings) == []
    assert check_weights([BRIEF], SETTINGS.model_copy(update={"unit": "group"})) == []


@pytest.mark.usefixtures("brevity")
def test_its_weight_may_come_from_the_parameters() -> None:
    plain = BRIEF.model_copy(update={"weights": {}})
    assert weights(plain)["turns"] == 0
    assert weights(plain, shape=SETTINGS.model_copy(update={"weights": {"brevity": 0.2}}))["turns"] == 0.2
    # What a preference states goes first.
    assert weights(BRIEF, shape=SETTINGS.model_copy(update={"weights": {"brevity": 0.2}}))["turns"] == 0.4


@pytest.mark.usefixtures("brevity")
def test_a_part_that_pays_outside_its_weight_is_refused_before_a_training() -> None:
    bad = BRIEF.model_copy(update={"weights": {"brevity": 1.5}})
    with pytest.raises(DataError, match=r"the weight of brevity is 1\.5"):
        check_weights([bad], SETTINGS)


@pytest.mark.usefixtures("lavish")
def test_a_part_that_pays_for_dollars_is_refused_as_the_fault_of_the_reward() -> None:
    spending = BRIEF.model_copy(update={"weights": {"spending": 1.0}})
    with pytest.raises(
        DataError, match=r"^the reward: brief: .* becomes more expensive has .* — change the reward's keys"
    ):
        check_weights([spending], SETTINGS.model_copy(update={"unit": "group"}))


@pytest.mark.usefixtures("brevity")
@pytest.mark.parametrize("unit", ["group", "fixed"])
def test_a_part_that_gives_no_finite_number_is_named(unit: str) -> None:
    """NaN was paid as one of its ends."""
    FEATURES["turns"] = replace(FEATURES["turns"], measure=lambda episode: math.nan)
    shape = SETTINGS.model_copy(update={"unit": unit})
    with pytest.raises(ConfigError, match="an episode of 'e1': the reward part turns is nan"):
        group_rewards(GROUP, BRIEF, shape=shape)


def test_a_weight_without_a_part_is_refused_before_a_training() -> None:
    with pytest.raises(DataError, match="no reward part has the weight brevity"):
        check_weights([BRIEF], SETTINGS)
    with pytest.raises(DataError, match="no reward part has the weight compute"):
        # It has a field of its own, and would count for nothing here.
        check_weights([BRIEF.model_copy(update={"weights": {"compute": 0.1}})], SETTINGS)
    with pytest.raises(DataError, match="no reward part has the weight speed"):
        check_weights(
            [BRIEF.model_copy(update={"weights": {}})], SETTINGS.model_copy(update={"weights": {"speed": 1.0}})
        )


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="reward part compute already"):
        feature("compute", weight="compute")


def test_a_preference_without_further_weights_keeps_its_bytes() -> None:
    plain = BRIEF.model_copy(update={"weights": {}})
    assert "weights" not in plain.model_dump() and Preference.model_validate(BRIEF.model_dump()) == BRIEF
