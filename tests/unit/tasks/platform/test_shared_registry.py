"""A registry on an MLflow server over S3: what one machine registers, another serves and takes back."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from orchestra.config.schema import load_params
from orchestra.errors import DataError, ServiceError
from orchestra.files.checkpoint import hash_dir
from orchestra.system.processes import LOCALHOST, free_port, kill_tree, spawn
from tasks.platform.aliases import aliases
from tasks.platform.registry import CHAMPION, PREVIOUS, PROMOTED, ModelVersion, Registry
from tasks.platform.stage import Stage
from tasks.promote import champion
from tasks.rollback import rollback, switch
from tests.support.waiting import soon
from tests.support.worlds import ROOT

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
KEYS_OF_CLIENT = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server over an S3 server."""
    import boto3
    from moto.server import ThreadedMotoServer

    folder, port = tmp_path_factory.mktemp("server"), free_port()
    store = ThreadedMotoServer(ip_address=LOCALHOST, port=0)
    store.start()
    host, s3_port = store.get_host_and_port()
    endpoint = f"http://{host}:{s3_port}"
    boto3.client("s3", endpoint_url=endpoint, **KEYS_OF_CLIENT).create_bucket(Bucket="team-models")
    command = [sys.executable, "-m", "mlflow", "server", "--host", LOCALHOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", "s3://team-models/m"]
    env = {**os.environ, **KEYS, "MLFLOW_S3_ENDPOINT_URL": endpoint, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    env.pop("MLFLOW_TRACKING_URI", None)
    with (folder / "log").open("w") as log:
        child = spawn(command, cwd=folder, env=env, stdout=log)
    url = f"http://{LOCALHOST}:{port}"

    def up() -> bool:
        try:
            return httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        assert soon(up, 240), (folder / "log").read_text()
        yield url
    finally:
        kill_tree(child.pid, grace_s=3)
        store.stop()


@pytest.fixture(autouse=True)
def through_the_server(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)


def machine(folder: Path) -> Path:
    """A clone, as far as the registry is concerned."""
    folder.mkdir()
    shutil.copy(ROOT / "params.yaml", folder)
    return folder


def register(root: Path, weights: str) -> ModelVersion:
    """A promoted version, as promote registers it."""
    checkpoint = root / "models/grpo"
    shutil.rmtree(checkpoint, ignore_errors=True)
    (checkpoint / "deep").mkdir(parents=True)
    (checkpoint / "deep/model.safetensors").write_text(weights)
    registry = Registry(root, load_params(root / "params.yaml").promote.model_name)
    before = registry.at(CHAMPION)
    version = registry.add(checkpoint, hash_dir(checkpoint), {PROMOTED: "true"}, None)
    if before is not None and before.number != version.number:
        registry.point(PREVIOUS, before)
    registry.point(CHAMPION, version)
    return version


def test_another_machine_serves_rolls_back_and_goes_forward(tmp_path: Path) -> None:
    first, second = machine(tmp_path / "first"), machine(tmp_path / "second")
    one, two = register(first, "one"), register(first, "two")
    assert register(first, "two").number == two.number, "the same checkpoint makes no second version"

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
    version = register(first, "three")
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
