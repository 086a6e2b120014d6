"""The pool: each interpreter serves one program, and none outlives whoever started it."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import ToolError
from orchestra.system.processes import alive, descendants
from orchestra.tools.sandbox import command
from orchestra.tools.sandbox import pool as sandbox_pool
from orchestra.tools.sandbox.command import Isolation, Limits
from orchestra.tools.sandbox.pool import Pool
from orchestra.tools.sandbox.worker import Cell
from tests.support import waiting
from tests.support.sandboxes import QUICK, WORKING

pytestmark = pytest.mark.skipif(not WORKING, reason="this machine grants no isolation: nothing is ever run here")
ROOT = Path(__file__).parents[4]
soon = partial(waiting.soon, seconds=60)
PATIENT = Limits(seconds=60)


@pytest.fixture(params=WORKING)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return Isolation(request.param)


@pytest.fixture
def pool(isolation: Isolation) -> Iterator[Pool]:
    made = Pool(isolation, QUICK, warm=2, at_once=2)
    yield made
    made.close()


def print_of(pool: Pool, code: str) -> str:
    return asyncio.run(pool.run(code)).output.strip()


def test_it_refills_and_each_program_finds_a_fresh_interpreter(pool: Pool) -> None:
    code = "import builtins, os; print(hasattr(builtins, 'used'), os.listdir('.')); builtins.used = open('f', 'w')"
    assert pool.waiting == 0
    for _ in range(4):
        assert print_of(pool, code) == "False []"
    assert soon(lambda: pool.waiting == 2)
    time.sleep(0.2)
    assert pool.waiting == 2


def test_several_loops_and_threads_share_it(pool: Pool) -> None:
    printed: list[str] = []

    def loop_of_its_own(number: int) -> None:
        async def both() -> None:
            runs = await asyncio.gather(*(pool.run(f"print({number})") for _ in range(2)))
            printed.extend(run.output.strip() for run in runs)

        for _ in range(2):
            asyncio.run(both())

    threads = [threading.Thread(target=loop_of_its_own, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(printed) == sorted("012" * 4)


def test_no_more_run_at_once_than_it_allows(isolation: Isolation) -> None:
    pool = Pool(isolation, PATIENT, warm=1, at_once=1)
    code = "import time; a = time.monotonic(); time.sleep(0.05); print(a, time.monotonic())"

    async def crowd() -> list[list[float]]:
        runs = await asyncio.gather(*(pool.run(code) for _ in range(4)))
        return sorted([float(number) for number in run.output.split()] for run in runs)

    spans = asyncio.run(crowd())
    pool.close()
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_an_interpreter_that_was_started_to_wait_is_given_to_nobody_before_its_turn(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, asked = threading.Event(), threading.Event()
    first = iter([True])

    def started(*arguments: Any) -> Cell:
        if not next(first, False):
            starting.set()
            asked.wait(10)
        return Cell(*arguments)

    monkeypatch.setattr(sandbox_pool, "Cell", started)
    pool = Pool(isolation, PATIENT, warm=1, at_once=1)
    code = "import time; a = time.monotonic(); time.sleep(0.5); print(a, time.monotonic())"

    async def crowd() -> list[list[float]]:
        runs = [asyncio.ensure_future(pool.run(code))]
        await asyncio.to_thread(starting.wait, 10)
        runs.append(asyncio.ensure_future(pool.run(code)))
        await asyncio.sleep(0)
        asked.set()
        return [[float(number) for number in run.output.split()] for run in await asyncio.gather(*runs)]

    before, after = asyncio.run(crowd())
    pool.close()
    assert before[1] < after[0]


def test_a_caller_that_gives_up_costs_nobody_a_turn(isolation: Isolation) -> None:
    pool = Pool(isolation, PATIENT, warm=1, at_once=1)

    async def impatient() -> str:
        first = asyncio.ensure_future(pool.run("import time; time.sleep(60)"))
        second = asyncio.ensure_future(pool.run("print(2)"))
        third = asyncio.ensure_future(pool.run("print(3)"))
        await asyncio.sleep(0.1)
        second.cancel()
        first.cancel()
        return (await third).output

    assert asyncio.run(impatient()) == "3\n"
    pool.close()


def test_it_closes_with_all_that_waited_and_opens_again(pool: Pool) -> None:
    before = set(descendants(os.getpid()))
    assert print_of(pool, "print(1)") == "1" and soon(lambda: pool.waiting == 2)
    assert set(descendants(os.getpid())) - before
    pool.close()
    pool.close()
    assert pool.waiting == 0 and soon(lambda: not set(descendants(os.getpid())) - before, seconds=5)
    assert print_of(pool, "print(2)") == "2"


def test_a_program_that_runs_while_it_closes_is_finished(pool: Pool) -> None:
    async def closing() -> str:
        running = asyncio.ensure_future(pool.run("import time; time.sleep(0.5); print('whole')"))
        await asyncio.sleep(0.2)
        pool.close()
        return (await running).output

    assert asyncio.run(closing()) == "whole\n"


def test_a_forgotten_pool_is_closed(isolation: Isolation) -> None:
    before = set(descendants(os.getpid()))
    forgotten = Pool(isolation, QUICK, warm=1)
    assert print_of(forgotten, "print(1)") == "1"
    del forgotten
    gc.collect()
    assert soon(lambda: not set(descendants(os.getpid())) - before)


def test_one_that_died_while_it_waited_is_replaced(pool: Pool) -> None:
    before = set(descendants(os.getpid()))
    assert print_of(pool, "print(1)") == "1" and soon(lambda: pool.waiting == 2)
    started = set(descendants(os.getpid())) - before
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not any(alive(pid) for pid in started))
    assert print_of(pool, "print(2)") == "2"


def test_a_forked_child_has_its_own(pool: Pool) -> None:
    assert print_of(pool, "print(1)") == "1" and soon(lambda: pool.waiting == 2)
    mine = set(descendants(os.getpid()))
    child = os.fork()
    if child == 0:
        os._exit(0 if print_of(pool, "print(5)") == "5" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mine <= set(descendants(os.getpid())) and print_of(pool, "print(6)") == "6"


PARENT = """
import asyncio, os, signal, sys, time
from orchestra.system.processes import descendants
from orchestra.tools.sandbox.command import Isolation, Limits
from orchestra.tools.sandbox.pool import Pool

