"""Rows of files: one at a time, and one line that names file and line for whatever is wrong."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.errors import DataError
from orchestra.files.tables import Row, read_rows, write_json_lines

DATA = Path(__file__).parents[1] / "synthesis/imports/data"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', r"a.jsonl:2: not JSON: Expecting value"),
        ("a.jsonl", b'{"a": 1}\n\xff\n', r"a.jsonl:2: not UTF-8 at byte 0"),
        ("a.jsonl", b'{"a": "\\ud83d\\ude00"}\n{"a": "\\uD800!"}\n', r"a.jsonl:2: half a surrogate pair"),
        ("a.csv", b"a,b,a\n1,2,3\n", r"a.csv:1: two columns have the name a"),
        ("a.jsonl", b"[1]\n", r"a.jsonl:1: not an object but list"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1: not JSON"),
        ("a.json", b'{"a": 1}', r"a.json: not a list of objects"),
        ("a.json", b'[{"a": 1}, 2]', r"a.json:2: not an object but int"),
        ("a.tsv", b"a\tb\n1\t2\t3\n", r"a.tsv:2: more fields than the head names"),
        ("a.csv", b"a\n\xff\n", r"a.csv: not UTF-8"),
        ("a.parquet", b"PAR1 and no more", r"a.parquet: not a whole Parquet file"),
        ("a.parquet", b"", r"a.parquet: not a whole Parquet file"),
        ("a.txt", b"a", r"a.txt: no such format"),
        ("a.jsonl", None, r"a.jsonl: no such file"),
    ],
)
def test_a_corrupt_file_is_one_line(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as error:
        list(read_rows(tmp_path / name))
    assert "\n" not in str(error.value) and " — " in str(error.value)


def test_a_damaged_parquet_file_is_one_line(tmp_path: Path) -> None:
    whole_file = (DATA / "toolscale.parquet").read_bytes()
    for cut in (len(whole_file) // 2, len(whole_file) - 20):
        (tmp_path / "cut.parquet").write_bytes(whole_file[:cut])
        with pytest.raises(DataError, match="not a whole Parquet file"):
            list(read_rows(tmp_path / "cut.parquet"))


def test_lines_end_where_json_lines_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('\ufeff{"a": "one\u2028two"}\n{"a": "three"}'.encode())
    assert [row["a"] for _, row in read_rows(tmp_path / "a.jsonl")] == ["one\u2028two", "three"]


def test_empty_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\r\n\r\n  \n{"a": 2}\n\n')
    places = [(where.rpartition(":")[2], row["a"]) for where, row in read_rows(tmp_path / "a.jsonl")]
    assert places == [("1", 1), ("4", 2)]


def test_csv_keeps_lines_within_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('Prompt,Answer\n"first\nsecond",x\n', encoding="utf-8")
    assert [row for _, row in read_rows(tmp_path / "a.csv")] == [{"Prompt": "first\nsecond", "Answer": "x"}]


def test_a_large_file_is_not_held(tmp_path: Path) -> None:
    rows = ({"text": f"{number} " * 100} for number in range(5_000))
    assert write_json_lines(tmp_path / "large.jsonl", rows) == 5_000
    tracemalloc.start()
    try:
        assert sum(len(row) for _, row in read_rows(tmp_path / "large.jsonl")) == 5_000
        assert tracemalloc.get_traced_memory()[1] < (tmp_path / "large.jsonl").stat().st_size / 5
    finally:
        tracemalloc.stop()


def test_columns_that_are_not_wanted_are_not_read() -> None:
    _, row = next(read_rows(DATA / "general_thought.parquet", {"question", "nothing"}))
    assert list(row) == ["question"]


def test_what_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("old", encoding="utf-8")

    def rows() -> Iterator[Row]:
        yield {"a": "new"}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_json_lines(path, rows())
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]
    write_json_lines(path, [{"a": "é"}])
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "é"}
