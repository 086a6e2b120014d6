"""The examples that `power` asks for give the power that it promises."""

import numpy as np
import pytest

from orchestra.errors import ConfigError
from orchestra.statistics.paired import difference
from orchestra.statistics.power import Contrast, contrast_of, difference_seen, examples_needed


def simulated(examples: int, gain: float, trials: int, runs: int = 500) -> float:
    """Share of comparisons of two noisy policies whose interval lies above 0."""
    generator = np.random.default_rng(3)
    names, seen = [str(n) for n in range(examples)], 0
    for _ in range(runs):
        hard = generator.random(examples) < 0.4
        ours, theirs = np.where(hard, 0.35 + 2.5 * gain, 0.95), np.where(hard, 0.35, 0.95)
        first, second = (
            dict(zip(names, (generator.binomial(trials, chance) / trials).tolist(), strict=True))
            for chance in (ours, theirs)
        )
        found = difference(first, second)
        seen += found.low is not None and found.low > 0
    return seen / runs


def contrast(gain: float) -> Contrast:
    """What `simulated` draws: 40 % of the examples are hard."""
    hard, raised, easy = 0.35, 0.35 + 2.5 * gain, 0.95
    disagreement = 0.4 * (hard * (1 - raised) + raised * (1 - hard)) + 0.6 * 2 * easy * (1 - easy)
    noise = sum(0.4 * 2 * p * (1 - p) + 0.6 * 2 * easy * (1 - easy) for p in (hard, raised)) / 2
    return Contrast(disagreement=disagreement, noise=noise)


@pytest.mark.parametrize(("gain", "trials"), [(0.05, 1), (0.05, 4), (0.1, 1)])
def test_the_formula_is_within_ten_per_cent_of_simulation(gain: float, trials: int) -> None:
    examples = examples_needed(contrast(gain), gain, power=0.8, trials=trials)
    # A tenth fewer examples must miss the power, and a tenth more must reach it (0.75 and 0.84 are expected).
    assert simulated(round(0.9 * examples), gain, trials) < 0.8 < simulated(round(1.1 * examples), gain, trials)


def test_what_is_needed_and_what_is_seen_are_inverse() -> None:
    made = Contrast(disagreement=0.2)
    examples = examples_needed(made, 0.02, power=0.8)
    assert examples == 3917  # (1.960 + 0.842)² · (0.2 - 0.0004) / 0.0004
    assert difference_seen(made, examples, power=0.8) == pytest.approx(0.02, rel=1e-3)
    assert examples_needed(made, 0.02, power=0.9) > examples


def test_trials_help_against_noise_only() -> None:
    noisy, greedy = Contrast(disagreement=0.2, noise=0.15), Contrast(disagreement=0.2)
    needed = [examples_needed(noisy, 0.03, power=0.8, trials=k) for k in (1, 2, 4, 100)]
    assert needed == sorted(needed, reverse=True) and needed[3] < 0.3 * needed[0]
    assert examples_needed(noisy, 0.03, power=0.8) == needed[0] > needed[1]
    for trials, examples in ((1, needed[0]), (4, needed[2])):
        assert difference_seen(noisy, examples, power=0.8, trials=trials) == pytest.approx(0.03, rel=1e-3)
    assert difference_seen(noisy, needed[0], power=0.8) == pytest.approx(0.03, rel=1e-3)
    assert examples_needed(greedy, 0.03, power=0.8, trials=4) == examples_needed(greedy, 0.03, power=0.8)


def test_a_contrast_is_measured_from_trials() -> None:
    generator = np.random.default_rng(0)
    chances = generator.random(4000)
    ours, theirs = ({str(n): list(generator.random(3) < p) for n, p in enumerate(chances)} for _ in range(2))
    found = contrast_of(ours, theirs)
    # Equal uniform chances: E 2p(1 - p) = 1/3 between any two attempts.
    assert found is not None and found.disagreement == pytest.approx(1 / 3, abs=0.01)
    assert found.noise == pytest.approx(1 / 3, abs=0.015)
    assert contrast_of({"a": [True]}, {"a": [False]}) == Contrast(disagreement=1.0)
    assert contrast_of({"a": [True]}, {"b": [True], "a": []}) is None
    assert contrast_of({"a": [], "b": [True]}, {"a": [True], "b": [True]}) == Contrast(disagreement=0.0)
    assert contrast_of({"a": [True, False]}, {"a": [True, False]}) == Contrast(disagreement=0.5, noise=1.0)


@pytest.mark.parametrize(
    ("gap", "power", "trials", "said"),
    [(0.0, 0.8, 1, "difference"), (0.02, 1.0, 1, "power lies"), (0.5, 0.8, 1, "disagree"), (0.02, 0.8, 0, "disagree")],
)
def test_what_cannot_be_is_an_error(gap: float, power: float, trials: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        examples_needed(Contrast(disagreement=0.2), gap, power=power, trials=trials)
