"""What the shipped model is, said by the gateway that serves it: a demonstration, with three questions to try."""

import contextlib
import json
from pathlib import Path
from typing import Any

from orchestra.errors import OrchestraError
from orchestra.files.jsonl import stream_lines
from orchestra.serving.releases.state import Serving

PROFILE = "embedded"
NOTICE = "this is a demonstration model of a made-up world; it knows no news, no real people, no real places"
EXAMPLES = "data/validated/heldout.jsonl"
SORTS = ("arithmetic", "fact", "topic")
"""The sorts of question to try, one each."""


def demonstration(root: Path, serving: Serving) -> dict[str, Any]:
    """`notice` and `to_try` of a model's card; null and [] for a model of another profile."""
    if serving.params.get("profile") != PROFILE:
        return {"notice": None, "to_try": []}
    return {"notice": NOTICE, "to_try": to_try(root)}


def to_try(root: Path) -> list[str]:
    """One held-out question of each of `SORTS` that ends in a question mark; fewer where the file is damaged."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, OrchestraError, ValueError, KeyError, TypeError, RecursionError):
        for _, line in stream_lines(root / EXAMPLES):
            row = json.loads(line)
            sort, text = row["category"], str(row["instruction"])
            if sort in SORTS and text.endswith("?"):
                found.setdefault(sort, text)
            if len(found) == len(SORTS):
                break
    return [found[sort] for sort in SORTS if sort in found]
