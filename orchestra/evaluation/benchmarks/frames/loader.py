"""FRAMES in its published schema: alone, for models that search, or with the pages that hold the answer."""

import ast
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from orchestra.errors import DataError
from orchestra.evaluation.benchmarks.base import Question
from orchestra.files.tables import parse_row, read_rows
from orchestra.types import Message
from orchestra.validation.gate.published import Published

ORACLE = (
    "Here are the relevant Wikipedia articles:\n{pages}\n\n"
    "Based on all the information, answer the query.\n\nQuery: {query}"
)
"""Another task than FRAMES with retrieval: nothing has to be found."""


class FramesRow(Published):
    """A row of google/frames-benchmark, test.tsv; the first column, a number without a name, is its id."""

    number: str = Field(default="", alias="")
    prompt: str = Field(alias="Prompt")
    answer: str = Field(alias="Answer")
    reasoning_types: str = ""
    wiki_links: str | tuple[str, ...] = ()

    def links(self, where: str) -> list[str]:
        """Addresses of the pages; the file holds them as the text of a Python list."""
        if not isinstance(self.wiki_links, str):
            return list(self.wiki_links)
        try:
            found = ast.literal_eval(self.wiki_links or "[]")
        except (ValueError, SyntaxError):
            found = None
        if not isinstance(found, list):
            raise DataError("field wiki_links: not a list", where=where, fix="get the file again")
        return [str(link) for link in found]


class Page(Published):
    """A Wikipedia page that the user brings."""

    url: str
    text: str


def load(files: Sequence[Path]) -> list[Question]:
    """Every question alone, in the order of the file; raises `DataError` naming file, line and field."""
    return [_question(row, number, row.prompt) for number, (_, row) in enumerate(_rows(files))]


def load_oracle(files: Sequence[Path]) -> list[Question]:
    """Every question after its pages. Files that are no .tsv hold pages, as {url, text}; all that are named must be
    there."""
    told = [file for file in files if file.suffix != ".tsv"]
    pages = {page.url: page.text for file in told for page in _pages(file)}
    questions = []
    for number, (where, row) in enumerate(_rows([file for file in files if file not in told])):
        links = row.links(where)
        if missing := [link for link in links if link not in pages]:
            what = f"no text of {missing[0]}"
            raise DataError(what, where=where, fix="bring the pages: --data test.tsv --data pages.jsonl")
        texts = "\n\n".join(f"{link}\n{pages[link]}" for link in links)
        questions.append(_question(row, number, ORACLE.format(pages=texts, query=row.prompt)))
    return questions


def _rows(files: Sequence[Path]) -> list[tuple[str, FramesRow]]:
    return [(where, parse_row(row, FramesRow, where)) for file in files for where, row in read_rows(file)]


def _pages(file: Path) -> list[Page]:
    return [parse_row(row, Page, where) for where, row in read_rows(file)]


def _question(row: FramesRow, number: int, sent: str) -> Question:
    return Question(
        id=f"frames-{row.number or number}",
        messages=(Message(role="user", content=sent),),
        question=row.prompt,
        answer=row.answer,
        group=row.reasoning_types,
    )
