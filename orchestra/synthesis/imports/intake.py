"""Takes rows in, from outside or from a generator: through the gate, into a file of examples, with its card, what its
simulated experts know and what was refused."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel

from orchestra.errors import ConfigError
from orchestra.files import atomic
from orchestra.synthesis.draft import Refused
from orchestra.synthesis.imports.importer import Outside
from orchestra.tools.experts.simulated import BookEntry
from orchestra.types import Example
from orchestra.validation.card import Tally
from orchestra.validation.gate.decontamination import Gate, Refusals, chunks
from orchestra.validation.rows import length_problem

SAY_EVERY = 20_000
Say = Callable[[str], None]
Facts = dict[str, Any]
Known = Callable[[Example], BookEntry | None]
"""What simulated experts are to know of an example."""


def beside(path: Path, part: str) -> Path:
    """A file that goes with one of examples: `x.jsonl` and `answers` give `x.answers.jsonl`."""
    return path.with_name(f"{path.stem}.{part}.jsonl")


def take(
    rows: Iterable[Outside],
    gate: Gate,
    target: Path,
    say: Say = lambda _: None,
    *,
    known: Known | None = None,
    documents: Iterable[BaseModel] | None = None,
    facts: Callable[[], Facts] = dict,
) -> Facts:
    """Write `x.jsonl`, `x.refused.jsonl` (where, row, source, reason) and `x.card.json`; returns the card.

    With `known` there is also `x.answers.jsonl`, with `documents` `x.corpus.jsonl`; `facts` are asked for at the end
    and join the card. A thousand rows at a time; all files appear at the end, or none. Raises what the rows
    raise, and `ConfigError` for a target that does not end in .jsonl.
    """
    if target.suffix != ".jsonl":
        raise ConfigError("examples are JSON lines", where=str(target), fix="name a file that ends in .jsonl")
    tally, refused = Tally(), Refusals()
    with ExitStack() as stack:

        def opened(path: Path) -> TextIO:
            return stack.enter_context(atomic.open_text(path))

        kept_file, refused_file = opened(target), opened(beside(target, "refused"))
        card_file = opened(target.with_name(f"{target.stem}.card.json"))
        answers_file = opened(beside(target, "answers")) if known is not None else None
        if documents is not None:
            corpus_file = opened(beside(target, "corpus"))
            corpus_file.writelines(document.model_dump_json() + "\n" for document in documents)
        number = 0
        for some in chunks(rows):
            for where, said in _asked(gate, some):
                number += 1
                if isinstance(said, Refused):
                    refused.count(said.reason, said.source)
                    row = {name: value for name, value in asdict(said).items() if value or name != "instruction"}
                    refused_file.write(json.dumps({"where": where} | row, ensure_ascii=False) + "\n")
                else:
                    tally.add(said)
                    kept_file.write(said.model_dump_json() + "\n")
                    if known is not None and answers_file is not None and (entry := known(said)) is not None:
                        answers_file.write(entry.model_dump_json() + "\n")
                if number % SAY_EVERY == 0:
                    say(f"{number} rows read, {tally.count} taken")
        card = {
            **tally.counts(),
            "refused": refused.counts,
            "checked_against": gate.checked_against,
            "note": gate.note,
            "cost_usd": "0",
            **facts(),
        }
        card_file.write(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    return card


def _asked(gate: Gate, rows: list[Outside]) -> Iterator[Outside]:
    """The rows, refused where the gate refuses them or no set can hold them."""
    reasons = iter(gate.refuse([row for _, row in rows if isinstance(row, Example)]))
    for where, row in rows:
        if isinstance(row, Example) and (reason := next(reasons) or length_problem(row)) is not None:
            provenance = row.provenance
            yield where, Refused(provenance.parent or row.id, provenance.source, reason)
        else:
            yield where, row
