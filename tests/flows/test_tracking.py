"""What MLflow records of a flow run, in a real database."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import retrain
from orchestra.system.retraining import RetrainReason, ask, month_spent, take
from orchestra.system.runs import RunJournal, save
from orchestra.system.storage import MLFLOW, opened
from orchestra.system.workspace import ID, workspace_id
from tasks.platform import dvc
from tasks.platform.dvc import Hashes
from tasks.platform.ledger import LedgerTail
from tasks.platform.stage import Stage
from tasks.platform.tracking import Recorder, flatten, read_metrics, tracking_uri
from tests.support.databases import make_database

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracking")
    (folder / "reports").mkdir()
    (folder / "reports" / "sft.json").write_text(json.dumps({"loss": 0.5, "by": {"a b": 1}, "name": "x", "ok": True}))
    (folder / "params.yaml").write_text((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    make_database(folder)
    return folder


FOUND = Hashes({"data/validated": "1.dir"}, {"models/sft": "2.dir"}, {"sft": {"seed": 0}})


def test_a_retried_flow_run_goes_on_in_its_own_run(root: Path) -> None:
    first = Recorder.open(root, "one", "brave")
    assert Recorder.open(root, "one", "brave").parent == first.parent
    assert Recorder.open(root, "two", "bold").parent != first.parent


def test_runs_of_a_killed_flow_are_closed(root: Path) -> None:
    killed = Recorder.open(root, "killed", "k")
    child = killed.child("sft")
    mine = Recorder.open(root, "mine", "m")
    status = {run_id: mine.client.get_run(run_id).info.status for run_id in (killed.parent, child, mine.parent)}
    assert status == {killed.parent: "KILLED", child: "KILLED", mine.parent: "RUNNING"}


def test_only_runs_of_this_workspace_are_closed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(root))  # One MLflow for all of them.
    another = Recorder.open(tmp_path, "another workspace", "a")
    workspace_id(root)
    ours = (root / ID).rename(tmp_path / "ours")
    machine = Recorder.open(root, "another machine, at the same path", "b")
    child = machine.child("sft")
    ours.replace(root / ID)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "container")
        container = Recorder.open(root, "a container", "c")
        RunJournal.begin(root, "a container", "c", "retrain").update(mlflow_run=container.parent)
        inside = container.child("sft")
    own = Recorder.open(root, "own", "o")
    mine = Recorder.open(root, "next of mine", "m")
    made = (another.parent, machine.parent, child, container.parent, inside, own.parent)
    status = [mine.client.get_run(run_id).info.status for run_id in made]
    assert status == ["RUNNING", "RUNNING", "RUNNING", "KILLED", "KILLED", "KILLED"]


def test_the_ledgers_of_other_runs_go_to_their_records(root: Path) -> None:
    killed, folder = Recorder.open(root, "spent", "s"), root / ".state" / "ledger"
    folder.mkdir(parents=True)
    for name in (killed.parent, f"{killed.parent}-rank1", "0" * 32, "slurm-7"):
        (folder / f"{name}.jsonl").write_text(name, encoding="utf-8")
    mine = Recorder.open(root, "next", "n")
    (folder / f"{mine.parent}.jsonl").touch()
    Recorder.open(root, "next", "n")
    assert {item.path for item in mine.client.list_artifacts(killed.parent)} == {
        f"{killed.parent}.jsonl",
        f"{killed.parent}-rank1.jsonl",
    }
    assert {file.stem for file in folder.iterdir()} == {mine.parent, "0" * 32, "slurm-7"}, (
        "nothing is lost where no record is"
    )


def test_what_a_retried_run_spent_before_another_run_counts_on(root: Path) -> None:
    first = Recorder.open(root, "retried", "r")
    file = root / f".state/ledger/{first.parent}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"cost_usd": "5"}\n')
    first.artifacts(first.parent, [file])
    Recorder.open(root, "meanwhile", "m")
    assert not file.exists()
    again = Recorder.open(root, "retried", "r")
    assert again.parent == first.parent and LedgerTail(root, again.parent).take() == 5
    with file.open("a") as out:
        out.write('{"cost_usd": "4"}\n')
    Recorder.open(root, "retried", "r")
    assert LedgerTail(root, again.parent).take() == 9, "what is here is newer than the record"


def test_a_request_keeps_the_dollars_of_its_killed_run_when_their_ledger_goes(root: Path) -> None:
    killed, ledger = Recorder.open(root, "asked", "a"), root / ".state" / "ledger"
    ledger.mkdir(parents=True, exist_ok=True)
    (ledger / f"{killed.parent}.jsonl").write_text('{"cost_usd": "30"}\n', encoding="utf-8")
    ask(root, [RetrainReason("person", "k", "a second customer")], (), "a person")
    take(root, "asked", "a", 1)
    gone = RunJournal.begin(root, "asked", "a", "retrain", mlflow_run=killed.parent).record
    save(root, gone.model_copy(update={"pid": 2**22 - 1, "started": "1"}))
    Recorder.open(root, "learn-1", "learn")
    assert not (ledger / f"{killed.parent}.jsonl").exists() and month_spent(root) == 30


def test_a_stage_leaves_hashes_parameters_and_metrics(root: Path) -> None:
    recorder = Recorder.open(root, "stages", "s")
    child = recorder.child("sft")
    recorder.stage_done("sft", child, FOUND)
    recorder.finish(child)
    run = recorder.client.get_run(child)
    assert run.data.metrics == {"sft.loss": 0.5, "sft.by.a b": 1.0} and run.data.params == {"sft.seed": "0"}
    assert run.data.tags["in.data/validated"] == "1.dir" and run.data.tags["out.models/sft"] == "2.dir"
    assert run.data.tags["mlflow.parentRunId"] == recorder.parent and run.info.status == "FINISHED"
    parent = recorder.client.get_run(recorder.parent)
    assert parent.data.metrics == run.data.metrics, "one name has one meaning"
    assert parent.data.tags["out.models/sft"] == "2.dir"


def test_a_stage_leaves_every_parameter_and_file(root: Path) -> None:
    recorder = Recorder.open(root, "many", "m")
    child = recorder.child("sft")
    inputs, wide = {f"data/{n}": "1" for n in range(150)}, {f"k{n}": n for n in range(150)}
    recorder.stage_done("sft", child, Hashes(inputs, {}, {"sft": wide}))
    run = recorder.client.get_run(child)
    assert len(run.data.params) == 150 and {f"in.data/{n}" for n in range(150)} <= set(run.data.tags)


def test_the_run_tells_its_commit_and_its_dollars_while_it_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder.open(root, "told", "t")
    monkeypatch.setattr(retrain, "git_commit", lambda _: "c0ffee")
    ledger = root / ".state" / "ledger" / f"{recorder.parent}.jsonl"
    ledger.parent.mkdir(parents=True, exist_ok=True)
    lines = ('"phase": "sft/lessons", "cost_usd": "1.5"', '"phase": "grpo", "cost_usd": "2.25"')
    ledger.write_text("".join(f'{{"component": "expert", {line}}}\n' for line in lines) + '{"phase": "gr', "utf-8")
    retrain._tell_commit(recorder, recorder.parent)
    retrain._tell_costs(recorder)
    run = recorder.client.get_run(recorder.parent)
    assert run.data.tags["mlflow.source.git.commit"] == "c0ffee"
    assert run.data.metrics == {"cost/sft_usd": 1.5, "cost/grpo_usd": 2.25, "cost/total_usd": 3.75}


class Step:
    """A task of the flow that books some dollars."""

    def __init__(self, ledger: Path, line: str, made: Any) -> None:
        self._ledger, self._line, self._made = ledger, line, made

    def with_options(self, **_: Any) -> "Step":
        return self

    def __call__(self, *_: Any, return_state: bool = False) -> Any:
        with self._ledger.open("a", encoding="utf-8") as out:
            out.write(f'{{"component": "expert", {self._line}}}\n')
        return SimpleNamespace(result=lambda: self._made) if return_state else self._made


def test_promote_and_deploy_are_each_told_with_their_own_dollars(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A champion that is measured again costs what promote books, and nothing of it is the release's."""
    recorder = Recorder.open(root, "each", "e")
    ledger = root / ".state" / "ledger" / f"{recorder.parent}.jsonl"
    ledger.parent.mkdir(parents=True, exist_ok=True)
    decision = SimpleNamespace(version=2, name="Unchanged", waits=False, promoted=True, why="")
    deployment = SimpleNamespace(version="1", outcome="unchanged", url="", trial="")
    steps = {"run_promote": ('"phase": "promote", "cost_usd": "5"', decision)}
    steps["run_deploy"] = ('"phase": "deploy/smoke set", "cost_usd": "0.25"', deployment)
    for name, (line, made) in steps.items():
        monkeypatch.setattr(retrain, name, Step(ledger, line, made))
    for name in ("check_named", "refuse_now", "screen"):
        monkeypatch.setattr(retrain, name, lambda *_, **__: None)
    monkeypatch.setattr(retrain, "suspendable", lambda: "")
    monkeypatch.setattr(retrain, "RunSummary", MagicMock())
    monkeypatch.setattr(dvc, "recover", lambda _: None)
    monkeypatch.setattr(dvc, "stages", lambda _: {})
    journal = RunJournal.begin(root, "each", "e", "retrain")
    retrain._run_all(root, recorder, journal, None, set())
    told = {name: stage.usd for name, stage in journal.record.stages.items()}
    assert told == {"promote": Decimal(5), "deploy": Decimal("0.25")}


