"""The difficulty of a file's examples: the share of a solver's tries that solved each, written as they are tried."""

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from orchestra.config.schema import Params
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_file
from orchestra.synthesis.filters.filters import BATCH, Solver
from orchestra.synthesis.imports.export import stream
from orchestra.synthesis.imports.intake import beside
from orchestra.system.workspace import alone
from orchestra.tools.experts.simulated import AnswerBook
from orchestra.tools.search.corpus import SearchIndex
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Example


def toolkit_for(file: Path, params: Params, root: Path) -> Toolkit:
    """The tools that a file's examples are tried with: its own answers and corpus, or those of data/generated."""
    answers, corpus = beside(file, "answers"), beside(file, "corpus")
    book = AnswerBook.load(answers) if answers.is_file() else None
    index = SearchIndex.load(corpus) if corpus.is_file() else None
    return Toolkit.from_params(params, root, index=index, book=book)


def measure(
    source: Path, target: Path, solver: Solver, solver_is: str, say: Callable[[str], None], *, at_once: int = BATCH
) -> int:
    """Write the examples of `source` to `target` with their difficulties, `at_once` at a time; returns how many.

    `target` appears at the end; until then a hidden file beside it holds what is done, and a killed run goes on there
    as long as the source, the solver (`solver_is`: what it is, beyond its name), its tries and limits are the same.
    Raises `DataError` for a line that is no example, and `ServiceError` while another run measures for `target`.
    """
    with alone(target.with_name(f".{target.name}.lock.partial"), target, "on it"):
        return _measure(source, target, solver, _tag(source, solver, solver_is), say, at_once)


def _measure(source: Path, target: Path, solver: Solver, tag: str, say: Callable[[str], None], at_once: int) -> int:
    total, partial = _lines(source), target.with_name(f".{target.name}.{tag}.partial")
    done = _whole_lines(partial)
    if done:
        say(f"{done} of {total} are measured already")
    examples = islice(stream(source), done, None)
    with partial.open("ab") as out:
        for batch in _batches(examples, at_once):
            tried = solver.measured(batch)
            out.write(b"".join(one.model_dump_json().encode() + b"\n" for one in tried))
            out.flush()
            done += len(batch)
            say(f"{done}/{total} examples ({100 * done // total}%)")
    atomic.replace(partial, target)
    return done


def _batches(examples: Iterator[Example], size: int) -> Iterator[list[Example]]:
    while batch := list(islice(examples, size)):
        yield batch


def _tag(source: Path, solver: Solver, solver_is: str) -> str:
    parts = [hash_file(source), solver.policy.name, solver_is, solver.tries, solver.limits.model_dump(mode="json")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _lines(file: Path) -> int:
    return sum(1 for _ in stream(file))


def _whole_lines(file: Path) -> int:
    """How many whole lines a file has; what a kill left of another is cut off."""
    if not file.exists():
        return 0
    count, end = 0, 0
    with file.open("r+b") as held:
        for line in held:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        held.truncate(end)
    return count
