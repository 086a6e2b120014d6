"""The gateway: OpenAI chat completions, answered by running the one loop with real tools."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import OrchestraError
from orchestra.serving import api
from orchestra.serving.api import ApiError
from orchestra.serving.backend import Backend, Job, describe
from orchestra.serving.state import SERVING, read
from orchestra.serving.telemetry import TRACES, Telemetry
from orchestra.system.code_hash import code_hash
from orchestra.types import Episode, Turn

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Conversation

log = logging.getLogger("orchestra.gateway")

KEEP_ALIVE_S = 10.0
"""A stream that has nothing to say says so this often, so that nothing in between closes it."""


class Gateway:
    """The backend that answers now, those that still drain, and their telemetry."""

    def __init__(self, root: Path, config: str = SERVING, backend: Backend | None = None) -> None:
        self.root, self.config = root, config
        self.telemetry = Telemetry(root / TRACES)
        self.code = code_hash("gateway")
        self.backend: Backend | None = None
        self.draining: list[Backend] = []
        self.failure: str | None = None
        """Why the last load failed, where nothing serves."""
        self._loading = asyncio.Lock()
        if backend is not None:
            self._switch(backend)

    async def load(self) -> Backend:
        """Serve what the config names; on failure what served before goes on. Raises `OrchestraError`."""
        async with self._loading:
            serving = read(self.root / self.config)
            if serving is None:
                raise OrchestraError("nothing was released", where=self.config, fix="run the pipeline")
            return self._switch(await asyncio.to_thread(Backend.load, self.root, serving))

    def _switch(self, backend: Backend) -> Backend:
        if self.backend is not None:
            self.draining.append(self.backend)
        self.backend, self.failure = backend, None
        self.telemetry.released(backend.serving.version, backend.serving.engine)
        return backend

    async def start(self) -> None:
        """The first load; a failure is kept for /health, where a release reads it."""
        try:
            await self.load()
        except Exception as error:
            log.exception("nothing serves")
            self.failure = describe(error)

    @property
    def active(self) -> Backend:
        """Raises `ApiError` 503 when nothing serves."""
        if self.backend is None:
            message = self.failure or "the model is being loaded: try again in some seconds"
            code = "failed" if self.failure else "starting"
            raise ApiError(503, message, kind="service_unavailable", code=code)
        return self.backend

    async def health(self) -> dict[str, Any]:
        """What serves, and how many requests each release still works on, by fingerprint."""
        backend = self.active
        problem = await asyncio.to_thread(backend.problem)
        self.telemetry.ready.set(0 if problem else 1)
        self.draining = [old for old in self.draining if old.in_flight]
        serving = backend.serving
        return {
            "status": "failed" if problem else "ok",
            "problem": problem,
            "version": serving.version,
            "engine": serving.engine,
            "fingerprint": serving.fingerprint,
            "code": self.code,
            "pid": os.getpid(),
            "draining": {old.serving.fingerprint: old.in_flight for old in self.draining},
        }

    async def attempt(self, backend: Backend, job: Job, began: float, **kwargs: Any) -> tuple[Episode, dict[str, Any]]:
        """Run a job; the episode and its `orchestra` object. Counts and traces it, whatever comes of it."""
        serving = backend.serving
        asked = job.request.model_dump(mode="json", exclude={"tools", "n"}, exclude_none=True)
        record = {
            "trace_id": job.trace_id,
            "version": serving.version,
            "engine": serving.engine,
            "fingerprint": serving.fingerprint,
            "request": asked,
        }
        with self.telemetry.in_flight.track_inprogress():
            try:
                episode = await backend.run(job, **kwargs)
            except BaseException as error:
                self.telemetry.trace({**record, "error": describe(error) or type(error).__name__})
                raise
        wall_s = time.monotonic() - began
        self.telemetry.observe(episode, job.tools, wall_s)
        self.telemetry.trace({**record, "wall_s": round(wall_s, 3), "episode": episode.model_dump(mode="json")})
        made = api.report(episode, engine=serving.engine, version=serving.version, trace_id=job.trace_id, wall_s=wall_s)
        return episode, made

    async def complete(self, backend: Backend, job: Job, began: float) -> dict[str, Any]:
        """A whole chat completion; raises `ApiError` when there is no answer to give."""
        episode, orchestra = await self.attempt(backend, job, began)
        refused = api.refusal(episode, orchestra)
        if refused is not None:
            raise refused
        return api.completion(episode, orchestra, created=int(time.time()))

    async def stream(self, backend: Backend, job: Job, began: float) -> AsyncIterator[str]:
        """Server-sent events: each tool call as it happens (`orchestra.tool_call`), the answer, then the account."""
        created = int(time.time())
        calls: asyncio.Queue[Turn | None] = asyncio.Queue()

        def on_turn(_: Conversation, turn: Turn) -> None:
            if turn.call is not None:
                calls.put_nowait(turn)

        task = asyncio.ensure_future(self.attempt(backend, job, began, on_turn=on_turn))
        task.add_done_callback(lambda _: calls.put_nowait(None))
        code = 200
        try:
            yield _event(api.chunk(job.trace_id, created, {"role": "assistant", "content": ""}))
            while True:
                try:
                    turn = await asyncio.wait_for(calls.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield ": working\n\n"
                    continue
                if turn is None:
                    break
                made = {"tool_call": api.tool_call(turn)}
                yield _event(api.chunk(job.trace_id, created, {}, orchestra=made))
            episode, orchestra = await task
            refused = api.refusal(episode, orchestra)
            if refused is not None:
                raise refused
            whole = api.completion(episode, orchestra, created=created)
            for piece in _pieces(episode.answer or ""):
                yield _event(api.chunk(job.trace_id, created, {"content": piece}))
            finish = whole["choices"][0]["finish_reason"]
            yield _event(
                api.chunk(job.trace_id, created, {}, finish, usage=whole["usage"], orchestra=whole["orchestra"])
            )
        except (ApiError, OrchestraError) as error:
            refused = error if isinstance(error, ApiError) else api.from_orchestra(error)
            code = refused.status
            yield _event(refused.body)
        finally:
            # The caller may have hung up: then nobody pays for the rest.
            task.cancel()
            self.telemetry.requests.labels(str(code)).inc()
        yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    # In ASCII: some clients cut a stream at every Unicode line break, where a quoted text could forge an event.
    return f"data: {json.dumps(data)}\n\n"


def _pieces(text: str) -> list[str]:
    """The answer word by word, spaces kept: `"".join(pieces) == text`."""
    words = text.split(" ")
    return [word + (" " if index < len(words) - 1 else "") for index, word in enumerate(words)]
