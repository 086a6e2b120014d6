"""Simulated experts: stand-ins that are right, unsure or plausibly wrong by topic, by a hash, at calibrated cost."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from orchestra.accounting.ledger import cost_of
from orchestra.errors import ToolError
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.base import UNSURE, ToolContext, ToolResult
from orchestra.tools.catalogue.entry import Entry, Simulated
from orchestra.types import Component, Record, Usage


class BookEntry(Record):
    """What is known of one question."""

    question: str
    topic: str
    answer: str
    wrong: tuple[str, ...]
    """Plausible other answers."""
    hard: bool = False


def question_key(question: str) -> str:
    """Case, spaces and the final mark do not matter."""
    return " ".join(question.lower().split()).rstrip(" ?.!")


@dataclass
class AnswerBook:
    """The answers that simulated experts know, by normalised question."""

    entries: dict[str, BookEntry] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read answers.jsonl; raises `DataError` naming file and line."""
        return cls.of(read_jsonl(path, BookEntry, fix="run the synthesize stage"))

    @classmethod
    def of(cls, entries: Iterable[BookEntry]) -> Self:
        """A book of these entries; of two that ask the same, the later one counts."""
        return cls({question_key(entry.question): entry for entry in entries})

    def add(self, entry: BookEntry) -> None:
        self.entries[question_key(entry.question)] = entry

    def know_also(self, wordings: Iterable[tuple[str, str]]) -> None:
        """Each pair is a known question and another wording of it, to which experts say the same."""
        for question, other in wordings:
            entry = self.find(question)
            if entry is not None:
                self.entries[question_key(other)] = entry

    def remove(self, entry: BookEntry) -> None:
        self.entries.pop(question_key(entry.question), None)

    def find(self, question: str) -> BookEntry | None:
        return self.entries.get(question_key(question))


def uniform(*parts: str) -> float:
    """A number in [0, 1) that depends on nothing but the parts."""
    digest = hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class SimulatedExpert:
    """One stand-in. The same question always gets the same answer, tokens and seconds, or the same failure."""

    component = Component.EXPERT

    def __init__(self, name: str, entry: Entry, book: AnswerBook, hard_share: float = 0.0) -> None:
        assert entry.simulated is not None
        self.name, self._usage, self._book, self._hard_share = name, entry.usage, book, hard_share
        self._behaviour: Simulated = entry.simulated

    def reply(self, question: str) -> str:
        """The bare answer, right or wrong, or UNSURE (always so for what is in no book)."""
        known = self._book.find(question)
        if known is None:
            return UNSURE
        key = question_key(known.question)
        if uniform(self.name, key, "right") < self._behaviour.chance(known.topic, self._hard_share, hard=known.hard):
            return known.answer
        if not known.wrong or uniform(self.name, key, "unsure") < self._behaviour.doubt(hard=known.hard):
            return UNSURE
        return self._wrong(known, key)

    def _wrong(self, known: BookEntry, key: str) -> str:
        """The popular wrong answer, or one of the others: experts that err together agree too often for proof."""
        popular = int(uniform(key, "popular") * len(known.wrong))
        others = [answer for number, answer in enumerate(known.wrong) if number != popular]
        if not others or uniform(self.name, key, "shared") < self._behaviour.shared:
            return known.wrong[popular]
        return others[int(uniform(self.name, key, "which") * len(others))]

    def usage(self, question: str) -> tuple[Usage, float]:
        """Tokens of the call, and how long it is against the expected one: within 25 %, 1 on average."""
        length = 0.75 + 0.5 * uniform(self.name, question_key(question), "length")
        tokens = Usage(input_tokens=self._usage.input_tokens, output_tokens=round(self._usage.output_tokens * length))
        return tokens, length

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        question = str(arguments.get("question") or context.instruction)
        if uniform(self.name, question_key(question), "failure") < self._behaviour.failures:
            raise ToolError("it does not answer (simulated)", where=self.name)
        usage, length = self.usage(question)
        latency_s = round(context.latency_s * length, 3)
        return ToolResult(
            text=self.reply(question),
            usage=usage,
            cost_usd=cost_of(context.price, usage, seconds=latency_s),
            latency_s=latency_s,
            simulated=True,
        )
