"""A real PostgreSQL as the team's record: two machines register, serve, take back; artifacts lie in the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestra.errors import ServiceError
from orchestra.system.processes import LOCALHOST, free_port
from tasks.platform.aliases import aliases
from tasks.platform.registry import CHAMPION, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import Recorder
from tasks.promote import champion
from tasks.rollback import rollback
from tests.support.postgres import binaries, postgres
from tests.support.registries import make_champion
from tests.support.stores import KEYS, s3_server
from tests.support.worlds import ROOT

pytestmark = pytest.mark.skipif(binaries() is None, reason="no PostgreSQL here (Debian's package postgresql)")


@pytest.fixture(scope="module")
def team() -> Iterator[tuple[str, str]]:
    """The addresses of database and store."""
    with s3_server() as endpoint, postgres() as database:
        yield database, endpoint


@pytest.fixture(autouse=True)
def of_the_team(team: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "MLFLOW_TRACKING_URI": team[0], "MLFLOW_S3_ENDPOINT_URL": ""}.items():
        monkeypatch.setenv(name, value)


def machine(folder: Path, endpoint: str) -> Path:
    folder.mkdir()
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["storage"] = {"url": "s3://team-models/team", "endpoint": endpoint}
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder


def test_two_machines_over_one_database(team: tuple[str, str], tmp_path: Path) -> None:
    first, second = machine(tmp_path / "first", team[1]), machine(tmp_path / "second", team[1])
    versions = []
    for weights in ("one", "two"):
        recorder = Recorder.open(first, f"flow-{weights}", weights)
        child = recorder.child("sft")
        recorder.metrics(child, {"loss": 0.5})
        versions.append(make_champion(first, weights, recorder.parent))
        recorder.finish(child)
        recorder.finish(recorder.parent)
    one, two = versions
    assert not (first / ".state/mlflow.db").exists() and not (first / "mlruns").exists()

    stage = Stage.open("deploy", second)
    found = champion(stage)
    assert found is not None and found.number == two.number and found.folder.is_relative_to(second)
    assert (found.folder / "deep/model.safetensors").read_text() == "two"
    assert aliases(second, "orchestrator") == {"champion": two.number, "previous": one.number}
    assert rollback(stage).version == one.number
    back = champion(Stage.open("deploy", first))
    assert back is not None and (back.folder / "deep/model.safetensors").read_text() == "one"

    again = Recorder.open(second, "flow-two", "two")
    assert again.parent == two.run_id, "a flow run finds its record again, on whatever machine"
    runs = again.client.search_runs([again.experiment_id], "metrics.loss = 0.5")
    assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) == 2
    assert all(run.info.artifact_uri.startswith("s3://team-models/team/mlflow/") for run in runs)


def test_a_database_that_is_gone_is_one_line_without_its_password(
    team: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = f"postgresql://orchestra:hidden-word@{LOCALHOST}:{free_port()}/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gone)
    with pytest.raises(ServiceError) as caught:
        Registry(machine(tmp_path / "w", team[1]), "orchestrator").at(CHAMPION)
    line = str(caught.value)
    assert line.startswith("MLFLOW_TRACKING_URI: MLflow's database does not answer: ") and "refused" in line
    assert len(line.splitlines()) == 1 and "hidden-word" not in line and "see that it runs" in line
