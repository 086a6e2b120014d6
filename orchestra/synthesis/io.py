"""Examples on disk: one JSON object a line."""

from collections.abc import Iterable
from pathlib import Path

from orchestra.errors import DataError
from orchestra.jsonl import read_jsonl, write_jsonl
from orchestra.types import Example


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Write examples, one a line; returns how many."""
    return write_jsonl(path, examples)


def read_examples(path: Path) -> list[Example]:
    """Read a file of examples; a missing file or a line that is no example is a `DataError` naming file and line."""
    return read_jsonl(path, Example, fix="run the stage that writes the file again")


def split_watched(examples: list[Example], count: int, *, where: str) -> tuple[list[Example], list[Example]]:
    """Training examples, and the last `count`, which are watched during training; `DataError` when none would be left.

    Neither SFT nor GRPO learns from the watched ones, so a development check shows what was not seen. Held-out examples
    are evaluate's alone.
    """
    if len(examples) <= count:
        fix = "synthesize more examples or lower grpo.eval_examples"
        raise DataError(f"{len(examples)} examples, {count} of them to watch", where=where, fix=fix)
    return examples[: len(examples) - count], examples[len(examples) - count :]
