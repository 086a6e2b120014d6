"""Verdicts on simulated candidates: planted bad ones are rolled back in time, good ones pass."""

import math
import random
from collections.abc import Callable

import pytest

from orchestra.config.deploy import Canary
from orchestra.serving.releases.trial import conclude
from orchestra.serving.shared.samples import Arm, Finding
from orchestra.statistics.sequential import ArmSamples, Excess, cost_excess, failure_excess, latency_excess

SETTINGS = Canary()
EACH = 200
"""Simulated candidates of a kind."""

Planted = dict[str, float]
BAD: list[Planted] = [{"failures": 0.15}, {"seconds": 2.0}, {"usd": 2.5}, {"solved": -0.52}]


def request(rng: random.Random, planted: Planted, *, judged: bool) -> tuple[bool, float, float, bool | None]:
    """One request: 2 % fail, seconds and dollars vary as those of the embedded model do, 87 % are solved."""
    failed = rng.random() < 0.02 + planted.get("failures", 0.0)
    seconds = rng.lognormvariate(0, 0.6) * planted.get("seconds", 1.0)
    usd = rng.lognormvariate(-4.5, 0.9) * planted.get("usd", 1.0)
    solved = not failed and rng.random() < 0.87 + planted.get("solved", 0.0)
    return failed, seconds, usd, solved if judged else None


def trial(seed: int, planted: Planted, share: float = 0.1) -> tuple[Finding, int]:
    """The verdict, and the candidate's requests until then; a probe of each arm after every second request."""
    rng = random.Random(seed)
    arms: dict[Arm, ArmSamples] = {"champion": ArmSamples(), "candidate": ArmSamples()}
    probes = 0
    while True:
        live: Arm = "candidate" if rng.random() < share else "champion"
        arms[live].add(*request(rng, planted if live == "candidate" else {}, judged=False))
        if probes < SETTINGS.probes and rng.random() < 0.5:
            probes += 1
            arms["champion"].add(*request(rng, {}, judged=True))
            arms["candidate"].add(*request(rng, planted, judged=True))
        found = conclude(arms, SETTINGS)
        if found is not None:
            return found, arms["candidate"].requests


def test_good_candidates_pass() -> None:
    found = [trial(seed, {})[0].verdict for seed in range(EACH)]
    assert set(found) <= {"passed", "worse"}
    assert found.count("worse") <= SETTINGS.error_level * EACH


