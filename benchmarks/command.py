"""How every benchmark is asked and how it ends: one usage text, bars that can be missed, an error in one line."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestra.errors import ServiceError
from orchestra.system.environment import cores, quiet
from tasks.platform.commands import run_command


class Row(NamedTuple):
    """A line of a benchmark's table."""

    what: str
    figure: str
    bar: str = "—"
    met: bool | None = None
    """Whether the bar is met; None without one."""


def usage(about: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark whose docstring is `about`."""
    prog = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    return argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_benchmark(main: Callable[[Sequence[str]], int | None]) -> None:
    """Run a benchmark on its arguments and end with its exit code.

    An `OrchestraError` is one line and exit code 2, and so is a process of the benchmark that failed.
    """

    def ended(given: list[str]) -> None:
        try:
            sys.exit(main(given))
        except subprocess.CalledProcessError as error:
            what = f"a process of the benchmark ended with exit code {error.returncode}"
            raise ServiceError(what, where=" ".join(error.cmd[:4]), fix="see its message above") from None

    run_command(ended)


def judge(bars: Mapping[str, bool]) -> int:
    """Say whether every bar is met; the exit code, 1 where one is missed."""
    missed = [name for name, met in bars.items() if not met]
    if bars:
        print(f"bar: missed ({'; '.join(missed)})" if missed else "bar: met", flush=True)
    return int(bool(missed))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| what | measured | bar |", "| --- | ---: | ---: |"]
    return "\n".join([*lines, *(f"| {' | '.join(row[:3])} |" for row in rows)])


def show(about: str | None, rows: Callable[[], Sequence[Row]], given: Sequence[str] | None = None) -> int:
    """A benchmark without options, whose docstring is `about`."""
    usage(about).parse_args(given)
    return measured(rows)


def measured(rows: Callable[[], Sequence[Row]]) -> int:
    """Say what machine this is, print the table of the rows, and judge their bars."""
    quiet()
    print(f"{platform.machine()} CPU, {cores()} cores, load {os.getloadavg()[0]:.1f}\n", flush=True)
    found = rows()
    print(table(found))
    return judge({row.what: row.met for row in found if row.met is not None})
