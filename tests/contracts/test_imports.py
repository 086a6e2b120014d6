"""Imports go one way, and what a person waits for imports nothing heavy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch", "trl", "transformers", "datasets", "accelerate", "mlflow", "prefect", "dvc", "great_expectations",
    "litellm", "faiss", "mcp", "pandas", "numpy", "scipy", "matplotlib", "fastapi", "bm25s",
    "openai", "sentence_transformers", "tenacity", "aiolimiter",
)  # fmt: skip
PLATFORM = {"prefect", "dvc", "mlflow", "great_expectations"}
SLOW = {*PLATFORM, "trl", "transformers", "datasets", "accelerate", "litellm", "faiss", "mcp"}
SLOW |= {"openai", "sentence_transformers"}
OWN = {"orchestra/rollout/cache.py"}
"""Files that subclass what a slow library holds, and are themselves imported inside functions only."""
LEVELS = [
    {"serving", "training", "evaluation", "synthesis"},
    {"rewards", "rollout"},
    {"domains", "tools"},
    {"types", "errors", "config", "ledger"},
]
"""Inside orchestra, a module imports from its own level or from those below; files beside the packages are free."""


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; `if TYPE_CHECKING` counts too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def offenders(package: str, banned: set[str]) -> list[str]:
    found = {(file, name.split(".")[0]) for file in files(package) for name in imports(file)}
    return sorted(f"{file.relative_to(ROOT)} imports {name}" for file, name in found if name in banned)


def test_the_library_knows_no_platform_and_no_stage() -> None:
    assert offenders("orchestra", {*PLATFORM, "tasks", "flows", "monitoring"}) == []


def test_stages_know_no_flow() -> None:
    assert offenders("tasks", {"flows", "prefect"}) == []


def test_monitoring_is_pure() -> None:
    assert offenders("monitoring", {*PLATFORM, "tasks", "flows"}) == []


def level(name: str) -> int | None:
    parts = name.split(".")
    if len(parts) < 2 or parts[0] != "orchestra":
        return None
    return next((index for index, members in enumerate(LEVELS) if parts[1] in members), None)


def test_inside_the_library_imports_go_down() -> None:
    wrong = set()
    for file in files("orchestra"):
        own = level(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for name in imports(file):
            other = level(name)
            if own is not None and other is not None and other < own:
                wrong.add(f"{file.relative_to(ROOT)} imports {name}")
    assert sorted(wrong) == []


def loaded(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize(
    "code",
    [
        "import orchestra",
        "import orchestra.cli",
        "import orchestra.config, orchestra.types, orchestra.errors, orchestra.ledger",
        "import sys; from orchestra.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass",
        "import tasks._stage",
        "import flows._workspace, flows.__main__",
    ],
)
def test_what_a_person_waits_for_is_light(code: str) -> None:
    assert loaded(code) & set(HEAVY) == set()


@pytest.mark.parametrize("package", ["orchestra", "tasks"])
def test_slow_libraries_are_imported_where_they_are_used(package: str) -> None:
    """At the top of a file they would cost every command seconds; only files named for a library are free."""
    wrong = []
    for file in files(package):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                wrong += [f"{file.relative_to(ROOT)}: {name}" for name in names if name.split(".")[0] in SLOW]
    assert [line for line in wrong if line.split(":")[0] not in OWN] == []
