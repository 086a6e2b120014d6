"""Recorded calls of what is not the same twice (models, the web, the sandbox), so that a run can be repeated."""

import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, Self, get_args

from orchestra.errors import ConfigError, DataError
from orchestra.files.jsonl import end_with_a_line, read_jsonl
from orchestra.text import as_text, credentials, without
from orchestra.tools.failures import OWN, Failure
from orchestra.types import Record

Mode = Literal["record", "replay", "auto"]
"""record: always ask, and keep what came; replay: never ask; auto: replay what is there, ask and keep the rest."""
SETTING = "ORCHESTRA_CASSETTE"
"""Environment variable `MODE:FILE` through which every tool of a run is recorded or replayed."""
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH(?!OR)|_PAT$|_DSN$", re.IGNORECASE)
MIN_SECRET = 8
"""Characters: a shorter value (`none`, `EMPTY`) is no secret, and blotting it out would spoil texts."""
DAMAGED = "bring the file back; without a copy, delete its damaged lines, and mode auto asks for those replies again"


Place = tuple[str, str]
"""A scope, and the key of a request."""
_WATCHED: ContextVar[tuple[list[bool], ...]] = ContextVar("watched", default=())


@contextmanager
def watched() -> Iterator[list[bool]]:
    """Whether each request made within the block was replayed, in order: what all was replayed was paid for before.
    Blocks nest."""
    token = _WATCHED.set((*_WATCHED.get(), seen := list[bool]()))
    try:
        yield seen
    finally:
        _WATCHED.reset(token)


_SCOPE: ContextVar[tuple[str, ...]] = ContextVar("scope", default=())


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Number the requests within the block by themselves: the askings of one episode are the same, whichever others
    run beside it, and in an evaluation, where each is attempted once, wherever a run was resumed. Scopes nest."""
    token = _SCOPE.set((*_SCOPE.get(), name))
    try:
        yield
    finally:
        _SCOPE.reset(token)


class Recorded(Record):
    """One line of a cassette. Headers and addresses, where secrets are, are never part of it."""

    key: str
    scope: str = ""
    """Whose asking it is: of an episode policy, digest of what is asked, and sample."""
    number: int | None = None
    """Which asking of this request it is in its scope, from 0; a later line of the same number takes its place. None:
    the next."""
    request: dict[str, Any]
    reply: dict[str, Any] | None = None
    failure: Failure | None = None
    """What went wrong, where there is no reply."""


class Slot:
    """One asking of a request: what is recorded of it, or where to keep what comes."""

    def __init__(
        self, cassette: "Cassette", place: Place, number: int, request: dict[str, Any], found: Recorded | None
    ):
        self._cassette, self._place, self._number, self._request = cassette, place, number, request
        self.found = found

    def keep(self, outcome: Record) -> None:
        """Write what came to the cassette."""
        failure = outcome if isinstance(outcome, Failure) else None
        reply = None if failure is not None else outcome.model_dump(mode="json")
        within, key = self._place
        self._cassette.write(
            Recorded(key=key, scope=within, number=self._number, request=self._request, reply=reply, failure=failure)
        )


class Cassette:
    """A file of replies and failures, by request. One process at a time writes it.

    The same request asked again in its scope gets the next of its replies, so that sampling can be repeated too.
    Failures are kept, so that a replay is the run as it was. auto asks again where it failed, unless it is `exact` or
    the model itself gave no answer where that is its result: that would change what is measured.
    """

    def __init__(self, path: Path, mode: Mode = "auto", *, exact: bool = False) -> None:
        self.path, self.mode, self._exact = path, mode, exact
        self.replayed = self.asked = 0
        self._secrets = set(secrets_of(os.environ))
        self._lock = threading.Lock()
        self._numbers: Counter[Place] = Counter()
        self._recorded: dict[Place, dict[int, Recorded]] = {}
        if path.exists():
            if mode != "replay":
                end_with_a_line(path)
            for line in read_jsonl(path, Recorded, fix=DAMAGED):
                self._insert(line)
        elif mode == "replay":
            raise DataError("no such file", where=str(path), fix="record it first: mode auto")

    @classmethod
    def from_environment(cls) -> Self | None:
        """What ORCHESTRA_CASSETTE names (`replay:work/run.jsonl`), None when it is unset; raises `ConfigError`."""
        setting = os.environ.get(SETTING, "")
        if not setting:
            return None
        mode, _, path = setting.partition(":")
        if mode not in get_args(Mode) or not path:
            fix = f"write MODE:FILE, the mode one of {', '.join(get_args(Mode))}"
            raise ConfigError(f"{setting!r:.80} is not a cassette setting", where=SETTING, fix=fix)
        if mode != "replay":  # A run that asks nothing can be replayed, too.
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()
        return cls(Path(path), mode)  # type: ignore[arg-type]  # Checked above.

    def slot(
        self, request: dict[str, Any], entry: str = "", *, secrets: Sequence[str] = (), own_counts: bool = False
    ) -> Slot:
        """The next asking of a request to a catalogue entry (`Entry.fingerprint`); in replay mode raises `ConfigError`
        when it is not recorded. `secrets`: what it is asked with, which is never written. `own_counts`: what the model
        does in place of an answer is its result, as of an expert, and not of a judge."""
        key = key_of(request, entry)
        with self._lock:
            self._secrets.update(secrets)
            place = ("/".join(_SCOPE.get()), key)
            number = self._numbers[place]
            self._numbers[place] += 1
            found = None if self.mode == "record" else self._recorded.get(place, {}).get(number)
            failure = None if found is None else found.failure
            result = failure is None or (own_counts and failure.unusable in OWN)
            if not result and self.mode == "auto" and not self._exact:
                found = None
            self.replayed += found is not None
            self.asked += found is None
        for watching in _WATCHED.get():
            watching.append(found is not None)
        if found is None and self.mode == "replay":
            raise ConfigError(f"no recorded reply to request {key[:12]}", where=str(self.path), fix="use mode auto")
        return Slot(self, place, number, request, found)

    def write(self, recorded: Recorded) -> None:
        """Add a line, without secrets."""
        with self._lock:
            self._insert(recorded)
            line = json.dumps(self._blotted(recorded.model_dump(mode="json")))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def summary(self) -> str:
        """What it did, in one line."""
        return f"cassette {self.path}: {self.replayed} calls replayed, nothing spent on them; {self.asked} asked"

    def _insert(self, recorded: Recorded) -> None:
        numbered = self._recorded.setdefault((recorded.scope, recorded.key), {})
        numbered[len(numbered) if recorded.number is None else recorded.number] = recorded

    def _blotted(self, value: Any) -> Any:
        if isinstance(value, str):
            return as_text(without(value, (secret for secret in self._secrets if len(secret) >= MIN_SECRET)))
        if isinstance(value, dict):
            return {self._blotted(key): self._blotted(inner) for key, inner in value.items()}
        return [self._blotted(inner) for inner in value] if isinstance(value, list) else value


def key_of(request: dict[str, Any], entry: str = "") -> str:
    """sha256 of the canonical JSON of the request and, where there is one, of the catalogue entry that is asked."""
    asked = {"entry": entry, "request": request} if entry else request
    return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Values of variables whose names say that they are secret, and the passwords in addresses, whatever their name."""
    named = [value for name, value in environment.items() if SECRET_NAME.search(name)]
    return [*named, *(secret for value in environment.values() for secret in credentials(value))]
