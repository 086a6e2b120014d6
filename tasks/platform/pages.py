"""The decision pages of a workspace: the last one, that of each version, and the benchmark results on them."""

from orchestra.evaluation.benchmarks.report import results
from orchestra.files import atomic
from orchestra.promotion.benchmarks import renewed, results_table
from orchestra.promotion.sections import Table
from tasks.platform.registry import Registry

PAGE = "reports/decision.html"
PAGES = ".state/decisions"
"""The page of each version's last decision."""
ARTIFACT = "decision/decision.html"
"""Its name in the MLflow run that made the decision."""


def benchmarks(registry: Registry) -> Table:
    """The workspace's benchmark results, registered checkpoints by their versions."""
    names = {version.checkpoint_hash: f"version {version.number}" for version in registry.versions()}
    return results_table(results(registry.root), names)


def renew_benchmarks(registry: Registry) -> int:
    """Put the present results on every page that is there, and in MLflow; returns how many pages changed."""
    root, found, changed = registry.root, benchmarks(registry), 0
    runs = {f"{version.number}.html": version.run_id for version in registry.versions()}
    for file in (root / PAGE, *sorted((root / PAGES).glob("*.html"))):
        old = file.read_text(encoding="utf-8") if file.is_file() else ""
        if (new := renewed(old, found)) == old:
            continue
        atomic.write_text(file, new)
        changed += 1
        if run_id := runs.get(file.name):
            registry.client.log_text(run_id, new, ARTIFACT)
    return changed
