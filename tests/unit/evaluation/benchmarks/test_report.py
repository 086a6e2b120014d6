"""What an evaluation tells: rates over trials, failures apart, and the agreement of two judges."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.ledger import cost_of, total
from orchestra.config.judge import JudgeSettings
from orchestra.errors import BudgetError, JudgeError
from orchestra.evaluation.benchmarks.agreement import agreement, cohen_kappa, sample
from orchestra.evaluation.benchmarks.base import BENCHMARKS, Attempt
from orchestra.evaluation.benchmarks.frames.scorer import figures
from orchestra.evaluation.benchmarks.report import FAILURES, metrics, results, summarise, table, write
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.evaluation.benchmarks.second import judge_again
from orchestra.evaluation.benchmarks.tau2.scorer import figures as tau2_figures
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.experts.judging import URL
from orchestra.types import Charge, Price, Usage, add_up
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
    assert made.accuracy == pytest.approx((3 / 4 + 0) / 2)
    assert [rate.k for rate in made.rates] == [1, 2, 3]
    assert made.rates[1].all.value == pytest.approx((3 / 6 + 0) / 2)
    assert made.interval is not None and made.interval.value == pytest.approx(made.accuracy)
    assert made.cost_usd == Decimal("0.5")
    write(tmp_path / "reports/benchmarks/own/m", made, BENCHMARKS["own"].protocol, found)
    assert results(tmp_path) == [made]
    assert (tmp_path / "reports/benchmarks/own/m" / FAILURES).read_text().count("\n") == 1
    assert metrics(made)["pass_all_2"] == pytest.approx(0.25)
    assert table([made])[1].split() == ["own", "m", "2", "x", "4", "37.5%", "0.5000", "0.0", "1", "no"]


def test_an_accuracy_lies_in_its_interval_where_trials_of_hard_questions_fail() -> None:
    hard = [(False, None, None, None)] * 20
    made = summarise(
        BENCHMARKS["own"], attempts(*hard, *[(True,) * 4] * 20), model="m", identity="i", judge=None, data_sha256={},
        questions=40, there=40, trials=4,
    )  # fmt: skip
    assert made.interval is not None and made.interval.low is not None and made.interval.high is not None
    assert made.accuracy is not None and made.interval.low <= made.accuracy <= made.interval.high


def test_a_part_of_the_questions_is_not_the_benchmark() -> None:
    protocol = BENCHMARKS["hle"].protocol
    assert protocol.questions == 2158
    made = summarise(
        BENCHMARKS["hle"], [], model="m", identity="i", judge="j", data_sha256={}, questions=100, there=100, trials=1
    )
    assert not made.whole and made.accuracy is None


@pytest.mark.parametrize("failures, whole", [(0, True), (2, True), (3, False), (200, False)])
def test_a_result_that_lacks_more_than_one_verdict_in_a_hundred_is_not_whole(failures: int, whole: bool) -> None:
    found = attempts(*[(None,)] * failures, *[(True,)] * (200 - failures))
    made = summarise(
        BENCHMARKS["own"], found, model="m", identity="i", judge=None, data_sha256={}, questions=200, there=200,
        trials=1,
    )  # fmt: skip
    assert made.failures == failures and made.whole is whole


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
    domains[0] = domains[0].model_copy(update={"details": {"user_usd": "0.02"}})
    assert tau2_figures(domains, 4) == {"accuracy_domains": pytest.approx(1 / 3), "user_usd": 0.005}


def test_tau2_has_the_figures_of_each_domain_as_the_official_package_gives_them() -> None:
    found = [
        one.model_copy(update={"group": domain, "item": f"{domain}/{one.item}"})
        for domain, trials in {
            "airline": ((True, True, False, True), (False, False, False, False)),
            "retail": ((True, True, True, True), (True, True, None, True)),
            "telecom": ((True, False, False, False),),
            "mock": ((True, True, True, True),),
        }.items()
        for one in attempts(*trials)
    ]
    made = tau2_figures(found, 6)
    # Of pass_hat_k of tau2 1.0.1: C(successes, k) / C(trials, k), a mean over the domain's tasks.
    assert made["pass_all_1/airline"] == pytest.approx(3 / 8) and made["pass_all_3/airline"] == pytest.approx(1 / 8)
    assert made["pass_all_4/airline"] == 0 and made["pass_all_2/telecom"] == 0 and made["pass_all_4/mock"] == 1
    assert made["pass_all_3/retail"] == 1 and "pass_all_4/retail" not in made, "one task has three verdicts"
    assert made["accuracy_published"] == pytest.approx((3 / 8 + 1 + 1 / 4) / 3)
    assert made["accuracy_domains"] == pytest.approx((3 / 8 + 1 + 1 / 4 + 1) / 4)
    assert "accuracy_published" not in tau2_figures([one for one in found if one.group != "retail"], 4)


def test_a_tracking_server_gets_the_interval_and_the_parts_of_an_accuracy() -> None:
    def told(benchmark: str, found: list[Attempt]) -> dict[str, float]:
        some: Any = {"identity": "i", "judge": None, "data_sha256": {}, "questions": 40, "there": 40, "trials": 1}
        return metrics(summarise(BENCHMARKS[benchmark], found, model="m", **some))

    found = attempts(*[(True,)] * 10, *[(False,)] * 10, group="Math") + attempts(*[(True,)] * 20, group="Other")
    made = told("own", found)
    assert made["accuracy/Math"] == 0.5 and made["accuracy/Other"] == 1.0
    assert 0 < made["accuracy_low"] < made["accuracy"] < made["accuracy_high"] < 1
    kinds = told("frames", attempts((True,), group="Tabular | Numerical"))
    assert {name for name in kinds if "/" in name} == {"accuracy/Tabular", "accuracy/Numerical"}


def test_two_results_of_one_model_have_two_names() -> None:
    some: Any = {"identity": "i", "judge": None, "data_sha256": {}, "questions": 2, "there": 2, "trials": 1}
    whole, part = (summarise(BENCHMARKS["own"], [], model="m", **some, variant=one) for one in ("", "first-2"))
    assert [line.split()[1] for line in table([whole, part])[1:]] == ["m", "m-first-2"]
    assert "variant" not in whole.model_dump() and part.model_dump()["variant"] == "first-2"


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


REFUSED = {"error": {"message": "Unsupported parameter: 'temperature' is not supported with this model."}}
USAGE = {"prompt_tokens": 400, "completion_tokens": 3000}


@contextmanager
def reasoner(monkeypatch: pytest.MonkeyPatch, folder: Path, unwilling: Sequence[str] = ()) -> Iterator[Evaluation]:
    """Eight answers with their verdicts, and a second judge that takes no temperature, as OpenAI's."""
    reply = player("frames")

    def judges(request: dict[str, Any]) -> object:
        if not request["model"].startswith("o3"):
            return reply(request)
        if "temperature" in request or any(name in request["messages"][0]["content"] for name in unwilling):
            return (400, REFUSED, 0)
        return (200, answer("Decision: TRUE") | {"usage": USAGE}, 0)

    with serving(judges) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("frames", published("frames", folder, pairs("frames")[:8]), folder, double.url, concurrency=2)
        made.attempt(made.shards)
        yield made


