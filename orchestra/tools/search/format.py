"""Search results as text for the model."""

from collections.abc import Sequence

from pydantic import field_validator

from orchestra.text import as_text
from orchestra.tools.search.corpus import NOTHING
from orchestra.types import Record

SHOWN = 2000
"""Characters of one hit's text that are shown."""


class Hit(Record):
    """One thing that was found."""

    text: str
    title: str = ""
    url: str = ""

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        return as_text(value) if isinstance(value, str) else value


def shown(hits: Sequence[Hit]) -> str:
    """Numbered hits: title and address in a line, the text below; NOTHING where there are none."""
    return "\n\n".join(_one(number, hit) for number, hit in enumerate(hits, start=1)) or NOTHING


def _one(number: int, hit: Hit) -> str:
    text = hit.text.strip()
    text = text if len(text) <= SHOWN else text[:SHOWN].rstrip() + " …"
    head = " ".join(part for part in (hit.title.strip(), f"<{hit.url}>" if hit.url else "") if part)
    return f"[{number}] {head}\n{text}" if head else f"[{number}] {text}"
