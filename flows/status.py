"""`python -m flows.status`: what is current and what is stale, what the registry calls champion, and what runs."""

import sys
from pathlib import Path

from flows._summary import RunSummary, places
from orchestra.config.schema import load_params
from orchestra.errors import OrchestraError
from orchestra.system.environment import quiet
from orchestra.system.processes import services
from orchestra.system.storage import MLFLOW, storage_named
from tasks.platform import dvc


def stage_lines(root: Path) -> list[str]:
    """One line per stage, in order."""
    lines = []
    for name, why in dvc.stages(root).items():
        more = f" and {len(why) - 2} more" if len(why) > 2 else ""
        lines.append(f"  {name:<12}{'stale: ' + '; '.join(why[:2]) + more if why else 'current'}")
    return lines


def registry_lines(root: Path) -> list[str]:
    """The aliases of the registered model."""
    if not (root / MLFLOW).is_file():
        return ["  nothing registered yet"]
    from tasks.platform.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry

    registry = Registry(root, load_params(root / "params.yaml").promote.model_name)
    found = {alias: registry.at(alias) for alias in (CHAMPION, CANDIDATE, PREVIOUS)}
    lines = [
        f"  {alias:<12}version {version.number} ({version.checkpoint_hash[:12]})"
        for alias, version in found.items()
        if version is not None
    ]
    return lines or ["  nothing registered yet"]


def service_lines(root: Path) -> list[str]:
    """The servers that run."""
    lines = [f"  {one.name:<12}{one.url}  pid {one.pid}, log {one.log}" for one in services(root)]
    return lines or ["  nothing runs"]


def main() -> int:
    """Print it all; returns the exit code."""
    quiet()
    root = Path.cwd()
    try:
        with storage_named(root):
            load_params(root / "params.yaml")
            print("Stages", *stage_lines(root), sep="\n")
            print("Registry", *registry_lines(root), sep="\n")
            print("Servers", *service_lines(root), sep="\n")
            last = RunSummary.load(root)
    except OrchestraError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if last is not None:
        verdict = "promoted" if last.promoted else "refused"
        print(f"Last finished run\n  version {last.version} {verdict}")
        print(*(f"  {what:<14}{where}" for what, where in places(root, last.mlflow_run)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
