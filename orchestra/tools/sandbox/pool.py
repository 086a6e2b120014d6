"""Interpreters that wait, isolated, for one program each: used once, thrown away, made again in the background."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future

from orchestra.errors import ToolError
from orchestra.system.environment import cores
from orchestra.tools.sandbox.command import Isolation, Limits
from orchestra.tools.sandbox.worker import Cell, Run

WARM = 2


class Pool:
    """At most `warm` interpreters wait and at most `at_once` programs run; further callers queue.

    For any number of event loops and threads. One thread of its own starts every interpreter, since the kernel ends
    them with the thread that did: they die with this process, however it ends. A forked child starts its own.
    """

    def __init__(self, isolation: Isolation, limits: Limits, warm: int = WARM, at_once: int | None = None) -> None:
        """Nothing is started before the first `run`. `at_once`: None is twice the number of cores."""
        self.isolation, self.limits, self.warm = isolation, limits, warm
        self._at_once = at_once or 2 * cores()
        self._state: _State | None = None
        self._close: weakref.finalize[[], Pool] | None = None
        self._opening = threading.Lock()

    async def run(self, code: str) -> Run:
        """Run a program in an interpreter that nothing else has used; raises `ToolError` when none can be started."""
        state = self._open()
        cell = await state.take()
        try:
            await cell.ready()
            return await cell.run(code)
        finally:
            try:
                await cell.aclose()
            finally:
                state.give_back()

    def close(self) -> None:
        """End those that wait; programs that run are finished. It opens again at the next `run`."""
        with self._opening:
            self._state = None
            if self._close is not None:
                self._close()

    @property
    def waiting(self) -> int:
        """How many interpreters wait now."""
        state = self._state
        return 0 if state is None else len(state.idle)

    def _open(self) -> _State:
        with self._opening:
            if self._state is None or self._state.owner != os.getpid():
                self._state = _State(self.isolation, self.limits, self.warm, self._at_once)
                self._close = weakref.finalize(self, self._state.close)
            return self._state


class _State:
    """What the thread and its callers share; it knows no `Pool`, so that a forgotten one is closed."""

    def __init__(self, isolation: Isolation, limits: Limits, warm: int, at_once: int) -> None:
        self.isolation, self.limits, self.warm, self.at_once = isolation, limits, warm, at_once
        self.owner = os.getpid()
        self.idle: deque[Cell] = deque()
        self._queue: deque[Future[Cell]] = deque()
        self._running = 0
        self._closed = self._failing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._keep, name="sandbox pool", daemon=True).start()

    async def take(self) -> Cell:
        """The next interpreter, ready or about to be; its user calls `give_back` when it is gone."""
        wanted: Future[Cell] = Future()
        with self._changed:
            if self._closed:
                raise ToolError("closed by another thread", where="sandbox", fix="call again")
            self._failing = False
            self._queue.append(wanted)
            self._serve()
            self._changed.notify()
        try:
            return await asyncio.wrap_future(wanted)
        except asyncio.CancelledError:
            wanted.add_done_callback(self._forget)
            raise

    def give_back(self) -> None:
        with self._changed:
            self._running -= 1
            self._serve()
            self._changed.notify()

    def close(self) -> None:
        if self.owner != os.getpid():
            return  # a forked child: they are its parent's
        with self._changed:
            self._closed = True
            idle = list(self.idle)
            self.idle.clear()
            self._changed.notify()
        for cell in idle:
            cell.kill()

    def _serve(self) -> None:
        """Hand those that wait to the callers that wait; under the lock."""
        while self._queue and self.idle and self._running < self.at_once:
            cell = self.idle.popleft()
            if not cell.alive:
                cell.kill()
            else:
                self._hand_over(cell)

    def _hand_over(self, cell: Cell) -> None:
        """To the caller that waited longest, or to those that wait for one; under the lock."""
        while self._queue:
            wanted = self._queue.popleft()
            if wanted.set_running_or_notify_cancel():
                self._running += 1
                wanted.set_result(cell)
                return
        self.idle.append(cell)

    def _forget(self, wanted: Future[Cell]) -> None:
        """A caller gave up just as it was handed an interpreter."""
        if not wanted.cancelled() and wanted.exception() is None:
            wanted.result().kill()
            self.give_back()

    def _wanted(self) -> bool:
        """Whether another is to be started; under the lock."""
        if self._queue:
            return self._running < self.at_once
        return len(self.idle) < self.warm and not self._failing and not self._closed

    def _done(self) -> bool:
        """Whether the thread may end, with which the kernel ends all that it started; under the lock."""
        return self._closed and not self._queue and not self._running

    def _keep(self) -> None:
        """The thread: start what is wanted, until closed and nothing that it started runs any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted() or self._done())
                if self._done():
                    return
            try:
                cell = Cell(self.isolation, self.limits)
            except Exception as error:  # whatever it is, nobody may wait for ever
                self._fail(error)
                continue
            with self._changed:
                # Callers may have come and gone since it was wanted: it may have to wait for its turn.
                if self._running < self.at_once:
                    self._hand_over(cell)
                else:
                    self.idle.append(cell)
                surplus = self.idle.popleft() if self._closed and self.idle else None
            if surplus is not None:
                surplus.kill()

    def _fail(self, error: Exception) -> None:
        """Tell every caller that waits; nothing more is started before the next one."""
        with self._changed:
            self._failing = True
            while self._queue:
                wanted = self._queue.popleft()
                if wanted.set_running_or_notify_cancel():
                    wanted.set_exception(error)
