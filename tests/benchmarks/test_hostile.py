"""The benchmark of hostile callers: every kind of them acts, honest callers get their answers, nothing is paid."""

import pytest

from benchmarks import hostile
from benchmarks.hostile import KINDS, Found


@pytest.mark.slow
def test_honest_callers_are_answered_beside_hostile_ones() -> None:
    alone, beside, paid, control = hostile.measure(12, callers=32)
    assert set(beside.done) == set(KINDS) and not alone.done
    assert alone.requests > 0 and beside.requests > 0 and alone.failed == beside.failed == {}
    assert paid == hostile.PAID_BAR < control and beside.kept_mb <= hostile.MEMORY_BAR


def test_the_report_tells_both_runs_and_the_bars() -> None:
    alone = Found(100, {}, 0.005, 1.0, 1.2, 1.0, 0.0, {})
    beside = Found(90, {"503": 2}, 0.007, 1.1, 1.5, 12.0, 3.0, {"hang-ups": 7})
    text = hostile.report(alone, beside, 0.0, 0.06)
    assert "| p95 | 1.200 s | 1.500 s | ≤ 1.5 times | 1.25 times |" in text
    assert "| without a right answer | 0 | 2 | 0 |" in text and "7 hang-ups" in text
    assert missed(hostile.bars(alone, beside, 0.0, 0.06)) == {"without a right answer"}
    worse = Found(90, {}, 0.007, 1.1, 1.9, 99.0, 65.0, {})
    every = {"p95", "memory, largest growth", "memory, kept", "paid for callers who had left"}
    assert missed(hostile.bars(alone, worse, 0.01, 0.06)) == every
    # Where nobody pays for anything, nothing was shown.
    assert missed(hostile.bars(alone, alone, 0.0, 0.0)) == {"paid for callers who had left"}


def missed(bars: dict[str, bool]) -> set[str]:
    return {name for name, met in bars.items() if not met}