# Tests that run in the background of a shell inherit that it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    pool = Pool(Isolation(sys.argv[1]), Limits(seconds=600), warm=2, at_once=2)
    busy = asyncio.ensure_future(pool.run("import time\\ntime.sleep(600)"))
    while pool.waiting < 2 or busy.done():
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    print(*descendants(os.getpid()), flush=True)
    await busy

asyncio.run(main())
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_dies_with_its_parent(isolation: Isolation, sign: signal.Signals) -> None:
    """Those that wait and the one that runs, however their parent ends."""
    command = [sys.executable, "-c", PARENT, isolation]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        try:
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            parent.send_signal(sign)
            parent.wait()
        finally:
            parent.kill()  # or leaving the block would wait for it, beyond the test's own timeout
    assert len(pids) >= 3 and soon(lambda: not any(alive(pid) for pid in pids))


STARTING = """
import sys, time
from orchestra.tools.sandbox.command import Isolation, Limits
from orchestra.tools.sandbox.worker import Cell

cells = [Cell(Isolation(sys.argv[1]), Limits()) for _ in range(3)]
print(flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.08])
def test_those_that_are_starting_die_with_their_parent_too(isolation: Isolation, after_s: float) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTING, isolation], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline()
        time.sleep(after_s)
        pids = descendants(parent.pid)
        parent.kill()
    assert pids and soon(lambda: not any(alive(pid) for pid in pids))


def test_where_none_can_be_started_every_caller_is_told(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_jail", lambda step, spec: ["/nonexistent/python"])

    async def crowd() -> list[object]:
        return list(await asyncio.gather(*(pool.run("print(1)") for _ in range(3)), return_exceptions=True))

    for _ in range(2):
        assert [type(found) for found in asyncio.run(crowd())] == [ToolError] * 3
