"""Traces: one line for each request, written by a thread of its own into private files, the oldest given up."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
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
PARTS = 10
"""Files that hold `trace_mb` together: a day with more has several."""
BLOCK = 1 << 20
"""Bytes that are read at once."""

Line = tuple[str, dict[str, Any], ChatRequest | None, Episode | None]


def trace_files(folder: Path) -> list[Path]:
    """The files of traces, the newest first: <UTC day>.jsonl, then <UTC day>.1.jsonl and so on."""
    return sorted(folder.glob("*.jsonl"), key=lambda file: (file.name[:10], _part(file)), reverse=True)


def _part(file: Path) -> int:
    """The number of a file of its day."""
    number = file.stem.partition(".")[2]
    return int(number) if number.isdecimal() else 0


def lines_backwards(file: Path) -> Iterator[bytes]:
    """Lines from the last to the first, a block at a time; none of a file that was given up meanwhile."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as read:
        place, rest = read.seek(0, os.SEEK_END), b""
        while place:
            size = min(BLOCK, place)
            place -= size
            read.seek(place)
            # Not splitlines(): that would also cut at characters that JSON leaves unescaped, such as U+2028.
            rest, *lines = (read.read(size) + rest).split(b"\n")
            yield from reversed(lines)
        yield rest


def records(file: Path, holding: str = "") -> Iterator[dict[str, Any]]:
    """Lines of a file as they were written, the newest first. One that a killed gateway left half-written is passed
    over, also where it ends within a character. `holding`: a line without this text is passed over unread."""
    wanted = holding.encode()
    for line in lines_backwards(file):
        if wanted not in line:
            continue
        with contextlib.suppress(ValueError):
            record = json.loads(line.decode("utf-8", errors="replace"))
            if isinstance(record, dict):
                yield record


class TraceWriter:
    """Lines into `folder` (see `trace_files`), readable by this user alone; lines of concurrent requests never mix.

    Files older than `days` go, and the oldest beyond `megabytes` together.
    """

    def __init__(
        self,
        folder: Path,
        *,
        days: int,
        megabytes: int,
        told: Callable[[Trace], object] | None = None,
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        """In the writer's thread `told` is handed each trace, and `lost` is called for one that was not written."""
        self.folder, self._days, self._bytes = folder, days, megabytes * 1_000_000
        self._told, self._lost = told, lost
        self._cut = False
        """Whether the last line may end in its middle, as on a full disk."""
        self._lines: queue.Queue[Line | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._swept = 0.0
        self._file: Path | None = None
        """What was written last."""

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
                self._cut = True
                self._lost()
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
        with os.fdopen(self._open(now[:10]), "wb") as out:
            out.write((("\n" if self._cut else "") + ", ".join(parts) + "}\n").encode())
        self._cut = False
        if time.monotonic() - self._swept > SWEEP_S:
            self._sweep()

    def _open(self, day: str) -> int:
        """The day's last file, or a new one where that is full."""
        append, most = os.O_WRONLY | os.O_APPEND, self._bytes // PARTS
        if self._file is not None and self._file.name.startswith(day):
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(self._file, append)
                if os.fstat(handle).st_size < most:
                    return handle
                os.close(handle)
        # Another gateway may have begun one.
        last = next((file for file in trace_files(self.folder) if file.name.startswith(day)), None)
        if last is None:
            last = self.folder / f"{day}.jsonl"
        elif last.stat().st_size >= most:
            last = self.folder / f"{day}.{_part(last) + 1}.jsonl"
        self._file, handle = last, os.open(last, append | os.O_CREAT, 0o600)
        self._sweep()
        return handle

    def _sweep(self) -> None:
        """Give up what is too old or too much, with room for the newest file to be filled; that one stays."""
        self._swept, kept, most = time.monotonic(), 0, self._bytes - self._bytes // PARTS
        for place, file in enumerate(trace_files(self.folder)):
            with contextlib.suppress(FileNotFoundError):  # Another gateway gives up the same ones.
                kept += (state := file.stat()).st_size
                if place and (kept > most or time.time() - state.st_mtime > self._days * DAY_S):
                    file.unlink()