def test_planted_bad_candidates_are_rolled_back_within_the_stated_number_of_requests() -> None:
    found = [trial(seed, BAD[seed % len(BAD)]) for seed in range(EACH)]
    caught = [requests for one, requests in found if one.verdict == "worse"]
    assert len(caught) >= 0.95 * EACH
    assert max(caught) <= SETTINGS.requests
    # Half of them long before.
    assert sorted(caught)[EACH // 2] <= 0.6 * SETTINGS.requests


def test_a_candidate_that_fails_always_is_ended_after_a_handful() -> None:
    found, requests = trial(1, {"failures": 1.0})
    assert found.verdict == "worse" and "in a row" in found.why and requests == SETTINGS.failures_in_a_row


def test_an_outage_of_both_ends_no_trial() -> None:
    arms: dict[Arm, ArmSamples] = {"champion": ArmSamples(), "candidate": ArmSamples()}
    for _ in range(40):
        for arm in arms.values():
            arm.add(True, 1.0, 0.0, False)
        assert conclude(arms, SETTINGS) is None
    arms["champion"].add(False, 1.0, 0.0, True)
    found = conclude(arms, SETTINGS)
    assert found is not None and found.why == "40 requests in a row failed"


@pytest.mark.parametrize(
    ("planted", "said"), [(BAD[0], "requests fail"), (BAD[1], "takes"), (BAD[2], "costs"), (BAD[3], "costs")]
)
def test_the_verdict_says_what_is_worse(planted: Planted, said: str) -> None:
    whys = [found.why for found, _ in (trial(seed, planted) for seed in range(6)) if found.verdict == "worse"]
    assert whys and all(said in why for why in whys)


Steps = tuple[float, float, float, float]
"""A candidate's failed and solved shares, and its seconds and dollars in units of the champion's."""
MARGINS = SETTINGS.model_copy(update={"requests": 100_000, "probes": 50_000, "failures_in_a_row": 10})


@pytest.mark.parametrize(
    ("below", "above", "said"),
    [
        ((0.12, 0.8, 1.0, 1.0), (0.155, 0.8, 1.0, 1.0), "more of its requests fail"),
        ((0.1, 0.8, 1.24, 1.0), (0.1, 0.8, 1.27, 1.0), "a request takes"),
        ((0.1, 0.8, 1.0, 1.24), (0.1, 0.8, 1.0, 1.32), "a solved question costs"),
        ((0.1, 0.65, 1.0, 1.0), (0.1, 0.6, 1.0, 1.0), "a solved question costs"),
    ],
)
def test_a_candidate_is_worse_from_its_margin_on(below: Steps, above: Steps, said: str) -> None:
    """Of so many requests that chance explains little: 3 points of failures, a quarter more of the others."""

    def made(steps: Steps) -> ArmSamples:
        failures, solved, seconds, usd = steps
        arm = ArmSamples()
        for n in range(8000):
            spread, place = 1 + (n % 5 - 2) / 100, n * 0.6180339887 % 1
            arm.add(place < failures, seconds * spread, 0.01 * usd * spread, n * 0.7548776662 % 1 < solved)
        return arm

    champion = made((0.1, 0.8, 1.0, 1.0))
    assert conclude({"champion": champion, "candidate": made(below)}, MARGINS) is None
    found = conclude({"champion": champion, "candidate": made(above)}, MARGINS)
    assert found is not None and found.verdict == "worse" and said in found.why
    assert conclude({"champion": made(above), "candidate": champion}, MARGINS) is None


@pytest.mark.parametrize(
    ("measure", "planted", "margin"),
    [
        (failure_excess, BAD[0], SETTINGS.failure_margin),
        (latency_excess, BAD[1], math.log1p(SETTINGS.latency_margin)),
        (cost_excess, BAD[2], math.log1p(SETTINGS.cost_margin)),
    ],
)
def test_each_of_three_measures_has_a_third_of_the_error_level(
    measure: Callable[[ArmSamples, ArmSamples], Excess], planted: Planted, margin: float
) -> None:
    """The verdict comes with the first request at which the measure's bound lies above its margin."""
    cost, rng = measure is cost_excess, random.Random(3)
    limits = SETTINGS.model_copy(update={"failures_in_a_row": 99})
    champion, candidate = ArmSamples(), ArmSamples()
    for _ in range(400):
        champion.add(*request(rng, {}, judged=cost))
    bounds = []
    while conclude({"champion": champion, "candidate": candidate}, limits) is None:
        candidate.add(*request(rng, planted, judged=cost))
        planned = limits.probes if cost else limits.requests
        bounds.append(measure(candidate, champion).lower(limits.error_level / 3, planned))
    assert bounds[-1] > margin >= max(bounds[:-1])


def arms(requests: int, make: Callable[[int], tuple[bool, float, float, bool | None]]) -> dict[Arm, ArmSamples]:
    made: dict[Arm, ArmSamples] = {"champion": ArmSamples(), "candidate": ArmSamples()}
    for one in made.values():
        for number in range(requests):
            one.add(*make(number))
    return made


def test_without_judged_answers_a_canary_that_is_over_has_not_passed() -> None:
    made = arms(100, lambda number: (False, 1.0 + number % 3, 0.1, None))
    assert conclude(made, SETTINGS) is None
    ended = conclude(made, SETTINGS, over=True)
    assert ended is not None and ended.verdict == "ended" and "judged" in ended.why
    shadow = conclude(made, SETTINGS, over=True, judged=False)
    assert shadow is not None and shadow.verdict == "passed"
