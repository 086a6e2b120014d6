"""Examples on disk: one JSON object a line."""

from collections.abc import Iterable
from pathlib import Path

from orchestra.errors import DataError
from orchestra.files.jsonl import parse_line, read_jsonl, stream_lines
from orchestra.types import Example


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


def with_difficulties(examples: list[Example], measured: Path) -> list[Example]:
    """The examples with the difficulties that `orchestra data measure` wrote; those it did not measure keep their own.

    Raises `DataError` for a file that is missing or holds other things.
    """
    fix = "run orchestra data measure"
    known: dict[tuple[str, str], float] = {}
    for number, line in stream_lines(measured, fix=fix):
        tried = parse_line(line, Example)
        if isinstance(tried, str):
            raise DataError(tried, where=f"{measured}:{number}", fix=fix)
        if tried.difficulty is not None:
            known[tried.id, tried.asked] = tried.difficulty
    # By what is asked too: another set has other examples under the same ids.
    found = [known.get((one.id, one.asked), one.difficulty) for one in examples]
    return [one.model_copy(update={"difficulty": it}) for one, it in zip(examples, found, strict=True)]


def in_range(examples: Iterable[Example], band: tuple[float, float]) -> list[Example]:
    """The examples whose difficulty lies in the band, where a policy sometimes fails and so learns, and those that
    nobody has measured."""
    low, high = band
    return [one for one in examples if one.difficulty is None or low <= one.difficulty <= high]
