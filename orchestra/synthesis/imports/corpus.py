"""Questions over an offline corpus: one search answers each."""

import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestra.files.tables import parse_row, read_rows
from orchestra.synthesis.draft import Draft, Refused
from orchestra.synthesis.imports.importer import ExampleImporter, Outside, RowOrigin
from orchestra.synthesis.questions.facts import ASK
from orchestra.tools.search.corpus import Document
from orchestra.types import Category, ToolCall, Verifier

STATED = re.compile(r"The (\w+) of (\w+) is (\w+)\.")
"""A record that states one fact: relation, subject, value."""


def corpus_questions(paths: Iterable[Path], importer: ExampleImporter, source: str, licence: str) -> Iterator[Outside]:
    """A question for each record of a corpus.jsonl that states a fact whose relation has a wording.

    Raises `DataError` naming file, line and field for a row that is no record.
    """
    for path in paths:
        for where, document in _read(path):
            found = STATED.fullmatch(document.text)
            if found is None or found[1] not in ASK:
                yield where, Refused(document.id, source, "it states no fact that can be asked")
                continue
            relation, subject, value = found.groups()
            call = ToolCall(name="search", arguments={"query": document.title})
            name = f"{source}-{document.id}"
            draft = Draft(
                category=Category.FACT,
                instruction=random.Random(f"{importer.settings.seed}:{name}").choice(ASK[relation]).format(x=subject),
                answer=value,
                verifier="exact",
                entities=(subject,),
                golden_calls=(call,),
                tools_needed=("search",),
            )
            verifier = Verifier(kind="exact", answer=value, golden_calls=(call,))
            yield where, importer.example(name, draft, verifier, RowOrigin(source, licence, document.id))


def records(paths: Iterable[Path], source: str) -> Iterator[Document]:
    """Every record, as a search must find it. Its id names the source: others may number theirs alike."""
    found = (document for path in paths for _, document in _read(path))
    return (document.model_copy(update={"id": f"{source}-{document.id}"}) for document in found)


def _read(path: Path) -> Iterator[tuple[str, Document]]:
    for where, row in read_rows(path):
        yield where, parse_row(row, Document, where, fix="give every record id, title and text")
