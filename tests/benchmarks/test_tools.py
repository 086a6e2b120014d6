"""The speeds of tools: every piece is found, and search's figures are those of a search that works."""

from pathlib import Path

from benchmarks.tools import pieces, table
from benchmarks.tools_search import measure, report


def test_every_piece_is_found_and_joined() -> None:
    assert "search" in pieces()
    assert table([("a", "1", "≥ 1"), ("b", "2", "—")]).splitlines()[2:] == ["| a | 1 | ≥ 1 |", "| b | 2 | — |"]


def test_search_is_measured(tmp_path: Path) -> None:
    figures = measure(300, tmp_path)
    assert figures.queries / figures.single.wall_s > 10 and figures.index_mb > 0.1
    assert report(figures)[0][0] == "search, 300 passages: BM25 one by one"
