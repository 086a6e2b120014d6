"""Local search: BM25 over the corpus, the best record's text."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import JsonValue

from orchestra.errors import DataError
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.types import Component, Record

NOTHING = "no record found"
"""What the tool says when no record shares a word with the query."""


class Document(Record):
    """One record of the corpus."""

    id: str
    title: str
    text: str


def words(text: str) -> list[str]:
    """Lower-case words, the units of the index."""
    return re.findall(r"\w+", text.lower())


ASKING = frozenset(
    words(
        "the this that these in on at of for from about and or to "
        "where what who whom whose which when why how is are was were does do did has have had can could would should "
        "tell please find show give search look list name explain describe"
    )
)
"""Words that begin a query in capitals and are no names."""


@dataclass(frozen=True)
class SearchIndex:
    """A BM25 index in memory."""

    documents: tuple[Document, ...]
    bm25: Any
    vocabulary: frozenset[str]

    @classmethod
    def build(cls, documents: list[Document]) -> Self:
        """Index title and text of each; needs at least one document."""
        import bm25s

        if not documents:
            raise DataError("the corpus is empty", where="search", fix="run the synthesize stage")
        tokens = [words(f"{document.title} {document.text}") for document in documents]
        bm25 = bm25s.BM25()
        bm25.index(tokens, show_progress=False)
        return cls(tuple(documents), bm25, frozenset(word for document in tokens for word in document))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Index corpus.jsonl; raises `DataError` naming file and line."""
        return cls.build(read_jsonl(path, Document, fix="run the synthesize stage"))

    def top(self, query: str) -> Document | None:
        """The best record, the first of equals; None when no word of the query, or not its names, are in the corpus."""
        known = [word for word in words(query) if word in self.vocabulary]
        names = {name.lower() for name in re.findall(r"\b[A-Z][a-z]+\b", query)} - ASKING
        if not known or not self.vocabulary.issuperset(names):
            return None
        scores = self.bm25.get_scores(known)
        return self.documents[int(scores.argmax())]


class SearchTool:
    """The index as a tool. Its time is the listed one: measured microseconds would only be noise in rewards."""

    component = Component.SEARCH

    def __init__(self, index: SearchIndex) -> None:
        self._index = index

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        found = self._index.top(str(arguments["query"]))
        text = found.text if found is not None else NOTHING
        return ToolResult(text=text, cost_usd=context.price.per_call, latency_s=context.latency_s)
