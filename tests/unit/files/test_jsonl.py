"""Reading a file in parts gives what reading it whole gives."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import DataError
from orchestra.files.jsonl import chunks, read_lines, stream_lines

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