def test_a_failure_is_recorded_with_its_line(root: Path) -> None:
    recorder = Recorder.open(root, "failing", "f")
    child = recorder.child("sft")
    recorder.finish(child, "sft: corrupt")
    run = recorder.client.get_run(child)
    assert run.info.status == "FAILED" and run.data.tags["orchestra.error"] == "sft: corrupt"


def test_an_error_of_the_database_is_raised_and_not_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_database(tmp_path)
    recorder = Recorder.open(tmp_path, "flow-1", "calm-cat")
    with opened(tmp_path / MLFLOW, "rw") as database:
        database.execute("DROP TABLE tags")
    capfd.readouterr()
    with pytest.raises(MlflowException, match="no such table"):
        recorder.tag("a", "b")
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err


def test_an_error_goes_when_the_next_attempt_is_well(root: Path) -> None:
    recorder = Recorder.open(root, "retried", "r")
    recorder.finish(recorder.parent, "sft: corrupt")
    again = Recorder.open(root, "retried", "r")
    again.finish(again.parent)
    run = again.client.get_run(again.parent)
    assert run.info.status == "FINISHED" and "orchestra.error" not in run.data.tags


def test_runs_that_did_nothing_do_not_pile_up(root: Path) -> None:
    parents = []
    for number in range(3):
        recorder = Recorder.open(root, f"nothing-{number}", f"n{number}")
        recorder.nothing_done()
        recorder.finish(recorder.parent)
        parents.append(recorder.parent)
    listed = {run.info.run_id for run in recorder.client.search_runs([recorder.experiment_id])}
    assert listed & set(parents) == {parents[-1]}


