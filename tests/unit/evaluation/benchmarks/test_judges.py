"""A judge is asked one small thing before an evaluation: no attempt is paid for where it is gone."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.ledger import total
from orchestra.errors import BudgetError, ServiceError
from orchestra.evaluation.benchmarks.judges import check_judges
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.evaluation.benchmarks.second import judge_again
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.experts.judging import URL
from orchestra.types import Charge, Component
from tests.support.benchmarks import MODEL, evaluation, pairs, player, published
from tests.support.endpoint import answer, serving

JUDGE = "o3-mini-2025-01-31"
GONE = {"error": {"message": f"The model `{JUDGE}` has been deprecated.", "code": "model_not_found"}}


def without(*judges: str) -> Any:
    """An endpoint that serves these models no more."""
    reply = player("hle")
    return lambda request: (404, GONE, 0) if request["model"] in judges else reply(request)


@pytest.fixture
def made(tmp_path: Path) -> Evaluation:
    return evaluation("hle", published("hle", tmp_path, pairs("hle")[:2]), tmp_path)


def test_a_judge_that_is_gone_ends_it_before_the_model_is_asked(
    made: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(without(JUDGE)) as double:
        monkeypatch.setenv(URL, double.url)
        with pytest.raises(ServiceError) as caught:
            check_judges(made)
        (request,) = double.asked
        other = made.spec.protocol.second_judge
        check_judges(replace(made, judge=other))
        assert [one["model"] for one in double.asked] == [JUDGE, "gpt-4.1-2025-04-14"]
    assert request["model"] == JUDGE and request["max_completion_tokens"] == 4096
    line = str(caught.value)
    assert line.startswith(f"the judge {JUDGE}: HTTP 404: ") and "has been deprecated" in line and "\n" not in line
    assert "nothing was asked of the model" in line and "--judge MODEL --judge-price PROVIDER/MODEL" in line


def test_a_refused_key_and_a_harness_are_told_apart(made: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([(401, {"error": "who are you"}, 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        with pytest.raises(ServiceError, match=r"HTTP 401: .* — check its key; to name another judge: --judge MODEL"):
            check_judges(made)
        with pytest.raises(ServiceError, match="check its key; without --harness, to name another judge: --judge"):
            check_judges(made, harness=True)


def test_the_second_judge_is_asked_where_it_is_wanted(made: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    second = made.spec.protocol.second_judge
    assert second is not None
    with serving(without(second.model)) as double:
        monkeypatch.setenv(URL, double.url)
        check_judges(made)
        with pytest.raises(ServiceError, match=rf"the judge {second.model}: HTTP 404.*or leave out --agreement"):
            check_judges(made, second)


@pytest.mark.parametrize("said", ["2", "", "<think>hm"])
def test_what_it_says_is_not_read_and_what_it_costs_is_booked(
    made: Evaluation, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    with serving([(200, answer(said), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        check_judges(made)
        (booked,) = read_jsonl(made.folder / "ledger.jsonl", Charge)
        assert booked.component is Component.JUDGE and booked.cost_usd > 0
        with pytest.raises(BudgetError):
            check_judges(replace(made, cap_usd=total([booked])))
        assert len(double.asked) == 1


def test_where_no_verdict_is_wanted_no_judge_is_asked(
    made: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        done = replace(made, model=replace(made.model, model=f"{MODEL}@{double.url}"), cap_usd=Decimal(1))
        done.attempt(done.shards)
    monkeypatch.setenv(URL, "http://127.0.0.1:9/v1")
    check_judges(done)
    check_judges(replace(made, user="solo"))
    tape = tmp_path / "tape.jsonl"
    tape.touch()
    check_judges(replace(made, model=replace(made.model, tape=("replay", str(tape)))))


def test_a_recorded_reply_does_not_stand_for_the_judge(
    made: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = list[str]()
    with serving(lambda request: without(*gone)(request)) as double:
        monkeypatch.setenv(URL, double.url)
        taped = replace(made, model=replace(made.model, tape=("auto", str(tmp_path / "tape.jsonl"))))
        check_judges(taped)
        gone.append(JUDGE)
        with pytest.raises(ServiceError, match=rf"the judge {JUDGE}: HTTP 404"):
            check_judges(taped)


def test_a_second_judge_whose_verdicts_are_all_there_is_not_asked(
    made: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = made.spec.protocol.second_judge
    assert second is not None
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        done = replace(made, model=replace(made.model, model=f"{MODEL}@{double.url}"))
        done.attempt(done.shards)
        judge_again(done, done.attempts(), 1, second)
    with serving(without(second.model)) as double:
        monkeypatch.setenv(URL, double.url)
        check_judges(done, second, 1)
        assert not double.asked
        with pytest.raises(ServiceError, match="HTTP 404"):
            check_judges(done, second, 2)
