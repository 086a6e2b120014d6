"""Traces: one line for each request, written by a thread of its own into private files, one a day, oldest given up."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestra.serving.records.spans import Trace
from orchestra.serving.wire.request import ChatRequest
from orchestra.types import Episode

log = logging.getLogger("orchestra.gateway")

MOST_WAITING = 2_000
"""Lines that wait to be written; when a disk is that slow, further ones are lost and counted."""
SWEEP_S = 600.0
DAY_S = 86_400.0

Line = tuple[str, dict[str, Any], ChatRequest | None, Episode | None]


class TraceWriter:
    """Lines into `folder`/<UTC day>.jsonl, readable by this user alone; lines of concurrent requests never mix.

    Files older than `days` go, and the oldest beyond `megabytes` together.
    """

    def __init__(
        self, folder: Path, *, days: int, megabytes: int, told: Callable[[Trace], object] | None = None
    ) -> None:
        """`told` is handed each trace that was written, in the writer's thread."""
        self.folder, self._days, self._bytes = folder, days, megabytes * 1_000_000
        self._told = told
        self._lines: queue.Queue[Line | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._swept = 0.0

    def put(self, record: dict[str, Any], request: ChatRequest | None = None, episode: Episode | None = None) -> bool:
        """Have a line written; False where too many wait."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
                self._thread.start()
        try:
            self._lines.put_nowait((datetime.now(UTC).isoformat(timespec="milliseconds"), record, request, episode))
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Write what waits, then end; a later line begins again."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._lines.put(None)
            thread.join()

    def _work(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        while (line := self._lines.get()) is not None:
            try:
                self._write(*line)
            except OSError as error:
                log.warning("a trace was not written: %s", error)
            if self._told is not None:
                self._tell(*line)

    def _tell(self, now: str, record: dict[str, Any], request: ChatRequest | None, episode: Episode | None) -> None:
        assert self._told is not None
        said = [] if request is None else [(message.role, message.text) for message in request.messages]
        try:
            self._told(Trace({"time": now, **record}, said, episode))
        except Exception:
            # A collector's trouble: the file has the trace.
            log.exception("a trace was not told")

    def _write(self, now: str, record: dict[str, Any], request: ChatRequest | None, episode: Episode | None) -> None:
        parts = [json.dumps({"time": now, **record}, ensure_ascii=False)[:-1]]
        if request is not None:
            parts.append(f'"request": {request.model_dump_json(exclude_defaults=True)}')
        if episode is not None:
            parts.append(f'"episode": {episode.model_dump_json()}')
        file = self.folder / f"{now[:10]}.jsonl"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as out:
            out.write((", ".join(parts) + "}\n").encode())
        if time.monotonic() - self._swept > SWEEP_S:
            self._sweep()

    def _sweep(self) -> None:
        """Give up what is too old or too much; the file of today stays."""
        self._swept, kept = time.monotonic(), 0
        for place, file in enumerate(sorted(self.folder.glob("*.jsonl"), reverse=True)):
            kept += (state := file.stat()).st_size
            if place and (kept > self._bytes or time.time() - state.st_mtime > self._days * DAY_S):
                file.unlink(missing_ok=True)
