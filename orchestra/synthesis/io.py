"""Examples on disk: one JSON object a line."""

from collections.abc import Iterable
from pathlib import Path

from orchestra.jsonl import read_jsonl, write_jsonl
from orchestra.types import Example


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Write examples, one a line; returns how many."""
    return write_jsonl(path, examples)


def read_examples(path: Path) -> list[Example]:
    """Read a file of examples; a missing file or a line that is no example is a `DataError` naming file and line."""
    return read_jsonl(path, Example, fix="run the stage that writes the file again")
