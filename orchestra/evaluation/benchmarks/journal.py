"""The attempts of an evaluation on disk while it runs: a line each, in shards, so that a killed run continues."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra.evaluation.benchmarks.base import Attempt
from orchestra.files import atomic
from orchestra.files.jsonl import end_with_a_line, parse_line, read_lines

Key = tuple[str, int]
"""A question's id, and the trial."""
SHARD = 32
"""Questions of one shard, with all of their trials: the least that a worker takes."""


@dataclass(frozen=True)
class QuestionShard:
    """A run of questions."""

    index: int
    items: tuple[str, ...]


def shards(items: Sequence[str]) -> list[QuestionShard]:
    """The questions in shards, the same ones whatever the number of workers."""
    return [
        QuestionShard(n, tuple(items[start : start + SHARD])) for n, start in enumerate(range(0, len(items), SHARD))
    ]


@dataclass(frozen=True)
class Journal:
    """A folder with a file for each shard. One process at a time writes a shard."""

    folder: Path

    def read(self, shard: QuestionShard) -> dict[Key, Attempt]:
        """The attempts that were written whole; a line that a kill cut off is removed."""
        return {(one.item, one.trial): one for one in _attempts(self._file(shard))}

    def write(self, shard: QuestionShard, attempt: Attempt) -> None:
        """Add an attempt, and wait until the disk has it."""
        atomic.append_text(self._file(shard), attempt.model_dump_json() + "\n")

    def forget_failures(self, shard: QuestionShard) -> int:
        """Take failures at these questions out, so that they are attempted again; returns how many.

        Of an answer that the judge failed on, the answer stays.
        """

        def forgotten(attempt: Attempt) -> bool:
            return bool(attempt.failure) and attempt.item in shard.items

        count = sum(map(forgotten, self.read(shard).values()))
        if count:
            kept = [attempt for attempt in _attempts(self._file(shard)) if not forgotten(attempt)]
            atomic.write_text(self._file(shard), "".join(attempt.model_dump_json() + "\n" for attempt in kept))
        return count

    def _file(self, shard: QuestionShard) -> Path:
        return self.folder / f"{shard.index:05d}.jsonl"


def _attempts(file: Path) -> Iterator[Attempt]:
    if not file.exists():
        return
    end_with_a_line(file)
    for line in read_lines(file, lenient=True):
        if isinstance(attempt := parse_line(line, Attempt), Attempt):
            yield attempt
