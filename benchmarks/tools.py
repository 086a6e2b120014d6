"""How fast the tools are: `python -m benchmarks.tools [--only search …]` joins every benchmarks/tools_*.py."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import Row, measured, run_benchmark, usage

PREFIX = "tools_"


def pieces() -> list[str]:
    """Names of the pieces beside this file; each is a module with `rows() -> list[Row]`."""
    return sorted(path.stem.removeprefix(PREFIX) for path in Path(__file__).parent.glob(f"{PREFIX}*.py"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = usage(__doc__)
    parser.add_argument("--only", nargs="*", choices=pieces(), default=pieces(), help="these pieces")
    chosen = parser.parse_args(arguments)

    def rows() -> list[Row]:
        modules = (importlib.import_module(f"benchmarks.{PREFIX}{piece}") for piece in chosen.only)
        return [row for module in modules for row in module.rows()]

    return measured(rows)


if __name__ == "__main__":
    run_benchmark(main)
