"""The second machine: a fresh clone with a store, MLflow's server and the repository serves, promotes, rolls back."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestra.system.processes import stop_services
from tasks.platform.aliases import aliases
from tests.flows.workspace import Workspace, commit, make
from tests.support.stores import KEYS
from tests.support.team import Team, team

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Team]:
    folder = tmp_path / "servers"
    folder.mkdir()
    with team(folder) as found:
        yield found


@pytest.fixture
def machines(shared: Team, tmp_path: Path) -> Iterator[list[Workspace]]:
    """Workspaces to add to; what they serve ends with the test."""
    found: list[Workspace] = []
    yield found
    for one in found:
        stop_services(one.root)


def step(name: str, machine: Workspace, *command: str) -> list[str]:
    began = time.monotonic()
    said = machine.orchestra(*command)
    print(f"{name}: orchestra {' '.join(command)}: {time.monotonic() - began:.0f} s")
    return said


def test_a_fresh_clone_serves_promotes_and_rolls_back(
    shared: Team, machines: list[Workspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"MLflow's record is in {shared.database}")
    extra = {**KEYS, "MLFLOW_TRACKING_URI": shared.mlflow}
    first = Workspace(make(tmp_path / "first").root, extra)
    params = yaml.safe_load((first.root / "params.yaml").read_text(encoding="utf-8"))
    params["storage"] = {"url": "s3://team-models/orchestra", "endpoint": shared.endpoint}
    (first.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    commit(first.root)
    machines.append(first)
    said = step("first", first, "run")
    assert any(line.startswith("push: ") for line in said) and "promoted as version 1" in "\n".join(said)

    # Nothing but git travels from folder to folder.
    subprocess.run(["git", "clone", "-q", str(first.root), str(tmp_path / "second")], check=True)
    second = Workspace(tmp_path / "second", extra)
    machines.append(second)
    assert not (second.root / ".state").exists() and not (second.root / "dvc.lock").exists()
    step("second", second, "pull")
    assert second.lock("grpo") == first.lock("grpo")
    said = step("second", second, "release")
    assert any("version 1 serves at http://127.0.0.1:" in line for line in said)
    assert step("second", second, "ask", "What is 37 times 24?")

    said = step("second", second, "run", "--set", "grpo.seed=2")
    assert "promoted as version 2" in "\n".join(said)
    assert "sft: unchanged" in said, "what the first machine made is not made again"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", shared.mlflow)
    model = params["promote"]["model_name"]
    assert aliases(first.root, model) == {"champion": 2, "candidate": 2, "previous": 1}

    said = step("second", second, "release", "--rollback")
    assert any("version 1 serves at " in line for line in said)
    assert "another machine pushed" in first.orchestra("push", code=2)[-1]
    step("first", first, "pull", "--replace")
    said = step("first", first, "release")
    assert any("version 1 serves at " in line for line in said) and aliases(first.root, model)["champion"] == 1
