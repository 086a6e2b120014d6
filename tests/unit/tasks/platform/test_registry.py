"""A version that somebody registered by hand, in MLflow's pages, stops nothing."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from orchestra.errors import DataError, ServiceError
from tasks.explain import explained
from tasks.platform.pages import benchmarks
from tasks.platform.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry, git_commit
from tasks.platform.stage import Stage
from tasks.promote import champion, promote
from tasks.records.leftovers import keepers
from tests.support.promotions import aliases, evaluated, params, train
from tests.support.worlds import ROOT


def test_a_commit_is_marked_where_files_differ_from_it_or_code_is_not_in_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        told = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *told, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert git_commit(tmp_path) == ""
    (tmp_path / ".gitignore").write_text("/data/generated\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "a")
    for path in ("data/generated/a.jsonl", "notes.txt", "dvc.lock"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert re.fullmatch("[0-9a-f]{40}", clean := git_commit(tmp_path)), "none of these is code"
    for path in ("orchestra/new.py", "tasks/a b.py", "data/catalogue/é.yaml", ".gitignore"):
        old = (tmp_path / path).read_bytes() if (tmp_path / path).is_file() else None
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("/data/generated\n# Changed.\n")
        assert git_commit(tmp_path) == f"{clean}+", path
        (tmp_path / path).unlink() if old is None else (tmp_path / path).write_bytes(old)
        assert git_commit(tmp_path) == clean


def test_a_version_without_a_checkpoint_is_left_out(root: Path) -> None:
    shutil.copy(ROOT / "params.yaml", root)
    promote(Stage.open("promote", root, params()))
    registry = Registry(root, "orchestrator")
    registry.client.create_model_version("orchestrator", source="file:///tmp/x")
    train(root, "grpo", 2)
    assert promote(evaluated(root)).promoted
    assert aliases(root) == {CANDIDATE: 3, CHAMPION: 3, PREVIOUS: 1}
    assert sorted(one.number for one in registry.versions()) == [1, 3]
    assert len(keepers(root, registry, 3).checkpoints) == 2 and benchmarks(registry)
    with pytest.raises(DataError, match="the registry has no version for 2"):
        explained(root, "2")


def test_as_champion_it_is_said_to_be_lost_and_is_replaced_by_nothing(root: Path) -> None:
    stage = Stage.open("promote", root, params())
    promote(stage)
    client = Registry(root, "orchestrator").client
    client.create_model_version("orchestrator", source="file:///tmp/x")
    client.set_registered_model_alias("orchestrator", CHAMPION, "2")
    with pytest.raises(DataError, match=r"champion \(version 2\) cannot serve: the kept checkpoint is gone"):
        champion(stage)
    refused = promote(stage)
    assert [check.name for check in refused.failed] == ["champion"] and "left no record" in refused.failed[0].reason
    assert aliases(root) == {CANDIDATE: 1, CHAMPION: 2, PREVIOUS: None}


def test_a_workspace_of_mlflow_that_is_missing_is_no_registry_without_a_champion(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server answers both questions with the code that stands for a missing model, too."""
    registry = Registry(root, "orchestrator")
    assert registry.at(CHAMPION) is None

    def missing(*_: object) -> None:
        raise MlflowException("Workspace 'typo' not found", RESOURCE_DOES_NOT_EXIST)

    for name in ("get_model_version_by_alias", "search_registered_models"):
        monkeypatch.setattr(registry.client, name, missing)
    with pytest.raises(ServiceError, match="Workspace 'typo' not found"):
        registry.at(CHAMPION)
