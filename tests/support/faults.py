"""A fault proxy: of the requests to a model it fails, hangs or spoils a share, always the same ones for a seed."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestra.types import Usage
from tests.support.endpoint import answer

CALLS = [{"type": "function", "function": {"name": "search", "arguments": "{}"}}]


class Fault(NamedTuple):
    status: int
    body: Any
    billed: bool = True
    """Whether the provider billed it."""
    told: bool = True
    """Whether the client learned how many tokens that were."""


FAULTS = [
    Fault(503, {}, billed=False),
    Fault(429, {"error": "slow down"}, billed=False),
    Fault(500, b"<html>", billed=False),
    Fault(401, {"error": "who are you?"}, billed=False),
    Fault(0, None, told=False),
    Fault(200, b"<html><body>Bad gateway</body></html>", told=False),
    Fault(200, json.dumps(answer("never read")).encode()[:70], told=False),
    Fault(200, b"[" * 100_000, told=False),
    Fault(200, {"choices": []}, told=False),
    Fault(200, {"error": {"message": "overloaded"}}, told=False),
    Fault(200, answer(None)),
    Fault(200, answer("<think>\nso then")),
    Fault(200, answer(None, tool_calls=CALLS)),
    Fault(200, answer(" \n")),
]


HANG = Fault(200, answer(), told=False)
"""It answers, and bills it, long after nobody waits any more."""
HANG_S = 30.0


class FaultProxy:
    """A script for `serving`: passes on what `solve` answers, or commits a fault. Thread-safe."""

    def __init__(self, solve: Callable[[dict[str, Any]], str], *, seed: int, share: float, hangs: str) -> None:
        """`hangs`: the model that never answers in time. (One that sometimes does would be a test of the machine.)"""
        self._solve, self._seed, self._share, self._hangs = solve, seed, share, hangs
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.committed: list[Fault | None] = []
        """Each request's fault, in the order in which they came."""

    def __call__(self, request: dict[str, Any]) -> tuple[int, Any, float]:
        text = json.dumps(request, sort_keys=True)
        with self._lock:
            number = self._asked[text]
            self._asked[text] += 1
        digest = hashlib.blake2b(f"{self._seed}:{number}:{text}".encode(), digest_size=8).digest()
        fault = None
        if request["model"] == self._hangs:
            fault = HANG
        elif int.from_bytes(digest[:4], "big") / 2**32 < self._share:
            fault = FAULTS[int.from_bytes(digest[4:], "big") % len(FAULTS)]
        with self._lock:
            self.committed.append(fault)
        if fault is None:
            return 200, answer(self._solve(request)), 0
        return fault.status, fault.body, HANG_S if fault is HANG else 0


TOLD = Usage(input_tokens=100, cached_input_tokens=40, output_tokens=7)
"""What every reply that can be read says of its tokens."""
