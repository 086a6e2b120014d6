"""Marks of the workspace's own questions, which check what serves: they are no traffic that drift is told of."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path

from orchestra.files import atomic
from orchestra.serving.wire.messages import ChatMessage

HEADER, FILE = "X-Orchestra-Check", ".state/check.key"
ROLE = "check"
"""Of such a request's trace."""


def mark(root: Path, question: str) -> dict[str, str]:
    """The header of an own question; the secret behind it is made with the first.

    It holds for this question alone: whoever reads it can hide no other request from the monitor.
    """
    file = root / FILE
    atomic.private_once(file, secrets.token_hex(32))
    return {HEADER: _code(file, question)}


def marked(root: Path, messages: Sequence[ChatMessage], said: str) -> bool:
    """Whether a request is one question with its mark; `said` is the header, empty where there is none."""
    if not said or len(messages) != 1:
        return False
    try:
        return hmac.compare_digest(said.encode(), _code(root / FILE, messages[0].text).encode())
    except OSError:
        return False  # No question was marked here.


def _code(file: Path, question: str) -> str:
    return hmac.new(file.read_bytes(), question.encode(errors="replace"), "sha256").hexdigest()