@pytest.fixture
def judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluation]:
    with reasoner(monkeypatch, tmp_path) as made:
        yield made


def second_judge(made: Evaluation) -> JudgeSettings:
    found = made.spec.protocol.second_judge
    assert found is not None
    return found


def spent(made: Evaluation) -> Decimal:
    return add_up(total(read_jsonl(file, Charge)) for file in made.ledgers)


def test_a_second_judge_that_takes_no_temperature_is_sent_none(judged_once: Evaluation) -> None:
    found = judge_again(judged_once, judged_once.attempts(), 6, second_judge(judged_once))
    assert found is not None and found.count == 6


@pytest.mark.parametrize("ledger", ["ledger", "ledger-00000"])
def test_a_second_judge_keeps_each_verdict_and_the_cap_of_the_whole_evaluation(
    judged_once: Evaluation, ledger: str
) -> None:
    """What workers of a runner booked counts too, though they have ledgers of their own."""
    made, before = judged_once, spent(judged_once)
    (made.folder / "ledger.jsonl").rename(made.folder / f"{ledger}.jsonl")
    each = cost_of(Price(input_per_million=Decimal("1.1"), output_per_million=Decimal("4.4")), Usage(
        input_tokens=400, output_tokens=3000
    ))  # fmt: skip
    with pytest.raises(BudgetError, match="are spent"):
        judge_again(replace(made, cap_usd=before + 4 * each), made.attempts(), 8, second_judge(made))
    file = made.folder / "second-o3-mini-2025-01-31.jsonl"
    kept = len(file.read_text().splitlines())
    assert 0 < kept < 4 and spent(made) == before + kept * each
    with file.open("a") as partial:
        partial.write('{"item": "frames-0')  # A kill within a line.
    found = judge_again(made, made.attempts(), 8, second_judge(made))
    assert found is not None and found.count == 8 and spent(made) == before + 8 * each
    assert judge_again(made, made.attempts(), 8, second_judge(made)) == found and spent(made) == before + 8 * each


def test_an_answer_that_is_another_one_now_is_judged_again(judged_once: Evaluation) -> None:
    made, second = judged_once, second_judge(judged_once)
    judge_again(made, made.attempts(), 8, second)
    before = spent(made)
    changed = [one.model_copy(update={"answer": f"{one.answer}!"}) for one in made.attempts()[:2]]
    found = judge_again(made, changed, 8, second)
    assert found is not None and found.count == 2 and spent(made) > before


def test_what_a_second_judge_fails_on_is_said_and_all_of_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, said = [f"({row['id']})" for row in pairs("frames")[:8]], list[str]()
    with reasoner(monkeypatch, tmp_path, [names[0], names[3]]) as made:
        found = judge_again(made, made.attempts(), 8, second_judge(made), said.append)
    assert found is not None and found.count == 6
    assert len(said) == 1 and "o3-mini-2025-01-31: no second verdict on 2 of 8 answers: HTTP 400" in said[0]
    (tmp_path / "none").mkdir()
    said_of_all = r"no second verdict on 8 of 8 answers: HTTP 400.*leave out --agreement"
    with reasoner(monkeypatch, tmp_path / "none", names) as made, pytest.raises(JudgeError, match=said_of_all):
        judge_again(made, made.attempts(), 8, second_judge(made), said.append)
