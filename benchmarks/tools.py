"""How fast the tools are: `python -m benchmarks.tools [--only search …]` joins every benchmarks/tools_*.py."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from orchestra.system.environment import cores, quiet

PREFIX = "tools_"
Row = tuple[str, str, str]
"""What was measured, the figure, and its bar."""


def pieces(folder: Path = Path(__file__).parent) -> list[str]:
    """Names of the pieces beside this file; each is a module with `rows() -> list[Row]`."""
    return sorted(path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.py"))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| what | measured | bar |", "| --- | ---: | ---: |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def main(arguments: Sequence[str] | None = None) -> None:
    quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=pieces(), default=pieces(), help="these pieces")
    chosen = parser.parse_args(arguments)
    print(f"{platform.machine()} CPU, {cores()} cores, load {os.getloadavg()[0]:.1f}\n", flush=True)
    rows: list[Row] = []
    for piece in chosen.only:
        rows += importlib.import_module(f"benchmarks.{PREFIX}{piece}").rows()
    print(table(rows))


if __name__ == "__main__":
    main()
