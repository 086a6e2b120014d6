"""Rows of JSON lines, JSON, CSV, TSV and Parquet files, one at a time whatever the file's size."""

import csv
import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestra.errors import DataError
from orchestra.files import atomic

Row = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

BATCH = 512
"""Parquet rows held at once."""
FORMATS = (".jsonl", ".parquet", ".json", ".csv", ".tsv")
MAX_FIELD = 1 << 24
"""Characters of one CSV field."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape of half a surrogate pair; two in a row are one character."""
GET_AGAIN = "get the file again, or take the line out"


def read_rows(path: Path, columns: Collection[str] | None = None) -> Iterator[tuple[str, Row]]:
    """(where, row) of every row, `where` as `file:line` (Parquet, JSON: the row's number from 1).

    `columns` spares reading the other columns of Parquet; those that the file lacks are not missed. Raises `DataError`
    of one line for a missing or corrupt file, a line that is no object and a format that is not one of `FORMATS`.
    """
    readers = {".jsonl": _json_lines, ".json": _json, ".csv": _separated, ".tsv": _separated}
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path, columns)
        elif path.suffix in readers:
            yield from readers[path.suffix](path)
        else:
            raise DataError("no such format", where=str(path), fix=f"name a file that ends in {', '.join(FORMATS)}")
    except FileNotFoundError:
        raise DataError("no such file", where=str(path), fix="check the path") from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(path), fix=GET_AGAIN) from None


def columns_of(row: Row, where: str) -> list[str]:
    """The columns of a row that `read_rows` gave, with those of Parquet that it did not read."""
    path = Path(where.rpartition(":")[0])
    if path.suffix != ".parquet":
        return list(row)
    import pyarrow.parquet as pq

    return list(pq.read_schema(path).names)


def parse_row(row: Row, model: type[M], where: str, fix: str = "fix the row") -> M:
    """The row as a record; raises `DataError` naming file, line and field."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        raise DataError(problem(error), where=where, fix=fix) from None


def problem(error: ValidationError) -> str:
    """The first thing that is wrong: `field verifier.answer: Input should be a valid string (got 3)`."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"field {field or '(the row)'}: {first['msg']} (got {first['input']!r:.60})"


def write_json_lines(path: Path, rows: Iterable[Row]) -> int:
    """Write rows whole or not at all; returns how many."""
    count = 0
    with atomic.open_text(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def write_parquet(path: Path, rows: Iterable[Row], schema: Any) -> int:
    """Write rows under a `pyarrow.Schema`, `BATCH` at a time, whole or not at all; returns how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, held = 0, list[Row]()
    with atomic.whole_file(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        for row in rows:
            held.append(row)
            count += 1
            if len(held) == BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(held, schema))
                held.clear()
        writer.write_batch(pa.RecordBatch.from_pylist(held, schema))
    return count


def _json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    # In bytes: a text file would give no line number for what is not UTF-8, and cut lines at U+2028.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            yield where, _object(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, where)


def _object(text: bytes, where: str) -> Row:
    value = _parsed(text, where)
    if not isinstance(value, dict):
        raise DataError(f"not an object but {type(value).__name__}", where=where, fix=GET_AGAIN)
    return value


def _parsed(text: bytes, where: str) -> Any:
    try:
        value = json.loads(text.decode("utf-8"))
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 at byte {error.start}", where=where, fix=GET_AGAIN) from None
    except UnicodeEncodeError:
        raise DataError("half a surrogate pair, which is no text", where=where, fix=GET_AGAIN) from None
    except (ValueError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"not JSON: {what}", where=where, fix=GET_AGAIN) from None


def _json(path: Path) -> Iterator[tuple[str, Row]]:
    """A list of objects, held as a whole: published so are only small files (the tasks of tau2-bench)."""
    value = _parsed(path.read_bytes(), str(path))
    if not isinstance(value, list):
        raise DataError("not a list of objects", where=str(path), fix="write one object a line, as .jsonl")
    for number, row in enumerate(value, start=1):
        if not isinstance(row, dict):
            raise DataError(f"not an object but {type(row).__name__}", where=f"{path}:{number}", fix=GET_AGAIN)
        yield f"{path}:{number}", row


def _separated(path: Path) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(MAX_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        try:
            head = [name for name in reader.fieldnames or () if name]
            if twice := next((name for name in head if head.count(name) > 1), None):
                raise DataError(f"two columns have the name {twice}", where=f"{path}:1", fix="rename one of them")
            for row in reader:
                if None in row:
                    raise DataError("more fields than the head names", where=f"{path}:{reader.line_num}", fix=GET_AGAIN)
                yield f"{path}:{reader.line_num}", row
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8: {error.reason}", where=str(path), fix=GET_AGAIN) from None
        except csv.Error as error:
            raise DataError(f"not a table: {error}", where=f"{path}:{reader.line_num}", fix=GET_AGAIN) from None


def _parquet(path: Path, columns: Collection[str] | None) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            wanted = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
            for batch in file.iter_batches(batch_size=BATCH, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", row
    except pa.ArrowException as error:
        what = f"not a whole Parquet file: {error}"
        raise DataError(what, where=f"{path}:{number + 1}" if number else str(path), fix="get the file again") from None
