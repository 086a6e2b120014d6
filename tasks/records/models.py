"""What MLflow shows between runs: the data that a run read, and the checkpoints that runs made, judged and registered.

A checkpoint is a LoggedModel of MLflow, found again by its hash. Its page lists the run that made it, every evaluation
of it with the data, and its registered version.
"""

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from orchestra.evaluation.report import EVALUATION, read_comparison
from orchestra.files.checkpoint import hash_dir, read_manifest
from orchestra.files.jsonl import stream_lines
from orchestra.types import Record, add_up
from tasks.platform.registry import COMMIT, ModelVersion, Registry, known
from tasks.platform.tracking import PARENT, MeasuredModel, Recorder, allowed_model, experiment, said

HASH = "checkpoint_hash"
"""Tag of a LoggedModel."""
CONTEXT = "mlflow.data.context"
"""Tag of a run's dataset: MLflow's word for its use."""
VERSIONS = "mlflow.modelVersions"
"""Tag of a LoggedModel from which MLflow's page of it names its registered versions."""
COST, USD, TOTAL = "cost/", "_usd", "total"
"""How the metrics of a flow run begin and end that say what a stage spent, or all of them."""
MODEL = "logged_model"
"""Tag of a version: the id of its LoggedModel."""


class StageData(Record):
    """The file of examples that a stage reads."""

    path: str
    context: str


TRAIN = StageData(path="data/validated/train.jsonl", context="training")
HELDOUT = StageData(path="data/validated/heldout.jsonl", context="evaluation")
READS = {"sft": TRAIN, "grpo": TRAIN, "evaluate": HELDOUT}
CONTINUES = {"grpo": "sft"}
"""The checkpoint that a stage trains from."""
CHECKPOINTS = ("sft", "grpo")
"""The stages that make a checkpoint, each the folder of its name in models/."""


class Training(Record):
    """What is on record of the training of a checkpoint; empty where it was trained outside of a flow, or MLflow
    removed its run."""

    git_commit: str = ""
    spent: str = ""
    """What its flow run spent, in all and by stage."""


def link(recorder: Recorder, stage: str, run_id: str | None) -> dict[str, MeasuredModel]:
    """Say what a stage read and made, on its run (None: it did not run) and the data on the flow's; safe to repeat.

    Returns the models that the stage's metrics are about, by the first two parts of a metric's name.
    """
    if stage not in READS:
        return {}
    judged = read_comparison(recorder.root / EVALUATION / "comparison.json") if stage == "evaluate" else None
    data = dataset(recorder.root, READS[stage], None if judged is None else judged.examples)
    for run in filter(None, (recorder.parent, run_id)):
        recorder.client.log_inputs(run, datasets=[data])
    if run_id is None:
        return {}
    if judged is None:
        _trained(recorder, stage, run_id)
        return {}
    client, where = recorder.client, recorder.experiment_id
    found = {name: logged_model(client, where, name, one) for name, one in judged.checkpoints.items()}
    _read_models(recorder, run_id, *found.values())
    return {
        f"{stage}.{name}": MeasuredModel(one, data.dataset.name, data.dataset.digest) for name, one in found.items()
    }


def dataset(root: Path, read: StageData, first: int | None = None) -> Any:
    """The file as an input of a run, or its first examples: their hash, and how many they are."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    content, count = hashlib.sha256(), 0
    for _, line in islice(stream_lines(root / read.path), first):
        content.update(f"{line}\n".encode("utf-8", "surrogateescape"))
        count += 1
    told = Dataset(
        name=Path(read.path).stem,
        digest=content.hexdigest()[:32],  # MLflow's limit is 36.
        source_type="local",
        source=json.dumps({"uri": read.path}),
        profile=json.dumps({"examples": count}),
    )
    return DatasetInput(told, [InputTag(CONTEXT, read.context)])


def logged_model(client: Any, experiment_id: str, name: str, digest: str, run_id: str | None = None) -> str:
    """Id of a checkpoint's LoggedModel: the one there is, or a new one, made by that run."""
    found = client.search_logged_models([experiment_id], f"tags.{HASH} = '{digest}'", max_results=1)
    if found:
        return str(found[0].model_id)
    made = client.create_logged_model(experiment_id, allowed_model(name), run_id, {HASH: digest})
    client.finalize_logged_model(made.model_id, "READY")
    return str(made.model_id)


