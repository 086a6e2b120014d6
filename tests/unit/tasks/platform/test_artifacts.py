"""MLflow's artifacts straight on S3: `storage.url` alone places them, and a store that fails is one line at once."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestra.config.storage import Storage
from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.system import artifacts
from orchestra.system.processes import LOCALHOST, free_port
from orchestra.system.storage import MLFLOW, storage_named
from tasks.platform.tracking import Recorder, connect, experiment, tracking_uri
from tests.support.stores import KEYS, s3_server
from tests.support.worlds import ROOT


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without a run; its tables take a second to make."""
    root = workspace(tmp_path_factory.mktemp("tables") / "w", None, "local")
    connect(root)
    return root / MLFLOW


@pytest.fixture(autouse=True)
def own_database(tables: Path, tmp_path: Path) -> None:
    """The workspace of a test begins with a copy of it."""
    (tmp_path / "w" / MLFLOW).parent.mkdir(parents=True)
    shutil.copy(tables, tmp_path / "w" / MLFLOW)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, and nothing that another test or the user set for MLflow; what MLflow is told goes with the test."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_S3_ENDPOINT_URL", "AWS_MAX_ATTEMPTS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def workspace(folder: Path, endpoint: str | None, url: str = "s3://team-models/a/b") -> Path:
    folder.mkdir(exist_ok=True)
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["storage"] = {"url": url, "endpoint": endpoint}
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder


STAGE = """
from pathlib import Path
from tasks.platform.stage import Stage
Path("made").mkdir()
Path("made/out.txt").write_text("of a stage")
Stage.open("synthesize").log_artifact(Path("made"))
"""


@pytest.mark.slow
def test_one_setting_places_the_artifacts_of_flow_and_stages(endpoint: str, tmp_path: Path) -> None:
    root = workspace(tmp_path / "w", endpoint)
    recorder = Recorder.open(root, "a-flow-run", "first")
    recorder.artifacts(recorder.parent, [root / "params.yaml"])
    child = recorder.child("synthesize")
    env = {**os.environ, **recorder.environment(child), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", STAGE], cwd=root, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr

    store = artifacts.filesystem(Storage(url="s3://team-models/a/b", endpoint=endpoint))
    place = "team-models/a/b/mlflow"
    assert sorted(store.find(place)) == sorted(
        [f"{place}/{recorder.parent}/artifacts/params.yaml", f"{place}/{child}/artifacts/made/out.txt"]
    )
    got = Path(recorder.client.download_artifacts(child, "made/out.txt", str(tmp_path)))
    assert got.read_text() == "of a stage" and not (root / ".state/mlartifacts").exists()


def test_an_experiment_keeps_its_place_when_the_setting_changes(endpoint: str, tmp_path: Path) -> None:
    root = workspace(tmp_path / "w", None, "local")
    before = experiment(connect(root), root)
    workspace(root, endpoint)
    client = connect(root)
    assert experiment(client, root) == before
    assert client.get_experiment(before).artifact_location == (root / ".state/mlartifacts").as_uri()
    assert client.get_experiment(experiment(client, root, "new")).artifact_location == "s3://team-models/a/b/mlflow"


def test_a_team_s_database_without_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow would keep artifacts in ./mlruns, which no other machine reads."""
    root = workspace(tmp_path / "w", None, "local")
    client = connect(root)
    monkeypatch.setattr("tasks.platform.tracking.tracking_uri", lambda _: "postgresql://db.example/mlflow")
    with pytest.raises(ConfigError, match=r"would lie on this machine — storage\.url"):
        experiment(client, root)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server((LOCALHOST, 0)) as server:
        yield f"http://{LOCALHOST}:{server.getsockname()[1]}"


@pytest.mark.parametrize("what", ["refuses", "silent", "no bucket", "no keys"])
def test_a_store_that_fails_is_one_line_within_seconds(
    what: str, endpoint: str, silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = {"refuses": f"http://{LOCALHOST}:{free_port()}", "silent": silent}.get(what, endpoint)
    asking = artifacts._asking
    monkeypatch.setattr(artifacts, "_asking", lambda address, seconds: asking(address, min(seconds, 2)))
    bucket = "s3://no-such-bucket/x" if what == "no bucket" else "s3://team-models/other"
    if what == "no keys":
        for name in KEYS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        # Questions before, in this process, had keys; a command that lacks them starts without.
        asking.cache_clear()
        monkeypatch.setenv("HOME", str(tmp_path))
    root = workspace(tmp_path / "w", address, bucket)
    connect(root)  # Imports and tables of MLflow are not what is timed.
    began = time.monotonic()
    with pytest.raises(OrchestraError) as caught:
        Recorder.open(root, "a-flow-run", "first")
    line = str(caught.value)
    assert time.monotonic() - began < 60
    assert line.startswith(bucket) and "see storage in params.yaml" in line and len(line.splitlines()) == 1


def test_a_store_that_goes_away_during_a_run_is_no_bug(tmp_path: Path) -> None:
    with s3_server() as endpoint:
        root = workspace(tmp_path / "w", endpoint)
        recorder = Recorder.open(root, "a-flow-run", "first")
    with pytest.raises(ServiceError, match=r"the store of storage\.url: .* — see storage"), storage_named(root):
        recorder.artifacts(recorder.parent, [root / "params.yaml"])


def test_a_server_of_ours_gets_what_reaches_the_store(endpoint: str, tmp_path: Path) -> None:
    from orchestra.system.servers import _commands

    root = workspace(tmp_path / "w", endpoint)
    _, _, extra = _commands(root, 4200, 5000, 9464)["mlflow"]
    assert extra["MLFLOW_S3_ENDPOINT_URL"] == endpoint and extra["AWS_MAX_ATTEMPTS"] == "2"
    shutil.rmtree(root)
    assert tracking_uri(root).startswith("sqlite:")


def test_doctor_asks_the_store(endpoint: str, tmp_path: Path) -> None:
    from orchestra.cli.doctor import _store

    (found,) = _store(workspace(tmp_path / "w", endpoint))
    assert (found.level, found.what) == ("ok", "s3://team-models/a/b")
    (found,) = _store(workspace(tmp_path / "w", f"http://{LOCALHOST}:{free_port()}"))
    assert found.level == "error" and "see storage in params.yaml" in found.fix
    assert list(_store(workspace(tmp_path / "w", None, "local"))) == []
