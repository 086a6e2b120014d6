"""The note for a newcomer, shown once for each gateway: what its model is, and questions to try."""

import json
from pathlib import Path

from orchestra.errors import ServiceError
from orchestra.files.atomic import make_folder
from orchestra.serving import client

TOLD = ".state/welcomed"
"""The addresses of gateways that were asked what they serve, one a line."""


def welcome(root: Path, url: str | None = None) -> list[str]:
    """Lines after the first answer of a gateway, where it serves a demonstration model; none after that."""
    base, headers, verify = client.access(root, url)
    told = root / TOLD
    if told.is_file() and base in told.read_text(encoding="utf-8").splitlines():
        return []
    try:
        card = client.model_card(base, headers, verify)
    except ServiceError:  # The answer is there: a gateway that does not say what it serves has no note.
        return []
    make_folder(told.parent)
    with told.open("a", encoding="utf-8") as file:
        file.write(f"{base}\n")
    return card.notes(lambda question: f"orchestra ask {json.dumps(question)}")
