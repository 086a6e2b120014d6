"""The note for a newcomer, shown once: the embedded model knows only a made-up world; three questions to try."""

import json
from pathlib import Path

from orchestra.config.schema import load_params
from orchestra.files.atomic import make_folder
from orchestra.files.jsonl import stream_lines

PROFILE = "embedded"
TOLD = ".state/welcomed"
EXAMPLES = "data/validated/heldout.jsonl"
SORTS = ("arithmetic", "fact", "topic")
"""The sorts of question to try, one each."""


def welcome(root: Path) -> list[str]:
    """Lines for the first answer in a workspace of the embedded profile; none after that."""
    told = root / TOLD
    if told.exists() or load_params(root / "params.yaml").profile != PROFILE:
        return []
    make_folder(told.parent)
    told.touch()
    lines = ["note: this is a demonstration model of a made-up world; it knows no news, no real people, no real places"]
    questions = to_try(root)
    return lines + [f"note: try: orchestra ask {json.dumps(question)}" for question in questions]


def to_try(root: Path) -> list[str]:
    """One held-out question of each of `SORTS` that ends in a question mark; [] where there is no data."""
    found: dict[str, str] = {}
    file = root / EXAMPLES
    for _, line in stream_lines(file) if file.is_file() else ():
        row = json.loads(line)
        if row["category"] in SORTS and row["instruction"].endswith("?"):
            found.setdefault(row["category"], row["instruction"])
        if len(found) == len(SORTS):
            break
    return [found[sort] for sort in SORTS if sort in found]
