"""Takes outside rows in: through the gate, into a file of examples, with its card and what was refused."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra.errors import ConfigError
from orchestra.synthesis.card import Tally
from orchestra.synthesis.gate.gate import Gate, Refusals, chunks
from orchestra.synthesis.sources.offer import Outside, Refused
from orchestra.tables import whole
from orchestra.types import Example

SAY_EVERY = 20_000


def take(rows: Iterable[Outside], gate: Gate, target: Path, say: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Write `x.jsonl`, `x.refused.jsonl` (where, row, source, reason) and `x.card.json`; returns the card.

    A thousand rows at a time; all three files appear at the end, or none. Raises what the rows raise, and `ConfigError`
    for a target that does not end in .jsonl.
    """
    if target.suffix != ".jsonl":
        raise ConfigError("examples are JSON lines", where=str(target), fix="name a file that ends in .jsonl")
    tally, refused = Tally(), Refusals()
    with ExitStack() as stack:
        names = (target.name, f"{target.stem}.refused.jsonl", f"{target.stem}.card.json")
        kept_path, refused_path, card_path = (stack.enter_context(whole(target.with_name(name))) for name in names)
        kept_file = stack.enter_context(kept_path.open("w", encoding="utf-8"))
        refused_file = stack.enter_context(refused_path.open("w", encoding="utf-8"))
        number = 0
        for some in chunks(rows):
            for where, said in _asked(gate, some):
                number += 1
                if isinstance(said, Refused):
                    refused.count(said.reason, said.source)
                    refused_file.write(json.dumps({"where": where} | asdict(said), ensure_ascii=False) + "\n")
                else:
                    tally.add(said)
                    kept_file.write(said.model_dump_json() + "\n")
                if say is not None and number % SAY_EVERY == 0:
                    say(f"{number} rows read, {tally.count} taken")
        card = {
            **tally.counts(),
            "refused": refused.counts,
            "checked_against": gate.checked_against,
            "note": gate.note,
            "cost_usd": "0",
        }
        card_path.write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return card


def _asked(gate: Gate, rows: list[Outside]) -> Iterator[Outside]:
    """The rows, with what the gate refuses refused."""
    reasons = iter(gate.refuse([row for _, row in rows if isinstance(row, Example)]))
    for where, row in rows:
        if isinstance(row, Example) and (reason := next(reasons)) is not None:
            provenance = row.provenance
            yield where, Refused(provenance.parent or row.id, provenance.source, reason)
        else:
            yield where, row
