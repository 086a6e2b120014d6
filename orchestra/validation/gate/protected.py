"""The questions of the benchmarks, read from wherever the user has put them; nothing of them is shipped."""

from collections.abc import Iterator
from pathlib import Path

from orchestra.errors import DataError
from orchestra.files.tables import FORMATS, Row, parse_row, read_rows
from orchestra.validation.gate.published import Task

QUESTION_FIELDS = ("question", "Prompt", "instruction")
"""What HLE, FRAMES and files of our own examples call the question."""
TASK_FIELDS = ("id", "user_scenario")
"""What a task of tau2-bench is known by."""
NO_QUESTIONS = ("split_tasks", "db", "user_db")
"""Files that lie beside the tasks of tau2-bench and hold none, by stem."""


def protected_files(folder: Path) -> dict[str, list[Path]]:
    """Files by set: `hle.parquet` and everything below `hle/` are the set hle. Empty when there is no such folder."""
    sets: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file() and file.suffix in FORMATS and file.stem not in NO_QUESTIONS:
            parts = file.relative_to(folder).parts
            sets.setdefault(parts[0] if len(parts) > 1 else file.stem, []).append(file)
    return sets


def questions(file: Path) -> Iterator[str]:
    """The questions of a file in the schema of HLE, FRAMES, tau2-bench or our examples.

    Raises `DataError` naming file, line and field for a row that has none.
    """
    for where, row in read_rows(file, {*QUESTION_FIELDS, *TASK_FIELDS}):
        yield _question(row, where)


def _question(row: Row, where: str) -> str:
    for field in QUESTION_FIELDS:
        if isinstance(row.get(field), str):
            return str(row[field])
    if "user_scenario" in row:
        return parse_row(row, Task, where, fix="put the benchmark's file there as it was published").told
    what = f"no field {', '.join(QUESTION_FIELDS)} or user_scenario"
    raise DataError(what, where=where, fix="put the benchmark's file there as it was published, or take it out")
