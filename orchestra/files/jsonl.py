"""JSON, one object a line."""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from orchestra.errors import DataError

M = TypeVar("M", bound=BaseModel)
BLOCK = 1 << 16
"""Bytes that are read at once from a file's end."""


@dataclass(frozen=True)
class Chunk:
    """A run of whole lines of a file, for readers that take it in parts."""

    path: Path
    first: int
    """Number of its first line, from 1."""
    lines: int
    offset: int
    size: int
    """Where it begins and how long it is, in bytes."""

    def read(self) -> list[str]:
        """Its lines, without their ends; bytes that are not UTF-8 are kept as lone surrogates, as `parse_line` asks."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return [_text(line) for line in file.read(self.size).removesuffix(b"\n").split(b"\n")]


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


def end_with_a_line(path: Path) -> None:
    """Cut what a killed process or a full disk left of a line, so that the next one can be added."""
    with path.open("rb") as file:
        end = place = file.seek(0, os.SEEK_END)
        while place:
            size = min(BLOCK, place)
            place -= size
            file.seek(place)
            found = file.read(size).rfind(b"\n")
            if found >= 0:
                place += found + 1
                break
    if place < end:
        os.truncate(path, place)


def chunks(path: Path, lines: int, *, fix: str = "run the stage that writes it") -> Iterator[Chunk]:
    """The file in runs of at most `lines` lines, without holding it; raises `DataError` when it is missing."""
    first, count, offset, size = 1, 0, 0, 0
    for line in _open_lines(path, fix):
        count, size = count + 1, size + len(line)
        if count == lines:
            yield Chunk(path, first, count, offset, size)
            first, count, offset, size = first + count, 0, offset + size, 0
    if count:
        yield Chunk(path, first, count, offset, size)


def whole_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Up to half a line, and nothing beyond: once its rest is written, that would be read as a line."""
    return takewhile(lambda line: line.endswith(b"\n"), lines)


def stream_lines(
    path: Path, *, fix: str = "run the stage that writes it", whole: bool = False
) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1, as `read_lines` would give them leniently, without holding the file.

    `whole`: but for a last one without an end, which is being written.
    """
    lines = _open_lines(path, fix)
    if whole:
        lines = whole_lines(lines)
    return ((number, _text(line)) for number, line in enumerate(lines, start=1))


def copy_lines(path: Path, target: Path, *, without: Collection[int]) -> None:
    """Write the lines, byte by byte, but those of these numbers, from 1; raises `DataError` for a missing file."""
    if not without and path.is_file():
        shutil.copyfile(path, target)  # the system does it several times faster
        return
    with target.open("wb") as file:
        lines = enumerate(_open_lines(path, "run the stage that writes it"), start=1)
        file.writelines(_bare(line) + b"\n" for number, line in lines if number not in without)


def _open_lines(path: Path, fix: str) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError("no such file", where=str(path), fix=fix) from None
    with file:
        yield from file


def _bare(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _text(line: bytes) -> str:
    return _bare(line).decode("utf-8", "surrogateescape")


def read_jsonl(path: Path, model: type[M], *, fix: str = "run the stage that writes it") -> list[M]:
    """Every record of a file; a line that is none is a `DataError` naming file and line."""
    records = []
    for number, line in enumerate(read_lines(path, fix=fix), start=1):
        parsed = parse_line(line, model)
        if isinstance(parsed, str):
            raise DataError(parsed, where=f"{path}:{number}", fix=fix)
        records.append(parsed)
    return records


def stream_jsonl(
    path: Path, model: type[M], *, fix: str = "run the stage that writes it", whole: bool = False
) -> Iterator[M]:
    """Every record of a file, one after another, without holding them; a line that is none is a `DataError`.

    `whole`: a last line without an end, which is being written or was cut by a full disk, is left out.
    """
    for number, line in stream_lines(path, fix=fix, whole=whole):
        parsed = parse_line(line, model)
        if isinstance(parsed, str):
            raise DataError(parsed, where=f"{path}:{number}", fix=fix)
        yield parsed


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