def training_run(registry: Registry, digest: str) -> str:
    """The run that made the checkpoint of that hash, which MLflow may have removed; empty where none is on record."""
    client = registry.client
    found = client.search_logged_models([experiment(client, registry.root)], f"tags.{HASH} = '{digest}'", max_results=1)
    return str(found[0].source_run_id or "") if found else ""


def training(registry: Registry, digest: str) -> Training:
    """By the run that made the checkpoint of that hash."""
    client = registry.client
    run_id = training_run(registry, digest)
    run = known(client.get_run, run_id) if run_id else None
    if run is None:
        return Training()
    tags = run.data.tags
    flow_run = known(client.get_run, tags[PARENT]) if PARENT in tags else None
    metrics = {} if flow_run is None else flow_run.data.metrics
    by_stage = {key[len(COST) : -len(USD)]: usd for key, usd in metrics.items() if key.startswith(COST)}
    total = by_stage.pop(TOTAL, None)
    parts = ", ".join(f"{name} {usd:,.2f}" for name, usd in sorted(by_stage.items(), key=lambda item: -item[1]))
    return Training(git_commit=tags.get(COMMIT, ""), spent="" if total is None else f"{total:,.2f} USD ({parts})")


def costs(spent: Mapping[str, Mapping[str, Decimal]]) -> dict[str, float]:
    """A flow run's metrics of what its stages spent."""
    by_stage = {name: add_up(parts.values()) for name, parts in spent.items()}
    told = {**by_stage, TOTAL: add_up(by_stage.values())}
    return {f"{COST}{name}{USD}": float(usd) for name, usd in told.items()}


def link_version(registry: Registry, version: ModelVersion, name: str) -> None:
    """A registered version and the LoggedModel of its checkpoint, made under that name if need be, name each other."""
    client = registry.client
    model = logged_model(client, experiment(client, registry.root), name, version.checkpoint_hash)
    known = json.loads(client.get_logged_model(model).tags.get(VERSIONS, "[]"))
    one = {"name": registry.model_name, "version": str(version.number)}
    if one not in known:
        client.set_logged_model_tags(model, {VERSIONS: json.dumps([*known, one])})
    registry.tag(version, {MODEL: model})


def _trained(recorder: Recorder, stage: str, run_id: str) -> None:
    """The checkpoint that a stage made is its run's output; the one it began with, an input."""
    from mlflow.entities import LoggedModelOutput

    client, where, models = recorder.client, recorder.experiment_id, recorder.root / "models"
    if before := CONTINUES.get(stage):
        _read_models(recorder, run_id, logged_model(client, where, before, hash_dir(models / before)))
    manifest = read_manifest(models / stage)
    made = logged_model(client, where, stage, hash_dir(models / stage), run_id)
    # The same checkpoint can be made twice, as after a kill: its parameters are written once.
    written = client.get_logged_model(made).params
    fields = {field: getattr(manifest, field) for field in ("base", "data_hash", "price_date")}
    fields["git_commit"] = manifest.git_commit or client.get_run(run_id).data.tags.get(COMMIT)
    if new := {field: said(str(value or "none"), 500) for field, value in fields.items() if field not in written}:
        client.log_model_params(made, new)
    client.log_outputs(run_id, [LoggedModelOutput(made, 0)])


def _read_models(recorder: Recorder, run_id: str, *models: str) -> None:
    from mlflow.entities import LoggedModelInput

    recorder.client.log_inputs(run_id, models=[LoggedModelInput(one) for one in models])
