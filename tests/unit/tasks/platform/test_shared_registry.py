"""A registry on an MLflow server over S3: what one machine registers, another serves and takes back."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.config.schema import load_params
from orchestra.errors import DataError, ServiceError
from orchestra.system.processes import LOCALHOST, free_port
from tasks.platform.aliases import aliases
from tasks.platform.registry import Registry
from tasks.platform.stage import Stage
from tasks.promote import champion
from tasks.rollback import rollback, switch
from tests.support.registries import make_champion
from tests.support.team import team
from tests.support.worlds import ROOT


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server over an S3 server."""
    with team(tmp_path_factory.mktemp("server"), proxied=True) as made:
        yield made.mlflow


@pytest.fixture(autouse=True)
def through_the_server(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)


def machine(folder: Path) -> Path:
    """A clone, as far as the registry is concerned."""
    folder.mkdir()
    shutil.copy(ROOT / "params.yaml", folder)
    return folder


def test_another_machine_serves_rolls_back_and_goes_forward(tmp_path: Path) -> None:
    first, second = machine(tmp_path / "first"), machine(tmp_path / "second")
    one, two = make_champion(first, "one"), make_champion(first, "two")
    assert make_champion(first, "two").number == two.number, "the same checkpoint makes no second version"

    stage = Stage.open("deploy", second)
    found = champion(stage)
    assert found is not None and found.number == two.number and found.folder.is_relative_to(second)
    assert (found.folder / "deep/model.safetensors").read_text() == "two"
    assert aliases(second, stage.params.promote.model_name) == {"champion": two.number, "previous": one.number}

    assert rollback(stage).version == one.number
    back = champion(stage)
    assert back is not None and (back.folder / "deep/model.safetensors").read_text() == "one"
    assert champion(Stage.open("deploy", first)) == back.model_copy(
        update={"folder": first / back.folder.relative_to(second)}
    )
    assert switch(stage, two.number).changed
    assert not list((second / ".state/models").glob(".download-*"))


def test_a_damaged_upload_is_never_served(tmp_path: Path) -> None:
    first, second = machine(tmp_path / "first"), machine(tmp_path / "second")
    version = make_champion(first, "three")
    registry = Registry(first, load_params(first / "params.yaml").promote.model_name)
    (tmp_path / "model.safetensors").write_text("damaged")
    registry.client.log_artifact(version.run_id, str(tmp_path / "model.safetensors"), "checkpoint/deep")
    with pytest.raises(DataError, match="cannot serve: the kept checkpoint is gone"):
        champion(Stage.open("deploy", second))


def test_a_server_that_is_gone_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{LOCALHOST}:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ServiceError, match="the model registry: at failed"):
        champion(Stage.open("deploy", machine(tmp_path / "alone")))
