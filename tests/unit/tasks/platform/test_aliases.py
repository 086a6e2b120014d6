"""The registry's aliases, read without MLflow's client, are those that its client reads."""

from pathlib import Path

import pytest

from orchestra.errors import ServiceError
from tasks.platform.aliases import aliases
from tasks.platform.registry import CHAMPION, PREVIOUS, Registry
from tests.support.databases import make_database


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow exports the database that it is pointed at; set first, so that this ends with the test."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


def test_they_are_what_the_client_set(tmp_path: Path) -> None:
    assert aliases(tmp_path, "orchestrator") == {}
    make_database(tmp_path)
    registry = Registry(tmp_path, "orchestrator")
    assert aliases(tmp_path, "orchestrator") == {}
    registry.client.create_registered_model("orchestrator")
    for _ in range(2):
        registry.client.create_model_version("orchestrator", source=tmp_path.as_uri())
    registry.client.set_registered_model_alias("orchestrator", CHAMPION, "2")
    registry.client.set_registered_model_alias("orchestrator", PREVIOUS, "1")
    assert aliases(tmp_path, "orchestrator") == {"champion": 2, "previous": 1}
    assert aliases(tmp_path, "another") == {}


def test_a_damaged_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state/mlflow.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(ServiceError, match=r"mlflow\.db"):
        aliases(tmp_path, "orchestrator")


def test_a_server_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ServiceError, match="MLflow does not answer"):
        aliases(tmp_path, "orchestrator")
