"""What an evaluation tells: rates over trials, failures apart, and the agreement of two judges."""

import random
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.evaluation.benchmarks.agreement import agreement, cohen_kappa, sample
from orchestra.evaluation.benchmarks.base import BENCHMARKS, Attempt
from orchestra.evaluation.benchmarks.frames.scorer import figures
from orchestra.evaluation.benchmarks.report import FAILURES, metrics, results, summarise, table, write
from orchestra.evaluation.benchmarks.second import judge_again
from orchestra.evaluation.benchmarks.tau2.scorer import figures as tau2_figures
from orchestra.tools.experts.judging import URL
from tests.support.benchmarks import evaluation, pairs, player, published
from tests.support.endpoint import answer, serving


def attempts(*verdicts: tuple[bool | None, ...], group: str = "g") -> list[Attempt]:
    return [
        Attempt(item=f"q{n}", trial=trial, group=group, solved=solved, cost_usd=Decimal("0.5"))
        for n, trials in enumerate(verdicts)
        for trial, solved in enumerate(trials)
    ]


def test_rates_are_over_trials_and_a_failure_is_no_wrong_answer(tmp_path: Path) -> None:
    found = attempts((True, True, False, True), (False, False, None, False))
    made = summarise(
        BENCHMARKS["own"], found, model="m", identity="i", judge=None, data_sha256={"f": "0"}, questions=2, there=2,
        trials=4,
    )  # fmt: skip
    assert (made.scored, made.failures) == (7, 1)
    assert made.accuracy == pytest.approx(3 / 7)
    assert [rate.k for rate in made.rates] == [1, 2, 3]
    assert made.rates[1].all.value == pytest.approx((3 / 6 + 0) / 2)
    assert made.interval is not None and made.interval.value == pytest.approx((3 / 4 + 0) / 2)
    assert made.cost_usd == Decimal("0.5") and made.whole
    write(tmp_path / "reports/benchmarks/own/m", made, BENCHMARKS["own"].protocol, found)
    assert results(tmp_path) == [made]
    assert (tmp_path / "reports/benchmarks/own/m" / FAILURES).read_text().count("\n") == 1
    assert metrics(made)["pass_all_2"] == pytest.approx(0.25)
    assert table([made])[1].split() == ["own", "m", "2", "x", "4", "42.9%", "0.5000", "0.0", "1", "yes"]


def test_a_part_of_the_questions_is_not_the_benchmark() -> None:
    protocol = BENCHMARKS["hle"].protocol
    assert protocol.questions == 2158
    made = summarise(
        BENCHMARKS["hle"], [], model="m", identity="i", judge="j", data_sha256={}, questions=100, there=100, trials=1
    )
    assert not made.whole and made.accuracy is None


def test_another_judge_or_user_is_not_the_benchmark() -> None:
    def whole(benchmark: str, judge: str = "", user: str = "model") -> bool:
        spec = BENCHMARKS[benchmark]
        official = None if spec.protocol.judge is None else spec.protocol.judge.model
        count = spec.protocol.questions or 0
        made = summarise(
            spec, [], model="m", identity="i", judge=judge or official, data_sha256={}, questions=count, there=count,
            trials=4, user=user,
        )  # fmt: skip
        return made.whole

    assert whole("hle") and whole("frames") and whole("tau2") and whole("own")
    assert not whole("frames", judge="my-own-7b") and not whole("own", judge="my-own-7b")
    assert not whole("tau2", user="solo")


def test_kinds_of_reasoning_and_domains_have_their_shares() -> None:
    found = attempts((True,), (False,), group="Tabular | Numerical") + attempts((True,), group="Tabular")
    assert figures(found, 3) == {"accuracy/Numerical": 0.5, "accuracy/Tabular": pytest.approx(2 / 3)}
    domains = attempts((True,), (True,), (False,), group="retail") + attempts((False,), group="mock")
    assert tau2_figures(domains, 4)["accuracy_domains"] == pytest.approx(1 / 3)


def test_kappa_is_that_of_cohen() -> None:
    """Cohen's example: 20 both yes, 15 both no, 5 and 10 apart: 0.7 observed, 0.5 by chance."""
    counts = [((True, True), 20), ((True, False), 5), ((False, True), 10), ((False, False), 15)]
    told = [pair for pair, count in counts for _ in range(count)]
    assert cohen_kappa(told) == pytest.approx(0.4)
    assert cohen_kappa([(True, True), (False, False)]) == 1
    assert cohen_kappa([(True, True)] * 3) is None and cohen_kappa([]) is None
    assert agreement("a", "b", []) is None


def test_a_sample_depends_on_no_order() -> None:
    items = [f"q{n}" for n in range(50)]
    shuffled = random.Random(1).sample(items, 50)
    assert sample(items, 10) == sample(shuffled, 10) and len(set(sample(items, 10))) == 10


def test_a_second_judge_judges_a_sample_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pairs("frames")[:8]
    reply = player("frames")

    def judges(request: dict[str, object]) -> object:
        return (200, answer("Decision: TRUE"), 0) if str(request["model"]).startswith("o3") else reply(request)

    with serving(judges) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("frames", published("frames", tmp_path, rows), tmp_path, double.url)
        made.attempt(made.shards)
        second = made.spec.protocol.second_judge
        assert second is not None
        found = judge_again(made, made.attempts(), 6, second)
        asked = len(double.asked)
        assert judge_again(made, made.attempts(), 6, second) == found and len(double.asked) == asked
    assert asked == 8 + 8 + 6 and found is not None
    chosen = [row for row in rows if f"frames-{row['id']}" in sample([f"frames-{row['id']}" for row in rows], 6)]
    assert found.count == 6 and found.agreed == pytest.approx(sum(row["official"] for row in chosen) / 6)
    assert (found.first, found.second) == ("gpt-4.1-2025-04-14", "o3-mini-2025-01-31")
