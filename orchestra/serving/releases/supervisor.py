"""Keeps the model server up: ends what is left of one that died, and starts it again on the same port."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from orchestra.errors import OrchestraError, ServiceError
from orchestra.files.checkpoint import verify_manifest
from orchestra.serving.releases import vllm
from orchestra.serving.releases.lock import alone
from orchestra.serving.releases.state import Serving
from orchestra.system.processes import remembered

log = logging.getLogger("orchestra.gateway")

HUNG_S = 60.0
"""Seconds without an answer after which a server that still runs counts as dead."""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""Between two tries; doubled after each that failed."""


class Supervisor:
    """Of the server of one release at a time."""

    def __init__(self, root: Path, on_restart: Callable[[], None]) -> None:
        """`on_restart` is called for each server that is up again."""
        self._root, self._on_restart = root, on_restart
        self.failure: str | None = None
        """Why the last try to start a server failed."""
        self._task: asyncio.Task[None] | None = None
        self._silent_since: float | None = None
        self._next_try, self._pause_s = 0.0, PAUSE_S

    def seen(self, serving: Serving, problem: str | None) -> None:
        """Take note of a look at the server; starts it again, in the background, where it has died."""
        now = time.monotonic()
        if problem is None:
            self._silent_since, self._pause_s, self.failure = None, PAUSE_S, None
            return
        self._silent_since = self._silent_since or now
        if serving.vllm_service is None or now < self._next_try or (self._task and not self._task.done()):
            return
        service = remembered(self._root, serving.vllm_service)
        if service is None or service.url != serving.vllm_url:
            return  # Another release has a server of this name by now.
        if service.running and now - self._silent_since < HUNG_S:
            return
        self._next_try, self._pause_s = now + self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._task = asyncio.ensure_future(self._revive(serving))

    async def _revive(self, serving: Serving) -> None:
        try:
            await asyncio.to_thread(restart, self._root, serving)
        except OrchestraError as error:
            self.failure = f"{serving.vllm_service} could not be started again: {error}"
            log.error(self.failure)
        except Exception:
            log.exception("%s could not be started again", serving.vllm_service)
        else:
            self._silent_since = self.failure = None
            self._on_restart()
            log.warning("%s was started again", serving.vllm_service)


def restart(root: Path, serving: Serving) -> None:
    """Start the server of a release again: the same checkpoint, proven to be whole, on the same port.

    Returns when it answers, within `deploy.start_timeout_s`. Raises `OrchestraError` when it does not, and when a
    release runs, which has its own servers.
    """
    assert serving.vllm_service is not None and serving.vllm_url is not None
    params, folder = serving.parsed, root / serving.checkpoint
    with alone(root):
        if vllm.healthy(serving.vllm_url):
            return
        verify_manifest(folder)
        old = remembered(root, serving.vllm_service)
        if old is not None and old.url != serving.vllm_url:
            raise ServiceError("another release has a server of this name", where=serving.vllm_service)
        if old is not None:
            log.warning("%s has ended or hangs: starting it again", serving.vllm_service)
            # The engine's own process may have outlived the server's.
            old.end()
        port = int(serving.vllm_url.rpartition(":")[2])
        max_len, settings = params.rollout.max_tokens, params.deploy.vllm
        service = vllm.launch(root, serving.vllm_service, folder, max_len=max_len, port=port, settings=settings)
        try:
            vllm.wait_healthy(root, service, params.deploy.start_timeout_s, log.info)
        except BaseException:
            service.end()
            raise
