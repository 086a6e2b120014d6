"""The release's side of a trial: it asks both arms held-out questions, and waits for the verdict."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import httpx

from orchestra.errors import JudgeError, ServiceError
from orchestra.rewards.outcome import verify
from orchestra.serving.client import PATH, access
from orchestra.serving.releases.trial import Mode, ReleaseTrial, conclude, touch_trial
from orchestra.serving.releases.vllm import Say
from orchestra.serving.shared.checks import mark
from orchestra.serving.shared.database import STORE, Database
from orchestra.serving.shared.samples import Arm, Finding, Sample, TrialSamples
from orchestra.statistics.sequential import FEWEST, ArmSamples
from orchestra.system.processes import SAY_EVERY_S
from orchestra.tools.failure_log import FailureLog
from orchestra.types import Example

PAUSE_S = 1.0
"""Between two looks while no probe is answered, and before a busy gateway is asked again."""
CONNECT_S = 60.0
"""Seconds until the gateway takes a connection."""
HANGS, LEAST_S = 10, 120.0
"""The candidate hangs after so many times the seconds of the champion's answer to the same question, and no sooner."""
REFUSED = (401, 403)
"""Statuses of a gateway that does not know the key of the probes."""
CANARY = "canary trial"
BUSY = (429, 503)
"""Statuses of a gateway that takes no more at the moment."""


@dataclass(frozen=True)
class TrialPlan:
    """What a release is to try before its candidate takes over."""

    mode: Mode
    share: float
    examples: Sequence[Example]
    """Held-out questions to ask both; those that no rule can judge are passed over."""


class CandidateWorse(ServiceError):
    """A candidate that did not pass its trial."""


