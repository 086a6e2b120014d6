"""Which requests a candidate sees while it is tried, and what is made of what comes of them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from orchestra.accounting.budget import Budget
from orchestra.errors import BudgetError, OrchestraError
from orchestra.serving.backend import Backend, describe
from orchestra.serving.records.spans import FAILED
from orchestra.serving.records.telemetry import Telemetry
from orchestra.serving.releases.trial import GRACE_S, ReleaseTrial, conclude, is_waited_for
from orchestra.serving.shared.database import Database
from orchestra.serving.shared.samples import Arm, Finding, Sample, TrialSamples
from orchestra.serving.wire.request import MODEL, ChatRequest
from orchestra.types import Episode, StopReason

log = logging.getLogger("orchestra.gateway")

LOOK_EVERY = 5
"""Requests of the candidate between two looks at what came of them."""
MOST_SHADOWS = 4
"""Copies that are answered at once; further requests are not copied."""


class Traffic:
    """Of one trial, in one gateway."""

    def __init__(
        self, root: Path, trial: ReleaseTrial, candidate: Backend, database: Database, telemetry: Telemetry
    ) -> None:
        self._root, self.trial, self.candidate = root, trial, candidate
        self.withdrawn = False
        """Whether the candidate gets nothing any more."""
        self._samples, self._telemetry = TrialSamples(database, trial.id), telemetry
        self._until = time.monotonic() + 60 * trial.settings.minutes + GRACE_S
        """When a trial is over that no release waits for."""
        self._look: asyncio.Task[None] | None = None
        self._due = False
        """Whether something came that is to be looked at."""
        self._shadows: set[asyncio.Task[None]] = set()
        self._seen = 0
        self._counted: set[bytes] = set()
        """Conversations of which an answer was counted."""
        ledger = root / f".state/shadow/{trial.id}.jsonl"
        ledger.parent.mkdir(parents=True, exist_ok=True)
        self._budget = Budget(ledger, Decimal(str(trial.settings.shadow_usd)))

    def answers(self, request: ChatRequest, owner: str) -> bool:
        """Whether the candidate answers. A conversation stays with whom it began; a version asked for by its name is
        that version."""
        if self.withdrawn or self.trial.mode != "canary":
            return False
        if request.model != MODEL:
            return request.model == self.trial.asked_as
        return self._drawn(request, owner)

    def _drawn(self, request: ChatRequest, owner: str) -> bool:
        """By the conversation's first message of the user: another trial draws others."""
        return int.from_bytes(self._digest(request, owner), "big") < self.trial.share * 2**64

    def _digest(self, request: ChatRequest, owner: str = "") -> bytes:
        """Of a conversation."""
        first = next((message.text for message in request.messages if message.role == "user"), "")
        text = "\0".join((self.trial.secret, owner, request.user or "", first))
        return hashlib.sha256(text.encode()).digest()[:8]

    def answered(
        self, backend: Backend, request: ChatRequest, seconds: float, episode: Episode | None, *, engine: bool = False
    ) -> None:
        """Take note of an answer, or of a failure (None), and copy the request where that is the trial.

        Requests for a version by its name are the release's probes, which it counts itself. Of a conversation one
        answer counts: who knows by it which version answers could ask that one alone what takes long, or what meets
        a bug. A failure of the `engine` counts always: no question brings it about.
        """
        if self.withdrawn or request.model != MODEL:
            return
        arm: Arm = "candidate" if backend is self.candidate else "champion"
        sample = _sample(arm, seconds, episode)
        if self.trial.mode == "shadow":
            if self._drawn(request, "") and len(self._shadows) < MOST_SHADOWS:
                task = asyncio.ensure_future(self._shadow(request, sample))
                self._shadows.add(task)
                task.add_done_callback(self._shadows.discard)
            return
        if not engine:
            conversation = self._digest(request)
            if conversation in self._counted:
                return
            self._counted.add(conversation)
        self._add(sample)

    async def _shadow(self, request: ChatRequest, champion: Sample) -> None:
        """The candidate's own answer to the same request, which nobody gets; both are counted."""
        began, episode = time.monotonic(), None
        if self._budget.cap_usd is not None and self._budget.spent_usd >= self._budget.cap_usd:
            return
        record = {"version": self.candidate.serving.version, "engine": self.candidate.serving.engine, "role": "shadow"}
        try:
            with self.candidate.working():
                job = await self.candidate.ready(request, lambda call_id, digest: None)
                episode = await self.candidate.run(job, budget=self._budget)
            record["trace_id"] = job.trace_id
        except BudgetError:
            return
        except Exception as error:
            log.warning("the candidate failed in the shadow: %s", describe(error))
        if episode is not None:
            if episode.stop is StopReason.BUDGET:
                return
            wall_s = round(time.monotonic() - began, 3)
            self._telemetry.trace({**record, "wall_s": wall_s}, request, episode)
        self._add(champion)
        self._add(_sample("candidate", time.monotonic() - began, episode))

    def _add(self, sample: Sample) -> None:
        try:
            self._samples.add(sample)
        except OrchestraError as error:
            # The answer is paid for, and its caller is to have it.
            log.warning("a request of the trial was not counted: %s", describe(error))
            return
        self._telemetry.trial_requests.labels(sample.arm, str(sample.failed).lower()).inc()
        if sample.arm == "champion":
            return
        self._seen += 1
        if sample.failed or self._seen % LOOK_EVERY == 0:
            self._due = True
            if self._look is None or self._look.done():
                self._look = asyncio.ensure_future(self._conclude_all())

    async def _conclude_all(self) -> None:
        """What came while it looked is looked at too: the next request may be long in coming."""
        while self._due:
            self._due = False
            await asyncio.to_thread(self._conclude)

    def _conclude(self) -> None:
        """Withdraw a candidate that is found to be worse. That it passes is for the release to say."""
        found = conclude(self._samples.arms(), self.trial.settings)
        if found is not None and found.verdict == "worse":
            self._withdraw(self._samples.find(found))

    def look(self, on_withdrawn: Callable[[Backend], None]) -> None:
        """Learn what other gateways or the release found; a trial that nobody ends comes to an end by itself."""
        found = self._samples.found()
        if found is None and time.monotonic() > self._until and not is_waited_for(self._root):
            found = self._samples.find(Finding(verdict="ended", why="its release was killed"))
        if found is not None and found.verdict != "passed" and not self.withdrawn:
            self._withdraw(found)
        if self.withdrawn:
            on_withdrawn(self.candidate)

    def _withdraw(self, found: Finding) -> None:
        self.withdrawn = True
        self._telemetry.trial(None)
        if found.verdict == "worse":
            self._telemetry.trial_rollbacks.inc()
        log.warning("version %s is withdrawn: %s", self.candidate.serving.version, found.why)

    def state(self) -> dict[str, object]:
        """For /health."""
        trial = self.trial
        return {"id": trial.id, "mode": trial.mode, "version": trial.serving.version, "withdrawn": self.withdrawn}

    async def aclose(self) -> None:
        """End the copies under way."""
        for task in list(self._shadows):
            task.cancel()
        if self._shadows:
            await asyncio.wait(self._shadows)


def _sample(arm: Arm, seconds: float, episode: Episode | None) -> Sample:
    failed = episode is None or episode.stop in FAILED
    usd = 0.0 if episode is None else float(episode.cost_usd)
    return Sample(arm=arm, failed=failed, seconds=seconds, usd=usd)
