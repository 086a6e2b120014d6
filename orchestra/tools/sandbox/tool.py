"""Runs untrusted Python: no network, nothing but an interpreter to read, a scratch that is gone afterwards.

Bubblewrap isolates where it is installed and works; otherwise the kernel's namespaces are entered directly (`jail.py`).
With neither, nothing is run. Inside, limits bound processor time, memory, processes, files and output, and system calls
that reach further are filtered. Each program gets an interpreter of its own, of which some wait started (`pool.py`);
the program and all that it started are killed when it ends or its time is over.
"""

import asyncio

from pydantic import JsonValue

from orchestra.accounting.ledger import cost_of
from orchestra.errors import CallError, ToolError
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.sandbox.command import Isolation, Limits
from orchestra.tools.sandbox.interpreter import this_interpreter
from orchestra.tools.sandbox.pool import WARM, Pool
from orchestra.tools.sandbox.worker import FIX, Cell, Run
from orchestra.types import Component, Usage

MAX_CODE = 20_000
CALL_S = 600.0
"""The longest a call may take with its wait for a free interpreter: hundreds of programs may wait before it."""

_found: dict[Limits, Isolation] = {}


class Sandbox:
    """The tool `python({"code": "print(6 * 7)"})`, which gives `42`."""

    component = Component.SANDBOX
    keeps_deadline = True  # Its own are of the program and of the wait for an interpreter.

    def __init__(self, limits: Limits | None = None, isolation: Isolation | None = None, warm: int = WARM) -> None:
        """`isolation`: None finds the strongest that works here, once a process. `warm`: interpreters that wait."""
        self.limits, self.warm = limits or Limits(), warm
        self._isolation = isolation
        self._pool: Pool | None = None

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """What the program printed; a program that fails gives `error: …` besides, which is no failure of the tool.

        Its seconds are the program's: what it waited for a free interpreter is nobody's, as with experts. Raises
        `CallError` without usable code, `ToolError` when no isolation works here.
        """
        run = await self.run(code_of(arguments))
        cost = cost_of(context.price, Usage(), seconds=run.seconds)
        return ToolResult(text=report(run), cost_usd=cost, latency_s=run.seconds)

    async def run(self, code: str) -> Run:
        """Run a program in a fresh sandbox; raises `ToolError`."""
        isolation = await self.isolation()
        if self._pool is None:
            self._pool = Pool(isolation, self.limits, self.warm)
        try:
            async with asyncio.timeout(CALL_S):
                return await self._pool.run(code)
        except TimeoutError:
            fix = "ask for fewer programs at once"
            raise ToolError(f"no program could run within {CALL_S:g} s", where="sandbox", fix=fix) from None

    async def isolation(self) -> Isolation:
        """The isolation in use; raises `ToolError` where there is none."""
        if self._isolation is None:
            self._isolation = _found.get(self.limits) or await find_isolation(self.limits)
            _found[self.limits] = self._isolation
        return self._isolation

    async def ready(self) -> str:
        """What isolates programs here; raises `ToolError` where nothing does."""
        return (await self.isolation()).value

    async def aclose(self) -> None:
        """End the interpreters that wait; the next call starts others."""
        if self._pool is not None:
            self._pool.close()


def code_of(arguments: dict[str, JsonValue]) -> str:
    code = arguments.get("code")
    if not isinstance(code, str) or not code.strip() or "\0" in code:
        raise CallError('python needs {"code": "…"} with a program')
    if len(code) > MAX_CODE:
        raise CallError(f"the program has more than {MAX_CODE} characters")
    try:
        code.encode()
    except UnicodeEncodeError:
        raise CallError("the program is not valid Unicode text") from None
    return code


def report(run: Run) -> str:
    """The observation: output, then why it failed."""
    lines = [run.output.strip()] if run.output.strip() else []
    if run.ended:
        lines.append(f"error: {run.ended}")
    elif run.status:
        last = run.errors.strip().splitlines()[-1:] or [f"exit status {run.status}"]
        lines.append(f"error: {last[0][:300]}")
    return "\n".join(lines) or "nothing was printed"


async def find_isolation(limits: Limits) -> Isolation:
    """The first that runs a trial program; raises `ToolError` with each one's reason when none does."""
    reasons = []
    for isolation in Isolation:
        try:
            run = await execute(isolation, "print(6 * 7)", limits)
        except ToolError as error:
            reasons.append(f"{isolation}: {error.what}")
            continue
        if run.status == 0 and run.output.strip() == "42":
            return isolation
        reasons.append(f"{isolation}: the trial program gave {report(run)}")
    raise ToolError("no isolation works here: " + "; ".join(reasons), where="sandbox", fix=FIX)


async def execute(isolation: Isolation, code: str, limits: Limits) -> Run:
    """Run a program in an interpreter started for it; raises `ToolError` when there could be none."""
    await asyncio.to_thread(this_interpreter)
    cell = Cell(isolation, limits)
    try:
        await cell.ready()
        return await cell.run(code)
    finally:
        await cell.aclose()
