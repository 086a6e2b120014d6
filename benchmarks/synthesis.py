"""How fast examples are made and verified: on one core, on two, and whether memory grows with their number.

Each line is one `orchestra synthesize` of its own. Where other programs run beside it, its CPU seconds say what idle
cores would give.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bench import ROOT
from benchmarks.command import judge, run_benchmark, usage
from orchestra.system.environment import cores, quiet

BAR = 1_000
"""Verified examples a second on two cores."""
SIZES = (20_000, 60_000)


@dataclass(frozen=True)
class Line:
    """One measured set."""

    examples: int
    workers: int
    wall_s: float
    cpu_s: float
    """Of all its processes."""
    peak_mb: float
    """Of the largest of them."""

    @property
    def rate(self) -> float:
        """Examples a second, as it went."""
        return self.examples / self.wall_s

    @property
    def idle_rate(self) -> float:
        """What its CPU seconds give on as many idle cores as it has workers."""
        return self.examples * self.workers / self.cpu_s


def measure(examples: int, workers: int, *options: str) -> Line:
    """Make a set in a folder that is thrown away; raises `CalledProcessError` when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "orchestra.cli.main", "synthesize", "--examples", str(examples)]
        command += ["--workers", str(workers), "--out", f"{folder}/set", *options]
        began = time.perf_counter()
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
    return Line(examples, workers, wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def bars(lines: Sequence[Line]) -> dict[str, bool]:
    """By number of examples, whether two idle cores would make as many a second as they must."""
    return {f"{line.examples:,} examples": line.idle_rate >= BAR for line in lines if line.workers == 2}


def table(lines: Sequence[Line]) -> str:
    """The figures in Markdown."""
    rows = [
        "| examples | workers | wall s | CPU s | examples/s | ms CPU an example | examples/s on idle cores | peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        cells = [
            f"{line.examples:,}",
            f"{line.workers}",
            f"{line.wall_s:.1f}",
            f"{line.cpu_s:.1f}",
            f"{line.rate:,.0f}",
        ]
        cells += [f"{1000 * line.cpu_s / line.examples:.2f}", f"{line.idle_rate:,.0f}", f"{line.peak_mb:.0f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    quiet()
    parser = usage(__doc__)
    parser.add_argument("--examples", type=int, nargs="*", default=SIZES, help="sizes that two workers make")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of orchestra synthesize")
    chosen = parser.parse_args(arguments)
    options = [word for assignment in chosen.set for word in ("--set", assignment)]
    print(f"{cores()} cores, load {os.getloadavg()[0]:.1f}; bar: {BAR:,} a second on two idle cores\n", flush=True)
    wanted = [(chosen.examples[0], 1), *((examples, 2) for examples in chosen.examples)]
    lines = [measure(examples, workers, *options) for examples, workers in wanted]
    print(table(lines))
    return judge(bars(lines))


if __name__ == "__main__":
    run_benchmark(main)
