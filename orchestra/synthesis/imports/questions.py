"""Question examples: GeneralThought-430K in its published schema, and any file of questions and answers.

GeneralThought-430K (its columns as pixeltable's tests assert them for natolambert/GeneralThought-430K-filtered) has
one row for each *answer of a model*: question_id, question_url, question, reference_answer, prev_messages,
model_name, model_answer, model_reasoning, task, question_license, question_source, community_answer_score,
community_question_score, verifier_score. An example is made of each question, once.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestra.errors import DataError
from orchestra.files.tables import Row, columns_of, read_rows
from orchestra.synthesis.draft import Draft, Refused
from orchestra.synthesis.filters.filters import asked_words
from orchestra.synthesis.imports.answers import verifier_of
from orchestra.synthesis.imports.importer import ExampleImporter, Outside, RowOrigin
from orchestra.types import Category, Example
from orchestra.validation.gate.licences import Licences
from orchestra.validation.gate.overlap import words

UNKNOWN = "unknown"
"""The licence of a row that states none: not on any list."""


@dataclass(frozen=True)
class Fields:
    """What the fields of a file are called; None: it has no such field."""

    question: str = "question"
    answer: str = "answer"
    id: str | None = None
    """None: the number of the row."""
    licence: str | None = None
    part: str | None = None
    """The data set that the row came from before it came here; becomes a part of the source."""
    topic: str | None = None
    earlier: str | None = None
    """Messages before the question."""
    sparse: bool = False
    """Whether a row may lack any of them but question and answer; else only its value may be empty."""

    @property
    def all(self) -> set[str]:
        return {name for name in vars(self).values() if isinstance(name, str)}


GENERAL_THOUGHT = Fields(
    question="question",
    answer="reference_answer",
    id="question_id",
    licence="question_license",
    part="question_source",
    topic="task",
    earlier="prev_messages",
    sparse=True,
)
RENAME = "rename one of them, or name the field of the ids with --id"
OPTIONS = {"id": "--id", "licence": "--licence-field", "topic": "--topic"}
"""How a person names a field."""


@dataclass(frozen=True)
class Questions:
    """A loader of question files."""

    fields: Fields
    source: str
    """The data set's name, e.g. `GeneralThought-430K`; begins the ids."""
    licence: str = UNKNOWN
    """Of rows that state none."""
    judged: bool = False
    """Take answers too long for a rule, for a judge."""
    lenient: bool = False
    """Count a row that cannot be read as refused, and go on."""
    licences: Licences | None = None
    """Those accepted: a row with another one, which the gate refuses, leaves its question to a later row."""

    def load(self, paths: Sequence[Path], importer: ExampleImporter) -> Iterator[Outside]:
        """Every question once, in order; memory grows by a hash for each different question.

        Raises `DataError` (file, line, field, what to do) for a row that cannot be read, unless `lenient`.
        """
        seen: set[bytes] = set()
        stems = [path.stem for path in paths]
        if self.fields.id is None and (twice := next((one for one in stems if stems.count(one) > 1), None)):
            raise DataError(f"two files are called {twice}, which begins the ids of their rows", fix=RENAME)
        for path in paths:
            for number, (where, row) in enumerate(read_rows(path, self.fields.all), start=1):
                try:
                    yield where, self._one(row, where, f"{path.stem}-{number}", importer, seen)
                except DataError as error:
                    if not self.lenient:
                        raise
                    yield where, Refused("", self.source, f"cannot be read: {error.what}")

    def _one(self, row: Row, where: str, number: str, importer: ExampleImporter, seen: set[bytes]) -> Example | Refused:
        fields = self.fields
        question = _text(row, fields.question, where, "--question").strip()
        answer = _text(row, fields.answer, where, "--answer")
        own = row.get(fields.id) if fields.id else None
        name = number if own in (None, "") else str(own)
        part = str(row.get(fields.part) or "") if fields.part else ""
        source = f"{self.source}/{part}" if part else self.source
        mark = hashlib.blake2b(" ".join(asked_words(question)).encode(), digest_size=8).digest()
        verifier = verifier_of(answer, judged=self.judged)
        reason = None
        if not question:
            reason = "no question"
        elif fields.earlier and row.get(fields.earlier):
            reason = "it depends on earlier messages"
        elif not answer.strip():
            reason = "no answer"
        elif mark in seen:
            reason = "asked before"
        if reason is not None or verifier is None:
            return Refused(name, source, reason or "no rule can check the answer")
        for one, option in OPTIONS.items():
            field = getattr(fields, one)
            if field is not None and not fields.sparse:
                _present(row, field, where, option)
        licence = (str(row.get(fields.licence) or "") if fields.licence else "") or self.licence
        if self.licences is None or self.licences.refuse(licence, source) is None:
            seen.add(mark)
        assert verifier.answer is not None
        draft = Draft(
            category=Category.TOPIC,
            instruction=question,
            answer=verifier.answer,
            verifier="exact",
            entities=(f"{self.source}:{name}",),
            topic=_topic(row.get(fields.topic) if fields.topic else None, importer.catalogue.topics),
        )
        return importer.example(f"{self.source}-{name}", draft, verifier, RowOrigin(source, licence, name))


def _text(row: Row, field: str, where: str, option: str) -> str:
    """A field's text; a number counts as its text, null as none. Raises `DataError` for a missing or other one."""
    _present(row, field, where, option)
    value = row[field]
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return format(Decimal(str(value)), "f")
    told = value if isinstance(value, float) else type(value).__name__
    what = f"field {field}: not a text but {told}"
    raise DataError(what, where=where, fix=f"name another with {option}, or fix the row")


def _present(row: Row, field: str, where: str, option: str) -> None:
    """Raises `DataError` for a field that the row lacks: without it, another licence or topic would count unnoticed."""
    if field not in row:
        there = ", ".join(columns_of(row, where)) or "none"
        raise DataError(f"field {field}: missing", where=where, fix=f"name it with {option} (there are: {there})")


def _topic(subject: Any, topics: Iterable[str]) -> str | None:
    """The catalogue's topic that a subject begins with: `Mathematics` is math; None when there is none."""
    told = words(str(subject)) if subject else []
    return next((topic for topic in topics if any(word.startswith(topic) for word in told)), None)
