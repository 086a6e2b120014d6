"""The failure vocabulary: whose fault a failure is, and whether trying again can help."""

from __future__ import annotations

import html
import json
import logging
import os
import re
from collections.abc import Collection
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from orchestra.types import Charge

from orchestra.text import LONG, SECRET, credentials, one_line, plain, without, without_passwords

EXIT_ERROR = 2
"""Exit code of a command or stage that said in one line what is wrong."""


SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH_STRING)$"
)
"""How a variable of the environment is named that holds what no message may repeat."""


SHORT = 4
"""Characters of the shortest secret: fewer are found in any text."""
PLACEHOLDERS = {
    "none",
    "null",
    "empty",
    "dummy",
    "fake",
    "test",
    "local",
    "true",
    "false",
    "unset",
    "unused",
    "default",
}
"""Words that stand where there is no secret."""


def secrets() -> set[str]:
    """The values of such variables but for paths, and the passwords of addresses in any variable."""
    found: set[str] = set()
    for name, value in os.environ.items():
        if SECRET_NAME.search(name) and not value.startswith("/"):
            found.add(value)
        given = credentials(value) if "://" in value else []
        # A user alone is a secret where it is a token, and a name such as `git` where it is short.
        found.update(one for one in given if ":" in given[0] or len(one) >= LONG)
    return {one for one in found if len(one) >= SHORT}


def without_secrets(text: str) -> str:
    """The text without them, and without the password of any address: for what libraries say, tracebacks too."""
    if not text:
        return text
    found = secrets()
    text = without_passwords(without(text, (one for one in found if len(one) >= LONG)))
    short = frozenset(one for one in found if len(one) < LONG and one.lower() not in PLACEHOLDERS)
    return _standing_alone(short).sub(SECRET, text) if short else text


@lru_cache(maxsize=64)
def _standing_alone(short: frozenset[str]) -> re.Pattern[str]:
    """Short secrets where they are no part of a word; a word or a number only where it is a value: `'x'`, `key=x`.

    A password may be a word that paths and sentences hold, and a line that lacks it helps nobody.
    """
    ways = []
    for one in sorted(short, key=len, reverse=True):
        before = r"(?<![A-Za-z0-9])" if one[0].isalnum() else ""
        if one.isalpha():
            before = r"(?<=[\"'=:;])"
        elif one.isdigit():
            before = r"(?<=[\"'=])"
        after = r"(?![A-Za-z0-9])" if one[-1].isalnum() else ""
        spelled = {one, quote(one, safe=""), json.dumps(one)[1:-1], html.escape(one), repr(one)[1:-1]}
        longest = sorted(map(re.escape, spelled), key=len, reverse=True)
        ways.append(f"{before}(?:{'|'.join(longest)}){after}")
    return re.compile("|".join(ways))


class PlainFormatter(logging.Formatter):
    """Log records as ever, but what they quote steers no terminal, begins no line (tracebacks are indented) and tells
    no secret."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(plain(super().format(record))).replace("\n", "\n  ")


class Fault(StrEnum):
    """The side at fault, which has to act."""

    MODEL = "model"
    """The policy produced something unusable; it is part of the episode and is scored."""
    TOOL = "tool"
    """A tool or expert did not do its work; the episode is left out of rewards and counted."""
    JUDGE = "judge"
    """A judge or verifier did not answer; never a score of 0."""
    INFRASTRUCTURE = "infrastructure"
    """A server, disk, port or process failed."""
    CALLER = "caller"
    """Bad input: a parameter, a file, an argument."""


class OrchestraError(Exception):
    """A failure that a person reads: one line that says what, where and what to do."""

    fault: Fault = Fault.INFRASTRUCTURE
    retryable: bool = False

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        """No address in it keeps its password, and no secret of the environment is in it."""
        super().__init__()
        self._say(*map(without_secrets, (what, where, fix)))

    def hide(self, secrets: Collection[str]) -> None:
        """Take secrets out, whoever repeated them."""
        self._say(*(without(part, secrets) for part in (self.what, self.where, self.fix)))

    def at(self, where: str) -> None:
        """Say where it happened, unless it does."""
        self._say(self.what, self.where or where, self.fix)

    def advise(self, fix: str) -> None:
        """Say what to do about it, unless it does."""
        self._say(self.what, self.where, self.fix or fix)

    def _say(self, what: str, where: str, fix: str) -> None:
        self.what, self.where, self.fix = what, where, fix
        parts = [f"{where}: {what}" if where else what]
        if fix:
            parts.append(fix)
        self.args = (" — ".join(one_line(part) for part in parts),)


class ConfigError(OrchestraError):
    """params.yaml, the catalogue or an argument is wrong."""

    fault = Fault.CALLER


class DataError(OrchestraError):
    """A data file is missing, corrupt or refused."""

    fault = Fault.CALLER


class ToolError(OrchestraError):
    """A tool failed for a reason that is not the model's."""

    fault = Fault.TOOL
    retryable = True
    charges: tuple[Charge, ...] = ()
    """Dollars and seconds that the failed call took all the same."""


class JudgeError(OrchestraError):
    """A judge failed; the verdict is unknown."""

    fault = Fault.JUDGE
    retryable = True


class BudgetError(OrchestraError):
    """The next call could cross a cap of dollars, turns or seconds."""

    fault = Fault.CALLER


class ServiceError(OrchestraError):
    """A server, port or process failed."""

    fault = Fault.INFRASTRUCTURE
    retryable = True


class TrainingError(OrchestraError):
    """Training cannot go on (collapse, bad weights, too many infrastructure failures)."""

    fault = Fault.MODEL


class CallError(ValueError):
    """The model's call is malformed; the message is written for the model, which may try again."""
