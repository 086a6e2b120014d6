"""A workspace that is evaluated and ready for the gate, made once."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.system.code_hash import CODE
from tests.support.promotions import workspace


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two checkpoints, evaluated, and an empty registry."""
    root = tmp_path_factory.mktemp("workspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CODE, "score", ())
        workspace(root)
    return root


@pytest.fixture(scope="module")
def still_code() -> Iterator[None]:
    """Editing orchestra/ while these run must not make their evaluations stale."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CODE, "score", ())
        yield


@pytest.fixture
def root(template: Path, still_code: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy for one test; MLflow is its own database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Path(shutil.copytree(template, tmp_path / "w"))
