"""Humanity's Last Exam in its published schema, text-only, with the prompt that its authors send."""

from collections.abc import Sequence
from pathlib import Path

from orchestra.evaluation.benchmarks.base import Question
from orchestra.files.tables import parse_row, read_rows
from orchestra.types import Message
from orchestra.validation.gate.published import Published

SYSTEM = (
    "Your response should be in the following format:\n"
    "Explanation: {your explanation for your answer choice}\n"
    "Answer: {your chosen answer}\n"
    "Confidence: {your confidence score between 0% and 100% for your answer}"
)
"""Sent with every question (hle_eval/run_model_predictions.py of centerforaisafety/hle, MIT)."""


class HleRow(Published):
    """A row of cais/hle; columns that are not read are left alone."""

    id: str
    question: str
    answer: str
    image: str | None
    """A data URI; empty for the 2,158 text-only questions of 2,500. A copy without the column hides which those are."""
    category: str = ""


def load(files: Sequence[Path]) -> list[Question]:
    """The text-only questions in the order of the file; raises `DataError` naming file, line and field."""
    wanted = set(HleRow.model_fields)
    rows = (
        parse_row(row, HleRow, where, fix="get the published file again")
        for file in files
        for where, row in read_rows(file, wanted)
    )
    return [question(row) for row in rows if not row.image]


def question(row: HleRow) -> Question:
    """A row as a question."""
    return Question(
        id=row.id,
        messages=(Message(role="system", content=SYSTEM), Message(role="user", content=row.question)),
        question=row.question,
        answer=row.answer,
        group=row.category,
    )
