"""Tracking in MLflow: one parent run per flow run, a child per stage that ran, and the registry's address."""

import contextlib
import json
import logging
import math
import os
import posixpath
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from orchestra.config.schema import load_params
from orchestra.config.storage import Storage
from orchestra.errors import ConfigError, ServiceError, without_secrets
from orchestra.files.atomic import make_folder
from orchestra.system.artifacts import CONNECT_S, check_place, environment
from orchestra.system.backup import adapt_places
from orchestra.system.environment import quiet
from orchestra.system.runs import runs
from orchestra.system.storage import ARTIFACTS, MLFLOW, check_database
from orchestra.system.workspace import workspace_id
from orchestra.text import digest, one_line, plain
from tasks.platform.dvc import Hashes
from tasks.platform.ledger import bring_back, others_ledgers, reopen_requests
from tasks.platform.stage import send

EXPERIMENT = "orchestra"
FLOW_RUN = "orchestra.flow_run_id"
"""Tag by which a retried flow run finds its MLflow run again."""
STAGE, PARENT = "orchestra.stage", "mlflow.parentRunId"
ASKED_TAG = "orchestra.asked_by"
"""The schedule, request or run that asked for a flow run."""
ERROR, NOTHING_DONE, WORKSPACE = "orchestra.error", "orchestra.nothing_done", "orchestra.workspace"
KIND, TRAINING = "mlflow.experimentKind", "custom_model_development"
"""With it MLflow opens on the table of runs; otherwise it guesses, and may open on an empty page of traces."""
HEADLINE = {
    "solved": "accuracy",
    "usd an example": "cost_usd",
    "seconds an example": "latency_s",
    "utility": "utility",
    "preference": "preference",
    "valid turns": "valid",
    "calls an example": "calls",
    "dollars to the strongest": "cost_ratio",
}
"""The metrics that a stakeholder reads first, by the trained model's name for them in the evaluation."""
NOTE = "mlflow.note.content"  # The description in MLflow, in Markdown.
LONGEST_KEY, LONGEST_VALUE, LONGEST_NAME = 250, 4000, 200
"""Characters of a name of a tag, parameter or metric (MLflow's limit), of a value, and of a name for people."""
DATABASES = ("postgresql", "mysql", "mssql")
"""How the address of a database begins that machines share."""


def tracking_uri(root: Path) -> str:
    """MLFLOW_TRACKING_URI where it is set (a cluster's server), otherwise the workspace's own database."""
    return os.environ.get("MLFLOW_TRACKING_URI") or own_uri(root)


def own_uri(root: Path) -> str:
    """The workspace's own database as an address."""
    return f"sqlite:///{root.resolve()}/{MLFLOW}"


def own_database(root: Path) -> bool:
    """Whether MLflow is the workspace's own database, which no other machine reads."""
    return tracking_uri(root).startswith("sqlite:")


def connect(root: Path) -> Any:
    """An `MlflowClient` for tracking and registry, its database made if need be; costs seconds to import.

    The own database of a workspace that was moved or copied is adapted first. Raises `DataError` where it is damaged,
    `ServiceError` where the team's does not answer.
    """
    quiet()
    make_folder(root / ".state")
    if (uri := tracking_uri(root)).startswith("sqlite:"):
        check_database(root, MLFLOW, beside=True)
        if uri == own_uri(root):
            adapt_places(root)
    elif uri.startswith(DATABASES):
        _check_team_database(uri)
    import mlflow
    from mlflow.tracking import MlflowClient

    os.environ.update(environment(storage_of(root)))
    # It tells about every table that it makes.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It raises each error of its database, and logs the same with a traceback.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _check_team_database(uri: str) -> None:
    """MLflow would ask a database that does not answer for two minutes; the line names no password."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    where, fix = "MLFLOW_TRACKING_URI", "see that it runs and takes this user; then the same command again"
    try:
        more = {"connect_timeout": CONNECT_S} if uri.startswith("postgresql") else {}
        engine = create_engine(uri, connect_args=more)
        with contextlib.closing(engine.connect()):
            pass
        engine.dispose()
    except ModuleNotFoundError as error:
        fix = '.venv/bin/uv pip install -e ".[postgres]"'
        raise ConfigError(f"{error.name} is not installed", where=where, fix=fix) from None
    except SQLAlchemyError as error:
        what = one_line(str(getattr(error, "orig", None) or error).replace(urlsplit(uri).password or "\0", "…"))
        raise ServiceError(f"MLflow's database does not answer: {what}", where=where, fix=fix) from None


def storage_of(root: Path) -> Storage:
    """The section `storage` of the workspace's params.yaml; local where there is no such file."""
    file = root / "params.yaml"
    return load_params(file).storage if file.is_file() else Storage()


