"""JSON, one object a line."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from orchestra.errors import DataError

M = TypeVar("M", bound=BaseModel)


def write_jsonl(path: Path, records: Iterable[BaseModel]) -> int:
    """Write records, one a line; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(record.model_dump_json() + "\n")
            count += 1
    return count


def read_lines(path: Path, *, fix: str = "run the stage that writes it", lenient: bool = False) -> list[str]:
    """The lines of a file; raises `DataError` when it is missing or not UTF-8.

    `lenient` keeps bytes that are not UTF-8 as lone surrogates: `parse_line` refuses the lines that hold them.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape" if lenient else "strict")
    except FileNotFoundError:
        raise DataError("no such file", where=str(path), fix=fix) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error.reason}", where=str(path), fix=fix) from None
    # Not splitlines(): that would also cut at characters that JSON leaves unescaped, such as U+2028.
    return text.removesuffix("\n").split("\n") if text else []


def read_jsonl(path: Path, model: type[M], *, fix: str = "run the stage that writes it") -> list[M]:
    """Every record of a file; a line that is none is a `DataError` naming file and line."""
    records = []
    for number, line in enumerate(read_lines(path, fix=fix), start=1):
        parsed = parse_line(line, model)
        if isinstance(parsed, str):
            raise DataError(parsed, where=f"{path}:{number}", fix=fix)
        records.append(parsed)
    return records


def parse_line(line: str, model: type[M]) -> M | str:
    """The record, or in one line why it is none."""
    try:
        line.encode()
        return model.model_validate_json(line)
    except UnicodeEncodeError:
        return "not UTF-8"
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        return f"{key + ': ' if key else ''}{first['msg']} (got {first['input']!r:.60})"
