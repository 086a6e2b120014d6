"""Examples from elsewhere in a set: through the same filters and the gate, spread evenly among the generated ones.

What data from outside, a model or an earlier version gives reaches training this way, and no other.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Extra, Params
from orchestra.errors import ConfigError, DataError
from orchestra.files import atomic
from orchestra.files.jsonl import parse_line, read_jsonl, stream_jsonl, stream_lines
from orchestra.synthesis.dataset.versions import CASSETTE, LEDGER
from orchestra.synthesis.draft import Refused
from orchestra.synthesis.filters.filters import Duplicates, kept, refused
from orchestra.synthesis.filters.solver import is_billed, solver_named
from orchestra.synthesis.imports.export import stream
from orchestra.synthesis.imports.importer import Outside
from orchestra.synthesis.imports.intake import beside, take
from orchestra.tools.experts.simulated import BookEntry
from orchestra.tools.replay.cassette import Cassette
from orchestra.tools.search.corpus import Document
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Split
from orchestra.validation.gate.decontamination import Gate, chunks
from orchestra.validation.rows import UNHEARD, marks

REFUSED = "refused.jsonl"
"""What of the extra files is not in the set, in its folder: where, row, source, reason and what was asked."""
PARTS = ("answers", "corpus")
"""What comes along beside a file of examples."""
IMPORT = "import the data again"
PAID = "work/extra"
"""Where the replies of paid tries are, which no later set pays for again; and the ledger of sets made without a run."""


def files(params: Params, root: Path) -> Iterator[Path]:
    """Everything that the extra examples are read from; raises `ConfigError` for one that is missing."""
    for extra in params.synthesize.extra:
        path = root / extra.file
        if not path.is_file():
            fix = f"put it there (orchestra data import … --to {extra.file}), or take it out of synthesize.extra"
            raise ConfigError("no such file", where=extra.file, fix=fix)
        yield path
        yield from (file for part in PARTS if (file := beside(path, part)).is_file())


def add(
    params: Params,
    root: Path,
    folder: Path,
    counts: Mapping[Split, int],
    say: Callable[[str], None],
    run: Budget | None = None,
) -> dict[str, dict[str, Any]]:
    """Put the examples of `synthesize.extra` into the set in `folder`; returns a card for each file.

    `counts` are the set's examples by split. Tries that cost money are booked in the `run`; without
    one, `budget.run_usd` caps those of all sets together. Memory grows by some bytes an example, and with the answers.
    Raises `DataError` for a line that is no example and for a file that gives nothing, and `BudgetError` at the cap.
    """
    work = folder / ".extra"
    work.mkdir()
    extras = params.synthesize.extra
    _add_records(folder / "corpus.jsonl", root, [beside(Path(extra.file), "corpus") for extra in extras])
    joining = _Joining(params, root, folder, run)
    # Held-out ones first: what is held out must be known before anything is trained on.
    cards = {
        extra.file: joining.take(extra, work / f"{number}.jsonl", say)
        for number, extra in sorted(enumerate(extras), key=lambda one: one[1].split != "heldout")
    }
    for split, count in counts.items():
        theirs = [number for number, extra in enumerate(extras) if extra.split == split]
        more = sum(cards[extras[number].file]["examples"] for number in theirs)
        _spread(folder / f"{split}.jsonl", count, [work / f"{number}.jsonl" for number in theirs], more)
    numbers = range(len(extras))
    _append(folder / "answers.jsonl", [beside(work / f"{number}.jsonl", "answers") for number in numbers])
    _append(folder / REFUSED, [beside(work / f"{number}.jsonl", "refused") for number in numbers])
    shutil.rmtree(work)
    return {extra.file: cards[extra.file] for extra in extras}


class _Joining:
    """What the set holds so far, and what decides about more."""

    def __init__(self, params: Params, root: Path, folder: Path, run: Budget | None) -> None:
        self._root, self._gate = root, Gate.open(root)
        self._toolkit = Toolkit.from_params(params, root, folder)
        if is_billed(params.synthesize.solver, self._toolkit):
            budget = run or Budget(root / PAID / LEDGER, params.budget.run_usd, "synthesize")
            self._toolkit = self._toolkit.with_budget(budget, Cassette(root / PAID / CASSETTE))
        self._solver = solver_named(params.synthesize.solver, params, self._toolkit, root)
        self._duplicates, self._ids = Duplicates(), set[bytes]()
        self._marks: dict[str, set[bytes]] = {"train": set(), "heldout": set()}
        for split in self._marks:
            for _, line in stream_lines(folder / f"{split}.jsonl"):
                example = parse_line(line, Example)
                assert isinstance(example, Example)
                self._duplicates.why(example)
                self._remember(example, split)

    def take(self, extra: Extra, target: Path, say: Callable[[str], None]) -> dict[str, Any]:
        """Write what is kept of a file to `target`, its answers and what is refused beside it; returns the card."""
        path = self._root / extra.file
        if (answers := beside(path, "answers")).is_file():
            for entry in read_jsonl(answers, BookEntry, fix=IMPORT):
                if self._toolkit.book.find(entry.question) is None:
                    self._toolkit.book.add(entry)

        def rows() -> Iterator[Outside]:
            # Whoever wrote an imported one wrote it for people: it may be long.
            new = self._new(stream(path), extra.split)
            for row in kept(new, self._toolkit, self._solver, self._duplicates, max_words=None):
                if isinstance(row, Example):
                    self._remember(row, extra.split)
                yield extra.file, row

        card = take(rows(), self._gate, target, lambda line: say(f"{extra.file}: {line}"), known=self._known)
        reasons = {why: sum(by_source.values()) for why, by_source in card["refused"].items()}
        told = "; ".join(f"{why} ({n})" for why, n in sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:3])
        lost = f", {sum(reasons.values())} refused: {told}" if reasons else ""
        if not card["examples"]:
            fix = "fix it, or take it out of synthesize.extra"
            if UNHEARD in reasons and not answers.is_file():
                fix = f"put {answers.name}, which the import wrote, beside it"
            raise DataError(f"nothing of it can be used{lost}", where=extra.file, fix=fix)
        say(f"{extra.file}: {card['examples']} {extra.split} examples{lost}")
        return {"split": extra.split, **card}

    def _known(self, example: Example) -> BookEntry | None:
        return self._toolkit.book.find(example.instruction) if example.category is Category.TOPIC else None

    def _new(self, examples: Iterable[Example], split: Split) -> Iterator[Example | Refused]:
        """The examples; refused, those that the gate refuses, of which nothing is remembered, and those that have an
        id of the set or anything that the other split has."""
        other = "heldout" if split == "train" else "train"
        for some in chunks(examples):
            for example, why in zip(some, self._gate.refuse(some), strict=True):
                if why is not None:
                    yield refused(example, why)
                elif _hash(example.id) in self._ids:
                    yield refused(example, "another example has its id")
                elif any(_hash(mark) in self._marks[other] for mark in marks(example)):
                    yield refused(example, f"what it asks or is about is in the {other} set")
                else:
                    yield example

    def _remember(self, example: Example, split: str) -> None:
        self._ids.add(_hash(example.id))
        self._marks[split].update(map(_hash, marks(example)))


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _spread(file: Path, count: int, others: list[Path], more: int) -> None:
    """Put the `more` lines of the others evenly among the `count` lines of the file: whatever part of it is watched or
    evaluated has its share of them."""
    ours, theirs, total = _lines([file]), _lines(others), count + more
    with atomic.whole_file(file) as merged, merged.open("wb") as out:
        for number in range(total):
            out.write(next(theirs if (number + 1) * more // total > number * more // total else ours))


def _lines(files: Iterable[Path]) -> Iterator[bytes]:
    for file in files:
        with file.open("rb") as opened:
            # The last line of a file written by hand may have no end.
            yield from (line if line.endswith(b"\n") else line + b"\n" for line in opened)


def _add_records(corpus: Path, root: Path, others: Iterable[Path]) -> None:
    """Add the records of the others to the set's; raises `DataError` where two have one id and do not say the same."""
    fix = "import one of them again with another --source, or give its records other ids"
    there = [file for file in others if (root / file).is_file()]
    held: dict[str, tuple[bytes, str]] = {}  # A hash in place of each text.
    if there and corpus.is_file():
        for record in stream_jsonl(corpus, Document):
            held[record.id] = _hash(record.model_dump_json()), "the set itself"
    with corpus.open("a", encoding="utf-8") as out:
        for file in there:
            for record in stream_jsonl(root / file, Document, fix=IMPORT):
                line = record.model_dump_json()
                known, place = held.setdefault(record.id, (_hash(line), ""))
                if not place:
                    held[record.id] = known, str(file)
                    out.write(line + "\n")
                elif known != _hash(line):
                    what = f"another record has the id {record.id!r:.60}, too, in {place}"
                    raise DataError(what, where=str(file), fix=fix)


def _append(file: Path, others: list[Path]) -> None:
    with file.open("ab") as out:
        out.writelines(_lines(others))