def experiment(client: Any, root: Path, name: str = EXPERIMENT) -> str:
    """Id of the experiment, made if need be; it keeps the place of its artifacts.

    They lie in the store of params.yaml; without one in `ARTIFACTS`, or where a server keeps them. Raises
    `OrchestraError` of one line, within seconds, where a store on S3 does not answer.
    """
    found, storage = client.get_experiment_by_name(name), storage_of(root)
    if found is not None:
        check_place(str(found.artifact_location), storage)
        if KIND not in found.tags:
            client.set_experiment_tag(found.experiment_id, KIND, TRAINING)
        return str(found.experiment_id)
    location = _place(root, storage)
    if location is not None:
        check_place(location, storage)
    return str(client.create_experiment(name, artifact_location=location, tags={KIND: TRAINING}))


def _place(root: Path, storage: Storage) -> str | None:
    """Where a new experiment keeps its artifacts; None: where the server of MLflow does."""
    if storage.shared:
        return storage.artifacts
    if own_database(root):
        return (root.resolve() / ARTIFACTS).as_uri()
    if not tracking_uri(root).startswith("http"):
        what = "MLflow's database is one that machines share, and its artifacts would lie on this machine"
        raise ConfigError(what, where="MLFLOW_TRACKING_URI", fix="storage.url: s3://BUCKET/FOLDER in params.yaml")
    return None


def allowed_key(text: str) -> str:
    """The text as the name of a tag, parameter or metric: MLflow takes letters, digits, `_-. /` and no odd path."""
    parts = "".join(one if one.isalnum() or one in "_-. /" else "_" for one in text).split("/")
    key = "/".join("_" * len(part) if part in (".", "..") else part for part in parts if part)
    if key.startswith(".."):
        key = f"__{key[2:]}"
    if len(key) > LONGEST_KEY:
        # Two that differ only in their ends stay two.
        key = f"{key[: LONGEST_KEY - 17]}-{digest(text)}"
    return key if key and posixpath.normpath(key) == key else f"_{digest(text)}"


def allowed_model(text: str) -> str:
    """The text as the name of a LoggedModel."""
    return re.sub(r"[/:.%\"']", "_", one_line(text))[:LONGEST_NAME] or "model"


def said(text: str, longest: int = LONGEST_VALUE) -> str:
    """A text of outside as a value: without secrets, what would steer a terminal spelled out, cut."""
    told = plain(without_secrets(text))
    return told if len(told) <= longest else f"{told[: longest - 1]}…"


def param(key: str, value: Any) -> Any:
    """A `Param` that MLflow takes."""
    from mlflow.entities import Param

    return Param(allowed_key(key), said(str(value), 500))


@dataclass(frozen=True)
class MeasuredModel:
    """Whom a metric is about: a LoggedModel of MLflow, and the dataset that it was measured on."""

    model_id: str
    dataset: str
    digest: str
    """Of the dataset."""


NOTHING: Mapping[str, Any] = MappingProxyType({})


def log_all(
    client: Any, run_id: str, *, metrics: Mapping[str, float] = NOTHING, params: Mapping[str, Any] = NOTHING,
    tags: Mapping[str, str] = NOTHING, about: Mapping[str, MeasuredModel] = NOTHING,
) -> None:  # fmt: skip
    """Everything about a run that is known at once.

    `about`: whom metrics are about, by the first two parts of their names; they stand on the models' own pages too.
    """
    from mlflow.entities import Metric, RunTag

    now_ms, numbers = int(time.time() * 1000), []
    for key, value in metrics.items():
        model = about.get(".".join(key.split(".")[:2]))
        whose = () if model is None else (model.model_id, model.dataset, model.digest, run_id)
        numbers.append(Metric(allowed_key(key), value, now_ms, 0, *whose))
    told = {one.key: one for one in (param(key, value) for key, value in params.items())}
    send(client, run_id, numbers, [*told.values()], [RunTag(allowed_key(key), said(tags[key])) for key in tags])


