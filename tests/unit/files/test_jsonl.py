"""Reading a file in parts gives what reading it whole gives."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import DataError
from orchestra.files import jsonl
from orchestra.files.jsonl import chunks, read_jsonl, read_lines, stream_jsonl, stream_lines, write_jsonl
from orchestra.types import Charge, Component

LINE = st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))


@given(st.lists(LINE, max_size=9), st.integers(1, 4), st.booleans())
def test_chunks_and_streams_hold_the_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int, ended: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ended and lines else b""))
    whole = read_lines(path, lenient=True)
    cut = list(chunks(path, size))
    assert [line for chunk in cut for line in chunk.read()] == whole
    assert [chunk.first for chunk in cut] == list(range(1, len(whole) + 1, size))
    assert sum(chunk.lines for chunk in cut) == len(whole)
    assert list(stream_lines(path)) == list(enumerate(whole, start=1))


def test_a_missing_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    for read in (lambda: list(chunks(tmp_path / "x", 1)), lambda: list(stream_lines(tmp_path / "x"))):
        with pytest.raises(DataError, match="x: no such file — run the stage that writes it"):
            read()


def test_records_are_read_one_after_another(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    write_jsonl(file, [charge := Charge(component=Component.EXPERT, name="x", cost_usd=Decimal(1))] * 2)
    assert list(stream_jsonl(file, Charge)) == read_jsonl(file, Charge) == [charge, charge]
    with file.open("a") as more:
        more.write("{}\n")
    found = stream_jsonl(file, Charge)
    assert [next(found), next(found)] == [charge, charge], "what follows is not read yet"
    for read in (lambda: next(found), lambda: read_jsonl(file, Charge)):
        with pytest.raises(DataError, match=r"x\.jsonl:3: "):
            read()


@pytest.mark.parametrize("text", ["", "a\n", "a\nb", "abcdefgh", "a\n" + "b" * 50, "\n\nabc"])
def test_a_file_is_cut_to_its_whole_lines(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "BLOCK", 7)
    file = tmp_path / "x.jsonl"
    file.write_text(text)
    jsonl.end_with_a_line(file)
    assert file.read_text() == text[: text.rfind("\n") + 1]


def test_nothing_is_read_beyond_half_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its writer goes on between two reads: what is then read is the rest of that line, with an end.
    monkeypatch.setattr(jsonl, "_open_lines", lambda *_: iter([b"a\n", b'{"x"', b": 1}\n"]))
    assert list(stream_lines(Path(), whole=True)) == [(1, "a")]
