"""Two judges on verdicts made by hand: who is lenient, how far they agree, and whether the order of models holds."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.evaluation.analyses.judges import JudgeAnalysis, Key, compare, judged, metrics, notes, plot, table
from orchestra.evaluation.benchmarks.base import Attempt
from orchestra.types import Judged


def verdict(judge: str, solved: bool, usd: str = "0.01") -> Judged:
    return Judged(judge=judge, rubric="hle", prompt="p", reply="r", solved=solved, cost_usd=Decimal(usd))


def read(judge: str, usd: str, **models: Sequence[bool]) -> dict[Key, Judged]:
    return {
        (model, f"q{number}", 0): verdict(judge, solved, usd)
        for model, verdicts in models.items()
        for number, solved in enumerate(verdicts)
    }


STRONG = read("o3-mini", "0.02", a=[True, True, True, False], b=[True, False, False, False])
OPEN = read("qwen3-32b", "0.001", a=[True, True, False, False], b=[True, True, True, False])


def analysis(other: dict[Key, Judged] = OPEN) -> JudgeAnalysis:
    return compare("hle", STRONG, other, "qwen3-32b", 50, 0)


def test_lenient_strict_and_the_order_of_the_models(tmp_path: Path) -> None:
    found = analysis()
    everything, one, two = found.rows
    assert (everything.answers, everything.lenient, everything.strict) == (8, 2, 1)
    assert everything.agreed == pytest.approx(5 / 8) and everything.kappa == pytest.approx(0.25)
    assert (one.model, one.first.value, one.other.value, one.difference.value) == ("a", 0.75, 0.5, -0.25)
    assert (two.first.value, two.other.value, two.lenient, two.strict) == (0.25, 0.75, 2, 0)
    assert found.same_order is False and "DIFFERS" in notes(found)[1]
    assert (found.first_usd, found.other_usd) == (Decimal("0.02"), Decimal("0.001"))
    assert table(found)[1][:4] == ("all", "8", "50.0 %", "62.5 %") and metrics(found)["b.other"] == 0.75
    plot(found, tmp_path / "judges.png")
    assert (tmp_path / "judges.png").read_bytes().startswith(b"\x89PNG")


def test_a_judge_that_failed_is_left_out_and_counted() -> None:
    found = analysis({key: one for key, one in OPEN.items() if key[0] == "a"})
    assert found.failed == 4 and [row.model for row in found.rows] == ["all", "a"] and found.same_order is None
    nothing = analysis({})
    assert nothing.failed == 8 and nothing.rows == () and len(table(nothing)) == 1


def test_only_answers_that_a_judge_decided_are_compared() -> None:
    stored = Attempt(item="q0", trial=0, solved=True, judged=verdict("o3-mini", True))
    ruled = Attempt(item="q1", trial=0, solved=False, why="no answer")
    assert list(judged({"a": [stored, ruled]})) == [("a", "q0", 0)]