def test_a_run_that_did_nothing_leaves_the_record_of_another_workspace(root: Path, tmp_path: Path) -> None:
    theirs = Recorder.open(root, "theirs", "t")
    mine = replace(Recorder.open(root, "my own", "m"), root=tmp_path)  # One MLflow for both.
    for recorder in (theirs, mine):
        recorder.nothing_done()
    assert {mine.client.get_run(one.parent).info.lifecycle_stage for one in (theirs, mine)} == {"active"}


def test_the_parent_has_what_runs_are_compared_by(root: Path) -> None:
    figures = {"grpo": {"accuracy": 0.875, "cost_usd": 0.016, "share": {"search": 0.1}}, "sft": {"accuracy": 0.8}}
    (root / "reports" / "evaluate.json").write_text(json.dumps(figures))
    recorder = Recorder.open(root, "compared", "calm-fox")
    params = {"sft": {"seed": 1}, "wide": {f"k{n}": n for n in range(150)}}
    for _ in range(2):
        recorder.headline(params, "version 3 promoted", "grpo")
    run = recorder.client.get_run(recorder.parent)
    assert run.info.run_name == "calm-fox · version 3 promoted" and len(run.data.params) == 151
    assert run.data.metrics == {"headline/solved": 0.875, "headline/usd an example": 0.016}
    assert len(recorder.client.get_metric_history(recorder.parent, "headline/solved")) == 1
    experiment = recorder.client.get_experiment(recorder.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_a_stage_logs_to_the_run_that_the_flow_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder.open(root, "logging", "l")
    child = recorder.child("sft")
    for key, value in recorder.environment(child).items():
        monkeypatch.setenv(key, value)
    stage = Stage.open("sft", root)
    for step in range(600):
        stage.log_metrics({"train/loss": 1 / (step + 1)}, step)
    stage.log_artifact(Path("reports/sft.json"))
    stage.flush()
    history = recorder.client.get_metric_history(child, "train/loss")
    assert [metric.step for metric in history] == list(range(600))
    assert [found.path for found in recorder.client.list_artifacts(child)] == ["sft.json"]


def test_the_address_is_the_workspaces_own_unless_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(root) == f"sqlite:///{root}/.state/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example")
    assert tracking_uri(root) == "http://mlflow.example"


def test_numbers_that_are_none_and_words_are_no_metrics(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text('{"a": NaN, "b": Infinity, "c": 1, "d": "x", "e": null, "f": [1]}')
    assert read_metrics(file) == {"c": 1.0} and read_metrics(tmp_path / "none.json") == {}


@given(st.recursive(st.integers(), lambda inner: st.dictionaries(st.text("abc/é:.", min_size=1), inner, max_size=3)))
def test_flat_names_are_ones_that_mlflow_takes(value: object) -> None:
    for name, leaf in flatten(value):
        assert name and not isinstance(leaf, dict)
        assert all(ch.isalnum() or ch in "_-. /" for ch in name)
