"""Evidence holds what was measured, and the result of every example, over its trials."""

import random
from statistics import fmean

import pytest

from orchestra.evaluation.outcomes import outcome, utility
from orchestra.evaluation.report import Comparison
from orchestra.promotion.evidence import Evidence, Result, evidence, percentile, results, utilities, worth
from orchestra.types import Episode, Preference
from tests.support.comparisons import compared
from tests.support.generated import seeds
from tests.support.worlds import episode, example


def attempts(solved: list[bool | None], cost_usd: float = 0.01) -> list[Episode]:
    return [
        episode(solved=one, cost_usd=cost_usd, latency_s=n + 1.0).model_copy(update={"example_id": f"e{n}"})
        for n, one in enumerate(solved)
    ]


OURS, SFT = attempts([True, True, True, None]), attempts([True, False, False, False], 0.02)
STRONGEST = attempts([True, True, False, False], 0.04)


def comparison() -> Comparison:
    policies = {"grpo": OURS, "sft": SFT, "always_strongest": STRONGEST}
    examples = [example(f"e{n}") for n in range(4)]
    return compared(policies, examples)


def test_evidence_is_what_the_gate_needs() -> None:
    found = evidence(comparison(), "grpo", OURS, safety_failed=2)
    assert (found.checkpoint_hash, found.data_hash, found.price_date) == ("a" * 64, "d" * 64, "2025-11-15")
    assert found.metrics["accuracy"] == 1.0 and found.metrics["cost_ratio"] == pytest.approx(0.25)
    assert found.metrics["failed_share"] == 0.25 and found.metrics["safety_failed"] == 2.0
    assert found.metrics["latency_p95_s"] == 3.0
    assert set(found.results) == {"e0", "e1", "e2"}, "a failure of infrastructure is no result"
    assert Evidence.model_validate_json(found.model_dump_json()) == found and found.brief.results == {}
    never = evidence(comparison(), "never run", [])
    assert never.metrics == {} and never.results == {}


def test_trials_of_an_example_are_averaged() -> None:
    made = [one.model_copy(update={"example_id": "e"}) for one in attempts([True, False, None])]
    assert results(made) == {"e": Result(solved=0.5, cost_usd=0.01, latency_s=1.5)}


def test_utility_is_in_units_of_always_strongest_and_by_the_preference_of_each_user() -> None:
    cheap = Preference(kind="cheap", words="", outcome=1.0, compute=0.5, latency=0.1)
    examples = {"e0": example("e0", preference=cheap), "e1": example("e1")}
    strongest = attempts([True, True], 0.04)
    of = worth(examples, strongest)
    assert of is not None
    found = results(attempts([True, False], 0.02), of)
    # Strongest takes 1 and 2 seconds: half its dollars, two thirds of its mean seconds.
    assert found["e0"].utility == pytest.approx(1 - 0.5 * 0.5 - 0.1 * 1 / 1.5)
    neutral = examples["e1"].preference
    assert found["e1"].utility == pytest.approx(-neutral.compute * 0.5 - neutral.latency * 2 / 1.5)
    assert worth(examples, []) is None and results(attempts([True]))["e0"].utility is None
    assert utilities(found).keys() == {"e0", "e1"} and utilities(results(attempts([True]))) == {}


@pytest.mark.parametrize("seed", seeds(200, 20))
def test_in_another_unit_utility_is_what_the_episodes_themselves_give_in_it(seed: int) -> None:
    draw = random.Random(seed)
    wish = Preference(kind="cheap", words="", outcome=draw.random(), compute=draw.random(), latency=draw.random())
    examples = {f"e{n}": example(f"e{n}", preference=wish) for n in range(3)}
    before, now = (attempts([True] * 3, draw.uniform(0.001, 1.0)) for _ in range(2))
    ours = [one for _ in range(2) for one in attempts([draw.random() < 0.5 for _ in range(3)], draw.random())]
    old, new = worth(examples, before), worth(examples, now)
    assert old is not None and new is not None
    made = comparison().model_copy(update={"policies": {"grpo": comparison().policies["grpo"]}})
    found, wanted = (evidence(made, "grpo", ours, worth=one) for one in (old, new))
    again = new.again(found)
    assert again.results == wanted.results, "to the last digit: noise of one sign would look like a gain"
    for key, value in utilities(results(ours[:3], new)).items():
        (one,) = [each for each in ours[:3] if each.example_id == key]
        assert value == pytest.approx(utility(outcome(one, examples[key]), wish, new.unit))
    assert again.metrics["utility"] == pytest.approx(fmean(utilities(wanted.results).values()))


def test_utilities_of_which_it_is_not_known_what_was_earned_are_left_out() -> None:
    of = worth({f"e{n}": example(f"e{n}") for n in range(4)}, STRONGEST)
    assert of is not None
    found = evidence(comparison(), "grpo", OURS, worth=of)
    before = {key: one.model_copy(update={"earned": None}) for key, one in found.results.items()}
    again = of.again(found.model_copy(update={"results": before}))
    assert (utilities(again.results), again.metrics["utility"]) == ({}, None)
    assert again.metrics["accuracy"] == 1.0 and len(again.results) == 3


def test_a_percentile_is_a_value_that_occurred() -> None:
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.3, 0.5, 0.95)] == [1.0, 2.0, 3.0]
    assert percentile([], 0.95) is None


def test_a_result_of_an_example_that_is_no_more_has_no_utility() -> None:
    """A champion was measured on other held-out data: the gate says so, and nothing fails before it."""
    of = worth({f"e{n}": example(f"e{n}") for n in range(4)}, STRONGEST)
    less = worth({"e0": example("e0")}, STRONGEST[:1])
    assert of is not None and less is not None
    assert utilities(less.reckoned(results(attempts([True] * 4), of))).keys() == {"e0"}
