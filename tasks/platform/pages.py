"""The decision pages of a workspace: the last one, that of each version, and what changes on them later."""

from pathlib import Path

from markupsafe import Markup

from orchestra.evaluation.benchmarks.report import results
from orchestra.files import atomic
from orchestra.promotion import parts
from orchestra.promotion.approval import Approval
from orchestra.promotion.benchmarks import results_table, section
from orchestra.promotion.sections import Table
from tasks.platform.lineage import history, of_version
from tasks.platform.registry import ModelVersion, Registry

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
    root, found = registry.root, section(benchmarks(registry))
    runs = {f"{version.number}.html": version.decided_in for version in registry.versions()}
    files = [root / PAGE, *sorted((root / PAGES).glob("*.html"))]
    return sum(_renew(registry, file, runs.get(file.name, ""), [found]) for file in files)


def renew_verdict(registry: Registry, version: ModelVersion, name: str, approval: Approval) -> None:
    """Put a person's answer on the pages of that version, in MLflow, and into the version's description."""
    root, title = registry.root, title_of(registry, version.number)
    written = [
        *parts.verdict(title, name, approval.state == "approved"),
        parts.answer(approval),
        parts.lineage(of_version(version, name)),
        parts.history(history(registry, {version.number: name})),
    ]
    last = root / PAGE
    if last.is_file() and parts.is_about(last.read_text(encoding="utf-8"), title):
        _renew(registry, last, "", written)
    _renew(registry, root / PAGES / f"{version.number}.html", approval.mlflow_run, written)


def title_of(registry: Registry, number: int) -> str:
    """What a version's page is called."""
    return f"{registry.model_name} version {number}"


def _renew(registry: Registry, file: Path, run_id: str, written: list[Markup]) -> bool:
    """Put parts into the places of the old ones, also in that MLflow run; whether that changed anything."""
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    new = parts.renewed(old, *written)
    if new == old:
        return False
    atomic.write_text(file, new)
    if run_id:
        registry.client.log_text(run_id, new, ARTIFACT)
    return True
