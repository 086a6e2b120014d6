"""The gateway: OpenAI chat completions, answered by running the one loop with real tools."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from orchestra.accounting.ledger import total
from orchestra.config.deploy import GatewayLimits, Tracing
from orchestra.errors import BudgetError, OrchestraError, ServiceError
from orchestra.serving.backend import Backend, describe, silent
from orchestra.serving.episodes.admission import Places, ended
from orchestra.serving.episodes.clock import EpisodeClock
from orchestra.serving.episodes.events import StreamEvents, event
from orchestra.serving.episodes.job import ANYBODY, Caller, Job
from orchestra.serving.records.telemetry import TRACES, Telemetry
from orchestra.serving.releases.replicas import asked_at
from orchestra.serving.releases.state import SERVING, Serving, read
from orchestra.serving.releases.supervisor import Supervisor
from orchestra.serving.releases.traffic import Traffic
from orchestra.serving.releases.trial import ReleaseTrial, read_trial
from orchestra.serving.shared import checks
from orchestra.serving.shared.answers import Answers
from orchestra.serving.shared.calls import Calls
from orchestra.serving.shared.database import STORE, Database
from orchestra.serving.shared.keys import Keys
from orchestra.serving.shared.spending import KeyBudget
from orchestra.serving.wire import reply
from orchestra.serving.wire.errors import LEFT, ApiError, StoreError, from_orchestra, spent, unavailable
from orchestra.serving.wire.request import MODEL, ChatRequest
from orchestra.types import Episode, Turn

log = logging.getLogger("orchestra.gateway")

KEEP_ALIVE_S = 10.0
"""A stream that has nothing to say says so this often, so that nothing in between closes it."""
LOOK_S = 5.0
"""Seconds between two looks at the model server."""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 30.0
"""Between two tries to load what could not be loaded at the start; doubled after each that failed."""


class Gateway:
    """The backend that answers now, those that still drain, and their telemetry."""

    def __init__(
        self,
        root: Path,
        config: str = SERVING,
        backend: Backend | None = None,
        limits: GatewayLimits | None = None,
        tracing: Tracing | None = None,
        vllm_urls: Sequence[str] = (),
        code: str = "",
    ) -> None:
        """`vllm_urls`: the model servers to ask, which others keep up; default: the one that the config names.
        `code`: what this process runs (see `gateway_code`)."""
        self.root, self.config = root, config
        self.limits, self._vllm_urls = limits or GatewayLimits(), tuple(vllm_urls)
        days, megabytes = self.limits.trace_days, self.limits.trace_mb
        self.telemetry = Telemetry(root / TRACES, days=days, megabytes=megabytes, tracing=tracing)
        self.store = Database(root / STORE)
        self.keys, self.calls, self.answers = Keys(self.store), Calls(self.store), Answers(self.store)
        self.places = Places(self.limits.running, self.limits.waiting, self.limits.wait_s)
        self.code = code
        self.backend: Backend | None = None
        self.draining: list[Backend] = []
        self.traffic: Traffic | None = None
        """The trial under way."""
        self.failure: str | None = None
        """Why the last load failed, where nothing serves."""
        self.problem: str | None = None
        """Why the model cannot answer at present, as of the last look."""
        self._wanted: Serving | None = None
        """What the config named when it was last read."""
        self._next_try, self._pause_s = 0.0, PAUSE_S
        self._loading = asyncio.Lock()
        self._worry = asyncio.Event()
        """Set where a request found the model server silent: it is looked at sooner."""
        self._supervisor = Supervisor(root, self._restarted)
        if backend is not None:
            self._switch(backend)

    async def load(self) -> Backend:
        """Serve what the config names; on failure what served before goes on. Raises `OrchestraError`."""
        async with self._loading:
            serving = read(self.root / self.config)
            if serving is None:
                raise OrchestraError("nothing was released", where=self.config, fix="run the pipeline")
            now = None if self.backend is None else self.backend.serving
            serving = await asked_at(self.root, self._vllm_urls, serving, now)
            self._wanted = serving
            known = [self.backend, self.traffic.candidate if self.traffic is not None else None]
            found = next((one for one in known if one is not None and one.serving == serving), None)
            if found is None:
                found = await asyncio.to_thread(Backend.load, self.root, serving)
            backend = self._switch(found)
            await self._try(read_trial(self.root) if self.config == SERVING else None)
            return backend

    async def _try(self, trial: ReleaseTrial | None) -> None:
        """Begin the trial, or end the one that was; a candidate that serves by now stays."""
        old, now = self.traffic, self.backend
        if old is not None and (trial is None or trial.id != old.trial.id):
            self.traffic = None
            self.telemetry.trial(None)
            await old.aclose()
            if old.candidate is not now:
                self._drain(old.candidate)
        if trial is not None and self.traffic is None:
            candidate = await asyncio.to_thread(Backend.load, self.root, trial.serving)
            self.traffic = Traffic(self.root, trial, candidate, self.store, self.telemetry)
            self.telemetry.trial(trial)

    def _drain(self, backend: Backend) -> None:
        """Close it as soon as it answers nothing any more."""
        if backend not in self.draining:
            self.draining.append(backend)

    def _switch(self, backend: Backend) -> Backend:
        if self.backend is not None and self.backend is not backend:
            self._drain(self.backend)
        self.backend, self.failure, self.problem = backend, None, None
        self.telemetry.released(backend.serving.version, backend.serving.engine)
        return backend

    async def start(self) -> None:
        """The first load; a failure is kept for /health, where a release reads it, until a later one succeeds."""
        try:
            if self.backend is None:
                await self.load()
        except Exception as error:
            failure = "; ".join(filter(None, (describe(error), self._supervisor.failure)))
            if failure != self.failure:
                log.exception("nothing serves")
            self.failure = failure

    async def _start_again(self) -> None:
        """Try the first load once more, after a pause. Meanwhile a model server of this workspace is kept up."""
        if self._wanted is not None:
            self._supervisor.seen(self._wanted, await asyncio.to_thread(silent, self._wanted))
        now = time.monotonic()
        if now >= self._next_try:
            self._next_try, self._pause_s = now + self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
            await self.start()

    def _restarted(self) -> None:
        """The model server is up again: it is looked at now, and a first load is tried now."""
        self.telemetry.restarts.inc()
        self._next_try = 0.0
        self._worry.set()

    async def watch(self) -> None:
        """Look at the model server every some seconds, for good; one that died is started again."""
        while True:
            with contextlib.suppress(TimeoutError):  # Nothing to worry about: an ordinary look.
                await asyncio.wait_for(self._worry.wait(), LOOK_S)
            self._worry.clear()
            try:
                await self.look()
                if self.backend is not None:
                    self._supervisor.seen(self.backend.serving, self.problem)
                elif self.failure is not None:
                    await self._start_again()
            except Exception:
                log.exception("the look at the model server failed")
            # At most one look a second, however many requests fail.
            await asyncio.sleep(1)

    async def look(self) -> str | None:
        """Why nothing can be answered now; None when all is well. Metrics tell it too."""
        problem: str | None = self.failure or "the model is being loaded"
        looked = self.backend
        if looked is not None:
            problem = await looked.problem()
        if self.backend is not looked:
            # A release came meanwhile: what was found is of the server before it.
            return await self.look()
        self.telemetry.ready.set(0 if problem else 1)
        self.problem = problem if looked is not None else None
        if self.traffic is not None:
            self.traffic.look(self._drain)
        idle = [old for old in self.draining if not old.in_flight]
        self.draining = [old for old in self.draining if old.in_flight]
        for old in idle:
            await old.aclose()
        return problem

    @property
    def answering(self) -> Backend:
        """The active backend; raises `ApiError` 503 while its model server is down, too."""
        backend = self.active
        if self.problem is not None:
            raise unavailable(f"{self.problem}: it is being started again", "model_down", 10)
        return backend

    def route(self, backend: Backend, request: ChatRequest, caller: Caller) -> Backend:
        """Who answers a request: `backend`, or the candidate of a trial; raises `ApiError` 404 for an unknown model."""
        # What the monitor asks is for the version that serves; a trial's probes name theirs.
        own = caller.checks and request.model == MODEL
        if self.traffic is not None and not own and self.traffic.answers(request, caller.owner):
            return self.traffic.candidate
        backend.check_model(request.model)
        return backend

    @property
    def active(self) -> Backend:
        """Raises `ApiError` 503 when nothing serves."""
        if self.backend is None:
            message = self.failure or "the model is being loaded: try again in some seconds"
            raise unavailable(message, "failed" if self.failure else "starting")
        return self.backend

    async def health(self) -> dict[str, Any]:
        """What serves, and how many requests each release still works on, by fingerprint."""
        problem = await self.look()
        serving = self.active.serving
        return {
            "status": "failed" if problem else "ok",
            "problem": problem,
            "version": serving.version,
            "engine": serving.engine,
            "fingerprint": serving.fingerprint,
            "code": self.code,
            "pid": os.getpid(),
            "trial": None if self.traffic is None else self.traffic.state(),
            "draining": {old.serving.fingerprint: old.in_flight for old in self.draining},
        }

    def caller(self, authorization: str) -> Caller:
        """Who asks, with one request counted; raises `ApiError` 401 and 429. Without any key everybody may ask."""
        if not self.keys.required:
            return ANYBODY
        key_id = self.keys.admit(authorization)
        return Caller(key_id, KeyBudget(self.store, key_id))

    async def ready(self, backend: Backend, request: ChatRequest, caller: Caller = ANYBODY) -> Job:
        """The job of a request; raises `ApiError` for what the caller can fix."""
        return await backend.ready(request, lambda call_id, digest: self.calls.recall(caller.owner, call_id, digest))

    async def attempt(
        self, backend: Backend, job: Job, began: float, *, check: bool = False, **kwargs: Any
    ) -> tuple[Episode, dict[str, Any]]:
        """Run a job; the episode and its `orchestra` object. Counts and traces it, whatever comes of it.

        Of a `check`, which is no user's request, the dollars are counted and the trace is marked. What the turns cost
        counts also where no episode comes of it, as when the caller left.
        Raises `ApiError` 429 where the caller's key cannot pay for the first turn.
        """
        serving = backend.serving
        record: dict[str, Any] = {
            "trace_id": job.trace_id,
            "version": serving.version,
            "engine": serving.engine,
            "fingerprint": serving.fingerprint,
            **({"request_id": job.request_id} if job.request_id else {}),
            **({"role": checks.ROLE} if check else {}),
        }
        clock, turns = EpisodeClock(began), list[Turn]()
        placed = time.monotonic()  # A trial's seconds are without the wait for a place, which a copy has not.
        with self.telemetry.in_flight.track_inprogress():
            try:
                episode = await backend.run(job, clock=clock, turns=turns, **kwargs)
            except BaseException as error:
                if down := isinstance(error, ServiceError):
                    self._worry.set()
                record["wall_s"] = round(time.monotonic() - began, 3)
                failed = isinstance(error, Exception) and not isinstance(error, (ApiError, BudgetError, StoreError))
                if self.traffic is not None and failed and not check:
                    self.traffic.answered(backend, job.request, time.monotonic() - placed, None, engine=down)
                record["cost_usd"] = self._count(turns, job, check=check)
                self.telemetry.trace({**record, "error": describe(error) or type(error).__name__}, job.request)
                if isinstance(error, BudgetError):
                    raise spent(error) from None
                raise
        wall_s = time.monotonic() - began
        if self.traffic is not None and not check:
            self.traffic.answered(backend, job.request, time.monotonic() - placed, episode)
        self._count(episode.turns, job, check=check)
        if not check:
            self.telemetry.observe(episode, wall_s)
        self.telemetry.trace({**record, "wall_s": round(wall_s, 3), "times": clock.turns}, job.request, episode)
        return episode, backend.report(job, episode, wall_s)

    def _count(self, turns: Sequence[Turn], job: Job, *, check: bool) -> float:
        """Count turns and what they cost, in dollars."""
        cost_usd = float(total(charge for turn in turns for charge in turn.charges))
        if check:
            self.telemetry.check_cost.inc(cost_usd)
        else:
            self.telemetry.paid(turns, job.tools, job.own)
        return cost_usd

    async def complete(self, backend: Backend, job: Job, began: float, caller: Caller = ANYBODY) -> dict[str, Any]:
        """A whole chat completion, from a place on; raises `ApiError` when there is no answer to give."""
        async with self.places.place(job.seconds):
            episode, orchestra = await self.attempt(backend, job, began, check=caller.checks, budget=caller.budget)
        return self._completion(job, episode, orchestra, int(time.time()), caller)

    def _completion(
        self, job: Job, episode: Episode, orchestra: dict[str, Any], created: int, caller: Caller
    ) -> dict[str, Any]:
        refused = reply.refusal(episode, orchestra)
        if refused is not None:
            raise refused
        call_id = ""
        if reply.handed_over(episode) is not None:
            call_id = self.calls.remember(caller.owner, job.digest, [*episode.prompt_ids, *episode.completion_ids])
        return reply.completion(episode, orchestra, created=created, call_id=call_id, metadata=job.request.metadata)

    async def stream(
        self, backend: Backend, job: Job, began: float, caller: Caller = ANYBODY
    ) -> AsyncGenerator[str, None]:
        """Server-sent events while the model writes: each tool call as it happens (`orchestra.tool_call`), the answer's
        text as soon as it is clear that it is one, then the account. Its place is the caller's to hold."""
        created, options = int(time.time()), job.request.stream_options
        thoughts = options is not None and options.include_thoughts
        told = StreamEvents(backend.codec, job.trace_id, job.own, created, thoughts=thoughts)
        work = self.attempt(backend, job, began, on_turn=told.on_turn, on_tokens=told.on_tokens, budget=caller.budget)
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: told.queue.put_nowait(None))
        code = 200
        try:
            yield event(reply.chunk(job.trace_id, created, {"role": "assistant", "content": ""}))
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        said = await told.queue.get()
                except TimeoutError:
                    yield ": working\n\n"
                    continue
                if said is None:
                    break
                yield said
            episode, orchestra = await task
            whole = self._completion(job, episode, orchestra, created, caller)
            for said in told.last(episode, whole, with_usage=options is not None and options.include_usage):
                yield said
        except (ApiError, OrchestraError) as error:
            refused = error if isinstance(error, ApiError) else from_orchestra(error)
            code = refused.status
            yield event(refused.body)
        except (GeneratorExit, asyncio.CancelledError):
            code = LEFT
            raise
        except Exception:
            log.exception("the stream of request %s failed", job.request_id)
            code = 500
            yield event(ApiError(500, "a bug: see the gateway's log", kind="server_error", code="internal").body)
        finally:
            self.telemetry.requests.labels(str(code)).inc()
            # The caller may have hung up: then nobody pays for the rest, and the place is free once the work has ended.
            await ended(task)
        yield "data: [DONE]\n\n"
