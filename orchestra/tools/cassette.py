"""Recorded replies of model endpoints, by a hash of the request, so that a run can be repeated at no cost."""

import hashlib
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from orchestra.errors import ConfigError
from orchestra.jsonl import read_jsonl
from orchestra.types import Record, Usage

Mode = Literal["record", "replay", "auto"]
"""record: always ask, and add what came; replay: never ask; auto: replay what is there, ask and record the rest."""


class Reply(Record):
    """What a model endpoint answered."""

    text: str
    usage: Usage = Usage()
    counted: bool = True
    """Whether the endpoint said how many tokens it used."""
    replayed: bool = False


class Recorded(Record):
    """One line of a cassette. Headers and addresses, where secrets are, are never part of it."""

    key: str
    request: dict[str, Any]
    reply: Reply


class Cassette:
    """A file of replies. The same request asked again gets the next of its replies, so sampling can be repeated too.

    Requests must then be made in the same order; a request that fails is not recorded.
    """

    def __init__(self, path: Path, mode: Mode = "auto") -> None:
        self.path, self.mode = path, mode
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._replies: dict[str, list[Reply]] = {}
        if path.exists() or mode == "replay":
            for line in read_jsonl(path, Recorded, fix="record it first: mode auto"):
                self._replies.setdefault(line.key, []).append(line.reply)

    def find(self, request: dict[str, Any]) -> Reply | None:
        """The recorded reply to a request, None where it has to be asked; in replay mode that is a `ConfigError`."""
        if self.mode == "record":
            return None
        key = key_of(request)
        with self._lock:
            replies, number = self._replies.get(key, []), self._asked[key]
            if number < len(replies):
                self._asked[key] += 1
                return replies[number].model_copy(update={"replayed": True})
        if self.mode == "replay":
            raise ConfigError(f"no recorded reply to request {key[:12]}", where=str(self.path), fix="use mode auto")
        return None

    def add(self, request: dict[str, Any], reply: Reply, *, secret: str = "") -> None:
        """Record a reply; `secret` is blotted out wherever it stands in request or reply."""
        recorded = Recorded(key=key_of(request), request=request, reply=reply)
        line = recorded.model_dump_json()
        if secret:
            line = line.replace(json.dumps(secret)[1:-1], "[secret]")
        with self._lock:
            self._replies.setdefault(recorded.key, []).append(reply)
            self._asked[recorded.key] = len(self._replies[recorded.key])
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def key_of(request: dict[str, Any]) -> str:
    """sha256 of the request's canonical JSON."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