@dataclass
class Recorder:
    """Writes one flow run's record."""

    root: Path
    client: Any
    experiment_id: str
    parent: str
    """MLflow run id of the flow run."""

    @classmethod
    def open(cls, root: Path, flow_run_id: str, name: str) -> "Recorder":
        """The record of a flow run: found again when it is retried, otherwise made; runs that died are closed."""
        client = connect(root)
        where = experiment(client, root)
        found = client.search_runs([where], f"tags.`{FLOW_RUN}` = '{flow_run_id}'", max_results=1)
        if found:
            parent = str(found[0].info.run_id)
            bring_back(root, client, parent)
            client.update_run(parent, status="RUNNING")
        else:
            called = said(name, LONGEST_NAME)
            tags = {FLOW_RUN: flow_run_id, WORKSPACE: workspace_id(root)}
            parent = str(client.create_run(where, tags=tags, run_name=called).info.run_id)
        recorder = cls(root, client, where, parent)
        recorder._close_stale()
        reopen_requests(root)  # It counts what the ledgers of runs that are gone hold.
        for run_id, file in others_ledgers(root, parent):
            recorder._put_away(run_id, file)
        return recorder

    def _close_stale(self) -> None:
        """The workspace's lock is ours, so any other run of it that says RUNNING was killed; those of containers that
        are gone have a record here."""
        ours, known = workspace_id(self.root), {one.mlflow_run for one in runs(self.root)}
        for run in self.client.search_runs([self.experiment_id], "attributes.status = 'RUNNING'"):
            tags, run_id = run.data.tags, run.info.run_id
            if run_id != self.parent and (tags.get(WORKSPACE) == ours or tags.get(PARENT, run_id) in known):
                self.client.set_tag(run_id, "orchestra.closed", "its process was killed")
                self.client.set_terminated(run_id, status="KILLED")

    def _put_away(self, run_id: str, ledger: Path) -> None:
        """A ledger into the record of its run, also of one that was killed; it stays where the record is gone."""
        from mlflow.exceptions import MlflowException

        with contextlib.suppress(MlflowException):
            self.artifacts(run_id, [ledger])
            ledger.unlink()

    def child(self, stage: str) -> str:
        """A new run below the parent."""
        called = said(stage, LONGEST_NAME)
        tags = {PARENT: self.parent, STAGE: called, WORKSPACE: workspace_id(self.root)}
        return str(self.client.create_run(self.experiment_id, tags=tags, run_name=called).info.run_id)

    def environment(self, run_id: str) -> dict[str, str]:
        """What a stage needs to log to that run."""
        return {"MLFLOW_TRACKING_URI": tracking_uri(self.root), "MLFLOW_RUN_ID": run_id}

    def finish(self, run_id: str, error: str = "") -> None:
        """Close a run; one that an earlier attempt left with an error and that is well now says nothing of it."""
        if error:
            self.client.set_tag(run_id, ERROR, said(error))
        elif ERROR in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, ERROR)
        self.client.set_terminated(run_id, status="FAILED" if error else "FINISHED")

    def headline(self, params: Mapping[str, Any], verdict: str, policy: str) -> None:
        """Put on the parent what one compares runs by: the parameters, eight figures of the policy, and the verdict."""
        run = self.client.get_run(self.parent)
        told = {key: value for key, value in flatten(params) if allowed_key(key) not in run.data.params}
        figures = read_metrics(self.root / "reports" / "evaluate.json")
        # MLflow shows what has a slash in a section of its own.
        found = {f"headline/{name}": figures.get(f"{policy}.{key}") for name, key in HEADLINE.items()}
        known = {name: value for name, value in found.items() if value not in (None, run.data.metrics.get(name))}
        log_all(self.client, self.parent, metrics=known, params=told)
        name = run.info.run_name.partition(" · ")[0]
        self.client.set_tag(self.parent, "mlflow.runName", said(f"{name} · {verdict}", LONGEST_NAME))

    def nothing_done(self) -> None:
        """Mark the parent as one that found nothing to do; this workspace's before it leaves the list of runs."""
        workspace = workspace_id(self.root)
        for run in self.client.search_runs([self.experiment_id], f"tags.`{NOTHING_DONE}` = '{workspace}'"):
            if run.info.run_id != self.parent:
                self.client.delete_run(run.info.run_id)
        self.tag(NOTHING_DONE, workspace)

    def tag(self, key: str, value: str) -> None:
        """A tag of the parent."""
        self.client.set_tag(self.parent, allowed_key(key), said(value))

    def tagged(self, key: str) -> str:
        """A tag of the parent, also from an earlier attempt of its flow run; empty when it has none."""
        return str(self.client.get_run(self.parent).data.tags.get(allowed_key(key), ""))

    def stage_done(
        self, stage: str, run_id: str | None, found: Hashes, about: Mapping[str, MeasuredModel] = NOTHING
    ) -> None:
        """Hashes as tags, parameters and metrics: on the child where there is one; metrics on the parent always.

        `about` says whom the child's metrics are about, by the first two parts of their names.
        """
        metrics = read_metrics(self.root / "reports" / f"{stage}.json", stage)
        made = {f"out.{path}": md5 for path, md5 in found.outputs.items()}
        log_all(self.client, self.parent, metrics=metrics, tags=made)
        if run_id is not None:
            tags = {f"in.{path}": md5 for path, md5 in found.inputs.items()} | made
            log_all(self.client, run_id, metrics=metrics, params=dict(flatten(found.params)), tags=tags, about=about)

    def artifacts(self, run_id: str, files: Iterable[Path]) -> None:
        """Copy those files that exist."""
        for file in files:
            if file.is_file():
                self.client.log_artifact(run_id, str(file))

    def metrics(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Numbers of any run."""
        log_all(self.client, run_id, metrics=metrics)


def read_metrics(file: Path, prefix: str = "") -> dict[str, float]:
    """The finite numbers of a metrics file by dotted key, after `prefix`; empty when there is no such file."""
    if not file.is_file():
        return {}
    return {
        key: float(value)
        for key, value in flatten(json.loads(file.read_text(encoding="utf-8")), prefix)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Leaves of nested mappings under dotted names that MLflow allows; lists stay whole."""
    if not isinstance(value, dict):
        return [(prefix or "value", value)]
    pairs = []
    for key, inner in value.items():
        name = "".join(ch if ch.isalnum() or ch in "_-. /" else "_" for ch in str(key))
        pairs += flatten(inner, f"{prefix}.{name}" if prefix else name)
    return pairs
