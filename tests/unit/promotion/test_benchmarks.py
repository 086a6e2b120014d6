"""Benchmark results on the decision page: each figure in its own column, under the name of the version."""

from decimal import Decimal
from typing import Any

from orchestra.evaluation.benchmarks.agreement import Agreement
from orchestra.evaluation.benchmarks.report import Summary
from orchestra.promotion.benchmarks import results_table, section
from orchestra.statistics.intervals import Interval
from orchestra.statistics.trials import PassRates


def summary(**update: Any) -> Summary:
    made: dict[str, Any] = {
        "benchmark": "hle", "protocol_version": "1", "split": "test", "model": "qwen3-8b", "identity": "i",
        "judge": None, "data_sha256": {}, "questions": 40, "whole": True, "trials": 3, "scored": 110, "failures": 10,
        "accuracy": 0.25, "interval": Interval(value=0.25, low=0.2, high=0.305), "rates": (), "groups": {},
        "cost_usd": Decimal("0.0123"), "latency_s": 2.25, "calls": {}, "judge_usd": Decimal(0), "simulated": False,
        "figures": {},
    }  # fmt: skip
    return Summary(**{**made, **update})


def test_a_result_has_each_of_its_figures() -> None:
    rates = tuple(PassRates(k=k, all=Interval(value=0.5 / k), any=Interval(value=0.9)) for k in (1, 2))
    agreement = Agreement(first="a", second="o3-mini", count=9, agreed=0.9, kappa=0.8)
    judged = summary(
        judge="judge-1", agreement=agreement, rates=rates, simulated=True, whole=False, checkpoint="c" * 64
    )
    header, rows = results_table([judged, summary()], {"c" * 64: "version 3"})
    by_rule, by_judge = (dict(zip(header, row, strict=True)) for row in rows)
    assert by_rule == {
        "benchmark": "hle (40 x 3)", "model": "qwen3-8b", "solved": "25.0 %", "95 % interval": "20.0 to 30.5",
        "pass^k": "—", "per attempt": "1.230 ¢", "s": "2.2", "without a verdict": "10 of 120", "judge": "rules",
        "whole": "yes",
    }  # fmt: skip
    assert by_judge == by_rule | {
        "model": "version 3 (simulated experts)", "pass^k": "1: 50.0 %; 2: 25.0 %",
        "judge": "judge-1, κ 0.80 with o3-mini", "whole": "no",
    }  # fmt: skip
    assert "κ 0.80 with o3-mini" in section((header, rows))


def test_another_judge_than_the_protocol_s_is_named() -> None:
    (row,) = results_table([summary(judge="judge-1", protocol_judge="o3-mini", whole=False)], {})[1]
    assert row[8] == "judge-1 (not the protocol's o3-mini)"


def test_a_part_of_a_benchmark_says_which() -> None:
    rows = results_table([summary(), summary(variant="telecom-solo", whole=False)], {})[1]
    assert [row[0] for row in rows] == ["hle (40 x 3)", "hle (40 x 3; telecom-solo)"]


def test_what_is_not_known_is_a_dash() -> None:
    half = Agreement(first="a", second="b", count=1, agreed=1.0, kappa=None)
    unknown = [summary(accuracy=None, interval=one, agreement=half) for one in (None, Interval())]
    for row in results_table(unknown, {})[1]:
        assert (row[2], row[3], row[8]) == ("—", "—", "rules")


def test_results_stand_by_benchmark_then_version_then_model() -> None:
    made = [
        summary(benchmark=benchmark, model=model, checkpoint=checkpoint)
        for benchmark, model, checkpoint in [("tau2", "a", ""), ("hle", "b", "2"), ("hle", "c", "1"), ("hle", "a", "")]
    ]
    rows = results_table(made, {"1": "version 2", "2": "version 1"})[1]
    assert [row[1] for row in rows] == ["a", "version 1", "version 2", "a"] and rows[-1][0].startswith("tau2")
    assert "None was measured yet" in section(results_table([], {}))
