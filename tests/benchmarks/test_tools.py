"""The speeds of tools: every piece is found, and search's figures are those of a search that works."""

from pathlib import Path

import pytest

from benchmarks.clock import Spent
from benchmarks.command import Row, table
from benchmarks.tools import pieces
from benchmarks.tools_search import PASSAGES, Figures, measure, report


def test_every_piece_is_found_and_joined() -> None:
    assert "search" in pieces()
    rows = [Row("a", "1", "≥ 1", True), Row("b", "2")]
    assert table(rows).splitlines()[2:] == ["| a | 1 | ≥ 1 |", "| b | 2 | — |"]


def test_search_is_measured(tmp_path: Path) -> None:
    figures = measure(300, tmp_path)
    assert figures.queries / figures.single.wall_s > 10 and figures.index_mb > 0.1
    assert report(figures)[0][0] == "search, 300 passages: BM25 one by one"
    assert {row.met for row in report(figures)} == {None}


@pytest.mark.parametrize(("cpu_s", "met"), [(1.9, True), (2.1, False)])
def test_searchs_bar_is_of_idle_cores_and_can_be_missed(cpu_s: float, met: bool) -> None:
    other, asked = Spent(1.0, 1.0), Spent(9.0, cpu_s)
    figures = Figures(PASSAGES, other, 1.0, 1.0, 1.0, other, other, 1.0, asked, asked, 2_000)
    assert [row.met for row in report(figures)[:2]] == [met, True]
