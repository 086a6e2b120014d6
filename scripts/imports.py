"""The structure of the code: `python -m scripts.imports` prints its folders, the arrows between them, and circles."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("orchestra", "tasks", "flows", "monitoring")

Graph = dict[str, set[str]]
"""For each module or folder, those that it imports."""


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; `if TYPE_CHECKING` counts too. Raises `ValueError` for a
    relative import."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"{file}: relative import")
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(*packages: str) -> list[Path]:
    """Python files below the packages, sorted."""
    return [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]


def module_graph(paths: Iterable[Path]) -> Graph:
    """Imports between the files; a package's `__init__` is no module of its own."""
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths if p.name != "__init__.py"}
    return {name: {found for found in imports(file) if found in modules} - {name} for name, file in modules.items()}


def folder_of(module: str) -> str:
    """The folder of a module; a file right below orchestra/ stands for itself."""
    parent = module.rpartition(".")[0]
    return module if parent == "orchestra" else parent


def folder_graph(graph: Mapping[str, set[str]]) -> Graph:
    """Imports between folders."""
    found: Graph = {}
    for module, targets in graph.items():
        folder = folder_of(module)
        found.setdefault(folder, set()).update({folder_of(target) for target in targets} - {folder})
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first again at the end; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main() -> None:
    graph = module_graph(files(*CODE))
    folders = folder_graph(graph)
    for folder in sorted(folders):
        members = [module for module in graph if folder_of(module) == folder]
        print(f"{folder} ({len(members)}): {', '.join(sorted(folders[folder])) or '-'}")
    arrows = sum(map(len, folders.values()))
    print(f"{len(folders)} folders, {arrows} arrows, circle: {' -> '.join(circle(graph)) or 'none'}")


if __name__ == "__main__":
    main()
