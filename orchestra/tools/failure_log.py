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
MOST_LINES = 10
"""Lines in that time of one source: some providers put another text into each refusal."""
MOST_REASONS = 200
"""Reasons that are counted; later ones are not."""
VARYING = re.compile(r"\d+\.\d+|\d{4,}")
"""What differs each time: seconds to wait, counts of tokens. A status such as 401 stays."""


class FailureLog:
    """Of one toolkit and all that share its resources, in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._logged: dict[tuple[str, str], float] = {}
        """When each reason was logged, by its source."""
        self._lost: Counter[tuple[str, str]] = Counter()

    def warn(self, error: OrchestraError) -> None:
        """Log why something failed, unless that was logged a short while ago."""
        source, reason = _reason(error)
        now = self._clock()
        with self._lock:
            self._logged = {known: at for known, at in self._logged.items() if now - at < AGAIN_S}
            if (source, reason) in self._logged or sum(one == source for one, _ in self._logged) >= MOST_LINES:
                return
            self._logged[source, reason] = now
        log.warning("%s: %s", type(error).__name__, error)

    def lost(self, error: OrchestraError, *, quiet: bool = False) -> None:
        """The same where it costs an episode its result; `quiet` logs nothing."""
        known = _reason(error)
        with self._lock:
            if known in self._lost or len(self._lost) < MOST_REASONS:
                self._lost[known] += 1
        if not quiet:
            self.warn(error)

    @property
    def most_frequent(self) -> str | None:
        """The reason that cost most episodes their result; None: nothing did."""
        with self._lock:
            return next((f"{source}: {reason}" for (source, reason), _ in self._lost.most_common(1)), None)


def _reason(error: OrchestraError) -> tuple[str, str]:
    """What failed, without the example of a judge, and why, without what varies."""
    where = f": {error.where}" if error.where and not isinstance(error, JudgeError) else ""
    return f"{type(error).__name__}{where}", VARYING.sub("…", error.what)