class TrialRun:
    """Of one trial, from its beginning to its verdict."""

    def __init__(self, root: Path, trial: ReleaseTrial, champion: str, url: str, plan: TrialPlan, say: Say) -> None:
        """`champion` is the version that serves; `url` the gateway's."""
        self._root, self._trial, self._plan, self._say = root, trial, plan, say
        self._models: dict[Arm, str] = {"champion": champion, "candidate": trial.asked_as}
        self._base, self._headers, self._verify = access(root, url)
        self._database = Database(root / STORE)
        self._samples = TrialSamples(self._database, trial.id)
        self._failures = FailureLog()
        self._patience_s = trial.serving.parsed.deploy.gateway.patience_s
        self._ends = math.inf
        self._order = random.Random(trial.id)

    def run(self) -> Finding:
        """The verdict; an interrupted run leaves one too, so that no gateway goes on."""
        try:
            return asyncio.run(self._run())
        except BaseException:
            self._samples.find(Finding(verdict="ended", why="its release was interrupted"))
            raise

    async def _run(self) -> Finding:
        began = said = time.monotonic()
        self._ends = began + 60 * self._trial.settings.minutes
        probes, asked = self._probes(), set[asyncio.Task[None]]()
        async with self._client() as http:
            try:
                while True:
                    for probe in islice(probes, self._trial.settings.probes_at_once - len(asked)):
                        asked.add(asyncio.create_task(self._ask_both(http, probe)))
                    asked = await _some_done(asked)
                    touch_trial(self._root)
                    arms = self._samples.arms()
                    over = time.monotonic() > self._ends
                    # Probes that are paid and on their way are waited for while they are what a verdict lacks.
                    over &= not asked or arms["candidate"].judged >= FEWEST
                    found = self._samples.found() or self._concluded(arms, over=over)
                    if found is not None:
                        return found
                    if time.monotonic() - said >= SAY_EVERY_S:
                        said = time.monotonic()
                        settings = self._trial.settings
                        ends = f"ends at {settings.requests} or {settings.minutes:g} min"
                        self._say(f"{self._trial.mode}: {_counts(arms)} ({said - began:.0f} s; {ends})")
            finally:
                # Nobody waits for what is not answered yet: the gateway ends the work of who hangs up.
                for one in asked:
                    one.cancel()
                await asyncio.gather(*asked, return_exceptions=True)

    def figures(self) -> dict[str, float]:
        """What both arms gave, for the record."""
        found: dict[str, float] = {}
        for arm, samples in self._samples.arms().items():
            found[f"{arm}.requests"] = samples.requests
            found[f"{arm}.failed"] = samples.failures
            found[f"{arm}.seconds_geometric"] = math.exp(samples.log_seconds.mean)
            found[f"{arm}.judged"] = samples.judged
            found[f"{arm}.accuracy"] = samples.solved.mean
            found[f"{arm}.usd_judged"] = samples.usd.mean
        return found

    def close(self) -> None:
        self._database.close()

    def _concluded(self, arms: Mapping[Arm, ArmSamples], *, over: bool) -> Finding | None:
        found = conclude(arms, self._trial.settings, over=over, judged=self._trial.mode == "canary")
        return None if found is None else self._samples.find(found)

    def _probes(self) -> Iterator[Example]:
        """Nobody is to get an answer of a shadow, so it is asked nothing."""
        ruled = [one for one in self._plan.examples if one.verifier.kind in ("exact", "numeric")]
        if self._trial.mode == "canary":
            yield from ruled[: self._trial.settings.probes]

    def _client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self._patience_s, connect=CONNECT_S)
        return httpx.AsyncClient(timeout=timeout, trust_env=False, verify=self._verify)

    async def _ask_both(self, http: httpx.AsyncClient, example: Example) -> None:
        """At the same time, so that both meet the same machine, and now the one first, now the other."""
        arms = self._order.sample(list(self._models), 2)
        asking = {arm: asyncio.create_task(self._ask(http, arm, example)) for arm in arms}
        try:
            took = await asking["champion"]
            if took is not None:
                left_s = max((HANGS - 1) * took, LEAST_S - took)
                await asyncio.wait([asking["candidate"]], timeout=left_s)
                if not asking["candidate"].done():
                    # Long before a request's own limit, since it holds the place of a question.
                    self._samples.add(Sample(arm="candidate", failed=True, seconds=took + left_s, usd=0.0))
                    return
            await asking["candidate"]
        finally:
            for one in asking.values():
                one.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)

    async def _ask(self, http: httpx.AsyncClient, arm: Arm, example: Example) -> float | None:
        """Keep what came; the seconds of an answer, None where there is none."""
        body = {
            "model": self._models[arm],
            "messages": [{"role": "user", "content": example.instruction}],
            "preference": example.preference.words or None,
        }
        url, headers = f"{self._base}{PATH}", self._headers | mark(self._root, example.instruction)
        began, failed, usd, solved = time.monotonic(), True, 0.0, None
        try:
            while (reply := await http.post(url, json=body, headers=headers)).status_code in BUSY:
                # That says nothing about who answers.
                _refuse_unpaid(reply)
                if time.monotonic() > self._ends:
                    return None
                await asyncio.sleep(PAUSE_S)
                began = time.monotonic()
            if reply.status_code in REFUSED:
                fix = "give ORCHESTRA_API_KEY a key of this gateway: orchestra keys create NAME"
                raise ServiceError(f"the gateway refuses the probes: HTTP {reply.status_code}", where=CANARY, fix=fix)
            if reply.status_code == 404:
                # Withdrawn in the meantime.
                return None
            found = reply.json()
            usd = float(found["orchestra"]["cost_usd"]) if "orchestra" in found else 0.0
            if reply.status_code == 200:
                failed = False
                solved = verify(example, found["choices"][0]["message"]["content"] or "", None).solved
            else:
                # A question that was not answered is not solved, and cost what it cost.
                solved = False
        except JudgeError as error:
            self._failures.warn(error)  # Answered, but not judged: a failed judge is no score.
        except (httpx.HTTPError, ValueError, KeyError, IndexError):
            failed = True
        seconds = time.monotonic() - began
        self._samples.add(Sample(arm=arm, failed=failed, seconds=seconds, usd=usd, solved=solved))
        return None if failed else seconds


def _refuse_unpaid(reply: httpx.Response) -> None:
    """Raises `ServiceError` where the key that the release asks with may spend no more."""
    if "insufficient_quota" in reply.text:
        fix = "give the key that ORCHESTRA_API_KEY names more dollars, or unset it"
        raise ServiceError("the key of the probes may spend no more", where=CANARY, fix=fix)


async def _some_done(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that go on once one is done, or after a pause; raises what one of them did."""
    if not tasks:
        await asyncio.sleep(PAUSE_S)
        return tasks
    done, going = await asyncio.wait(tasks, timeout=PAUSE_S, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()
    return going


def _counts(arms: Mapping[Arm, ArmSamples]) -> str:
    parts = [f"{arm} {one.requests} requests, {one.failures} failed" for arm, one in arms.items()]
    return "; ".join(parts)
