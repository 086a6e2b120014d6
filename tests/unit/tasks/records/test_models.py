"""Data and checkpoints in a real MLflow: what a run read, what made a model, who judged it, and its version."""

import json
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.files.checkpoint import hash_dir, hash_file
from tasks.platform.dvc import Hashes
from tasks.platform.registry import COMMIT, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import Recorder
from tasks.promote import promote
from tasks.records.models import HASH, HELDOUT, MODEL, VERSIONS, Training, costs, dataset, link, training
from tests.support.promotions import params
from tests.support.registries import remove_run

NONE = Hashes({}, {}, {})


@pytest.fixture
def recorder(root: Path) -> Recorder:
    """A run of the flow in a workspace whose stages have run."""
    shutil.copy(root / "data/validated/heldout.jsonl", root / "data/validated/train.jsonl")
    return Recorder.open(root, "flow-1", "brave")


def ran(recorder: Recorder, stage: str) -> str:
    run_id = recorder.child(stage)
    recorder.stage_done(stage, run_id, NONE, link(recorder, stage, run_id))
    return run_id


def test_a_run_names_the_data_that_it_read(recorder: Recorder) -> None:
    sft, judged = ran(recorder, "sft"), ran(recorder, "evaluate")
    (trained,), (held,) = (recorder.client.get_run(run).inputs.dataset_inputs for run in (sft, judged))
    assert (trained.dataset.name, trained.tags[0].value) == ("train", "training")
    assert (held.dataset.name, held.tags[0].value) == ("heldout", "evaluation")
    assert json.loads(trained.dataset.profile) == {"examples": 6}
    assert trained.dataset.digest == hash_file(recorder.root / "data/validated/train.jsonl")[:32]
    assert json.loads(held.dataset.profile) == {"examples": 4}, "evaluate.examples of the 6"
    assert held.dataset.digest != trained.dataset.digest and str(recorder.root) not in held.dataset.source
    again = Recorder.open(recorder.root, "flow-2", "bold")
    assert link(again, "evaluate", None) == {} == link(again, "synthesize", None)
    (known,) = again.client.get_run(again.parent).inputs.dataset_inputs
    assert known.dataset.digest == held.dataset.digest, "an unchanged stage read the same"
    both = recorder.client.get_run(recorder.parent).inputs.dataset_inputs
    assert {one.dataset.name for one in both} == {"train", "heldout"}


def test_a_held_out_example_that_was_not_evaluated_makes_no_other_dataset(recorder: Recorder) -> None:
    file = recorder.root / "data/validated/heldout.jsonl"
    before = dataset(recorder.root, HELDOUT, 4).dataset.digest
    file.write_text(file.read_text() + "{}\n")
    assert dataset(recorder.root, HELDOUT, 4).dataset.digest == before
    assert dataset(recorder.root, HELDOUT).dataset.digest == hash_file(file)[:32] != before


def test_a_checkpoint_is_one_model_from_its_training_to_its_version(recorder: Recorder) -> None:
    client, root = recorder.client, recorder.root
    runs = {stage: ran(recorder, stage) for stage in ("sft", "grpo", "evaluate")}
    models = {one.name: one for one in client.search_logged_models([recorder.experiment_id])}
    assert set(models) == {"sft", "grpo"}, "each once"
    assert {name: one.tags[HASH] for name, one in models.items()} == {
        name: hash_dir(root / "models" / name) for name in models
    }
    assert {name: one.source_run_id for name, one in models.items()} == {name: runs[name] for name in models}
    ids = {name: one.model_id for name, one in models.items()}
    outputs = {name: [one.model_id for one in client.get_run(runs[name]).outputs.model_outputs] for name in models}
    assert outputs == {name: [model_id] for name, model_id in ids.items()}
    inputs = {name: {one.model_id for one in client.get_run(run).inputs.model_inputs} for name, run in runs.items()}
    assert inputs == {"sft": set(), "grpo": {ids["sft"]}, "evaluate": set(ids.values())}

    measured = {one.key: one for one in client.get_logged_model(ids["grpo"]).metrics}
    assert {one.dataset_name for one in measured.values()} == {"heldout"} and "evaluate.sft.accuracy" not in measured
    judged, parent = (client.get_run(run).data.metrics for run in (runs["evaluate"], recorder.parent))
    name = "evaluate.grpo.accuracy"
    assert measured[name].value == judged[name] == parent[name] and "grpo.accuracy" not in {*measured, *judged}

    for _ in range(2):
        assert promote(Stage.open("promote", root, params()), recorder.parent).version == 1
    version = Registry(root, "orchestrator").version(1)
    assert version is not None and version.tags[MODEL] == ids["grpo"]
    told = json.loads(client.get_logged_model(ids["grpo"]).tags[VERSIONS])
    assert told == [{"name": "orchestrator", "version": "1"}]


def test_a_version_names_the_commit_and_the_dollars_of_its_training(recorder: Recorder) -> None:
    client, root = recorder.client, recorder.root
    run_id = recorder.child("grpo")
    client.set_tag(run_id, COMMIT, "c0ffee")
    recorder.stage_done("grpo", run_id, NONE, link(recorder, "grpo", run_id))
    recorder.metrics(recorder.parent, costs({"sft": {"expert": Decimal("190.5")}, "grpo": {"expert": Decimal(750)}}))
    later = Recorder.open(root, "flow-2", "bold")
    told = promote(Stage.open("promote", root, params()), later.parent).page.read_text()
    assert "spent by the run that trained it" in told and "940.50 USD (grpo 750.00, sft 190.50)" in told
    assert "c0ffee" in told
    version = Registry(root, "orchestrator").version(1)
    assert version is not None and version.tags["git_commit"] == "c0ffee"
    assert client.get_logged_model(version.tags[MODEL]).params["git_commit"] == "c0ffee"


def test_a_checkpoint_is_promoted_though_mlflow_removed_the_runs_of_its_training(recorder: Recorder) -> None:
    client, root = recorder.client, recorder.root
    digest, registry = hash_dir(root / "models/grpo"), Registry(root, "orchestrator")
    trained = recorder.child("grpo")
    client.set_tag(trained, COMMIT, "c0ffee")
    recorder.stage_done("grpo", trained, NONE, link(recorder, "grpo", trained))
    recorder.metrics(recorder.parent, costs({"grpo": {"expert": Decimal(750)}}))
    remove_run(root, recorder.parent)
    assert training(registry, digest) == Training(git_commit="c0ffee")
    remove_run(root, trained)
    assert training(registry, digest) == Training()
    later = Recorder.open(root, "flow-2", "bold")
    assert "not known" in promote(Stage.open("promote", root, params()), later.parent).page.read_text()
    version = registry.version(1)
    assert version is not None and version.tags["git_commit"] == ""


def test_a_version_without_a_training_on_record_has_a_model_too(root: Path) -> None:
    promote(Stage.open("promote", root, params()))
    version = Registry(root, "orchestrator").version(1)
    assert version is not None
    model = Registry(root, "orchestrator").client.get_logged_model(version.tags[MODEL])
    assert model.tags[HASH] == version.checkpoint_hash and not model.source_run_id
    assert version.tags["git_commit"] == "", "the commit of the promotion is not that of the training"
