"""Imports go one way, and what a person waits for imports nothing heavy."""

import ast
import subprocess
import sys
from collections import Counter

import pytest

from scripts.imports import CODE, ROOT, circle, files, imports, module_graph

HEAVY = (
    "torch", "trl", "transformers", "datasets", "accelerate", "mlflow", "prefect", "dvc", "great_expectations",
    "litellm", "faiss", "mcp", "pandas", "numpy", "scipy", "matplotlib", "fastapi", "bm25s",
    "openai", "sentence_transformers", "tenacity",
)  # fmt: skip
PLATFORM = {"prefect", "dvc", "mlflow", "great_expectations"}
SLOW = {*PLATFORM, "trl", "transformers", "datasets", "accelerate", "litellm", "faiss", "mcp"}
SLOW |= {"openai", "sentence_transformers"}
OWN = {"orchestra/rollout/inference/cache.py"}
"""Files that subclass what a slow library holds, and are themselves imported inside functions only."""
LEVELS = [
    {"cli"},
    {"promotion"},
    {"evaluation.analyses", "evaluation.claims", "evaluation.probes"},
    {"serving", "serving.records", "serving.releases", "training", "evaluation", "tools.reports"},
    {"training.grpo.passes"},
    {"training.compute.accumulation"},
    {"serving.episodes", "serving.shared"},
    {"serving.wire"},
    {"synthesis.dataset"},
    {"synthesis.imports", "synthesis.writers"},
    {"synthesis.filters", "synthesis.questions"},
    {"synthesis.assembly", "synthesis.domain_tasks"},
    {"synthesis", "synthesis.preferences"},
    {"validation"},
    {"rollout"},
    {"rewards"},
    {"tools"},
    {"domains"},
    {"accounting", "config", "statistics", "system"},
    {"files"},
    {"register"},
    {"errors", "provenance", "text", "types"},
]
"""From the top to the ground: a module imports from its own level or from those below. The longest name decides."""
MOST_FILES, MOST_LINES = 15, 360


def offenders(package: str, banned: set[str]) -> list[str]:
    found = {(file, name.split(".")[0]) for file in files(package) for name in imports(file)}
    return sorted(f"{file.relative_to(ROOT)} imports {name}" for file, name in found if name in banned)


def test_the_library_knows_no_platform_and_no_stage() -> None:
    assert offenders("orchestra", {*PLATFORM, "tasks", "flows", "monitoring"}) == []


def test_stages_know_no_flow() -> None:
    assert offenders("tasks", {"flows", "prefect"}) == []


def test_monitoring_is_pure() -> None:
    assert offenders("monitoring", {*PLATFORM, "tasks", "flows"}) == []


def level(module: str) -> int | None:
    """Of a module of the library, by the longest name in LEVELS; None for the package itself and what is not ours."""
    parts = module.split(".")[1:] if module.startswith("orchestra.") else []
    for length in range(len(parts), 0, -1):
        for index, members in enumerate(LEVELS):
            if ".".join(parts[:length]) in members:
                return index
    return None


def test_every_file_of_the_library_has_a_level() -> None:
    assert [name for name in module_graph(files("orchestra")) if level(name) is None] == []


def test_inside_the_library_imports_go_down() -> None:
    graph = module_graph(files("orchestra"))
    pairs = [(name, target) for name, targets in graph.items() for target in targets]
    assert sorted(f"{name} imports {other}" for name, other in pairs if (level(name) or 0) > (level(other) or 0)) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(module_graph(files(*CODE))) == []


def test_folders_and_files_stay_small() -> None:
    crowded = Counter(file.parent.relative_to(ROOT) for file in files(*CODE) if file.name != "__init__.py")
    assert {folder: count for folder, count in crowded.items() if count > MOST_FILES} == {}
    lines = {file.relative_to(ROOT): len(file.read_text(encoding="utf-8").splitlines()) for file in files(*CODE)}
    assert {file: count for file, count in lines.items() if count > MOST_LINES} == {}


def loaded(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize(
    "code",
    [
        "import orchestra",
        "import orchestra.cli.app",
        "import orchestra.config.schema, orchestra.types, orchestra.errors, orchestra.accounting.ledger",
        "import sys; from orchestra.cli.app import app\ntry: app(['--help'])\nexcept SystemExit: pass",
        "import tasks.platform.stage",
        "import flows._workspace, flows.__main__",
    ],
)
def test_what_a_person_waits_for_is_light(code: str) -> None:
    assert loaded(code) & set(HEAVY) == set()


def test_the_commands_are_known_before_the_schema_is() -> None:
    """The models of params.yaml take as long to make as the rest of `orchestra --help`."""
    code = "import sys, orchestra.cli.app; print('orchestra.config.schema' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


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
