"""Why tools, experts and judges failed: in the log, however many episodes a reason costs."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable

from orchestra.errors import JudgeError, OrchestraError

log = logging.getLogger("orchestra.rollout")

AGAIN_S = 600.0
"""Seconds until a reason is logged again."""
MOST_LINES = 20
"""Lines in that time: some providers put another number into each refusal."""
MOST_REASONS = 200
"""Reasons that are counted; later ones are not."""


class FailureLog:
    """Of one toolkit and all that share its resources, in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._logged: dict[str, float] = {}
        """When each reason was logged."""
        self._lost: Counter[str] = Counter()

    def warn(self, error: OrchestraError) -> None:
        """Log why something failed, unless that was logged a short while ago."""
        reason, now = _reason(error), self._clock()
        with self._lock:
            self._logged = {known: at for known, at in self._logged.items() if now - at < AGAIN_S}
            if reason in self._logged or len(self._logged) >= MOST_LINES:
                return
            self._logged[reason] = now
        log.warning("%s: %s", type(error).__name__, error)

    def lost(self, error: OrchestraError, *, quiet: bool = False) -> None:
        """The same where it costs an episode its result; `quiet` logs nothing."""
        reason = _reason(error)
        with self._lock:
            if reason in self._lost or len(self._lost) < MOST_REASONS:
                self._lost[reason] += 1
        if not quiet:
            self.warn(error)

    @property
    def most_frequent(self) -> str | None:
        """The reason that cost most episodes their result; None: nothing did."""
        with self._lock:
            return next((reason for reason, _ in self._lost.most_common(1)), None)


def _reason(error: OrchestraError) -> str:
    """What failed and why, without what differs each time: the example of a judge, seconds to wait."""
    where = f"{error.where}: " if error.where and not isinstance(error, JudgeError) else ""
    return re.sub(r"\d+\.\d+", "…", f"{type(error).__name__}: {where}{error.what}")
