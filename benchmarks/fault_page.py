"""The page of faults: a row a case, each with the day and the commit of its own run, kept until the case runs again."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.fault_cases import FaultOutcome, Reference, placeless

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/faults.md"
CELL_BREAKS = r"[|\s]+"
WELL, NOT_RUN = "as without a fault", "not run"
PAGE_TEXT = """\
# Faults

`make faults` commits each of these against a whole run of the micro pipeline, in a clone of its own, and writes this
page. The end must be that of a run without faults: the same data, checkpoints and figures, one promotion, one version
served once, no process left over, no file half-written, at most one error line, no traceback. `python -m
benchmarks.faults --only NAME,NAME` runs some cases and renews their rows; the last column tells the day and the commit
of each row's run.

{well} of {count} ended as they should; {not_run} not run. A run without faults took {seconds:.0f} seconds.

| case | fault | when | what the command said | recovery | end | run |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

Jumps of the clock need a C compiler. Full and read-only disks need root. Tested elsewhere: stages killed while experts
are paid (`test_paid_once.py` in tests/integration).
"""


@dataclass(frozen=True)
class Case:
    """A fault under the name that `--only` and the page know it by."""

    name: str
    commit: Callable[[Path, Path, Reference], FaultOutcome]
    """Of the template, the folder for its clone, and the run without faults."""
    missing: str = ""
    """Why it cannot be tried on this machine."""


def stamp() -> str:
    """The day and the commit of the tree, and whether files differ from it."""
    told = [
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for command in (
            ("rev-parse", "--short", "HEAD"),
            ("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}"),
        )
    ]
    return f"{datetime.now(UTC):%Y-%m-%d} {told[0]}{' changed' if told[1] else ''}"


def row(case: Case, outcome: FaultOutcome, run: str) -> str:
    """A line of the table."""
    end = placeless("; ".join(outcome.problems)) or WELL
    cells = [case.name, outcome.fault, outcome.moment, outcome.told or "—", outcome.recovery, end, run]
    return f"| {' | '.join(re.sub(CELL_BREAKS, ' ', cell) for cell in cells)} |"


def rows(text: str) -> dict[str, str]:
    """The lines of a page's table by case; a table of other columns has none."""
    found = [line for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 6]
    return {line.split(" | ")[0].removeprefix("| "): line for line in found}


def table(cases: Sequence[Case], kept: dict[str, str], seconds: float) -> str:
    """The page: what is kept of each case, in their order."""
    lines = [kept.get(case.name) or unrun(case) for case in cases]
    ends = [line.split(" | ")[5] for line in lines]
    not_run = sum(end.startswith(NOT_RUN) for end in ends)
    well, count = ends.count(WELL), len(ends) - not_run
    return PAGE_TEXT.format(well=well, count=count, not_run=not_run, seconds=seconds, rows="\n".join(lines))


def unrun(case: Case) -> str:
    return f"| {case.name} | — | — | — | — | {NOT_RUN}{f': {case.missing}' if case.missing else ''} | — |"


@dataclass
class Page:
    """The page while cases run: written again after each, so that nothing is lost when the rest is stopped."""

    cases: Sequence[Case]
    seconds: float
    run: str
    file: Path = PAGE
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, case: Case, outcome: FaultOutcome) -> None:
        with self._lock:
            kept = rows(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
            kept[case.name] = row(case, outcome, self.run)
            self.file.write_text(table(self.cases, kept, self.seconds), encoding="utf-8")
