"""The model registry: versions of the orchestrator in MLflow, their aliases, and the checkpoints kept for them."""

import subprocess
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec, TypeVar

from orchestra.errors import DataError, ServiceError
from orchestra.files.checkpoint import hash_dir, keep, verify_kept
from orchestra.system.storage import storage_failure
from orchestra.system.workspace import Screen
from orchestra.types import Record
from tasks.platform.aliases import listeners, move
from tasks.platform.tracking import connect, experiment, own_database

P = ParamSpec("P")
T = TypeVar("T")

screen = Screen()
UNTOLD = "warning: webhooks ({}) are not told that {}: MLflow's server did not move the alias (orchestra up)"
CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
CHECKPOINT = "checkpoint_hash"
PROMOTED = "promoted"
"""Tag of a version that the gate once made champion."""
ROLLED_BACK = "rolled_back"
"""Tag of a version that was taken out of service, the number of the one that serves instead: only a person brings it
back."""
CANARY = "rolled_back.canary"
"""Tag of such a version: what its canary found. Without it, a person took the version out."""
DECISION = "decision"
"""Tag of a version: what the gate, a person or its canary last decided about it."""
DECIDED = "decision.run"
"""Tag of a version: the MLflow run of that decision; empty where no run decided."""
COMMIT = "mlflow.source.git.commit"
"""Tag of a run, MLflow's own: the commit of the code when it began."""
CODE = ("orchestra", "tasks", "data")
"""Where a file that git does not know decides a result; what the stages write there is ignored by git."""
ARTIFACT = "checkpoint"
"""The folder of a version's files in the artifacts of its run, on a server."""
STORE = ".state/models"
"""Kept checkpoints by hash, out of reach of `dvc repro`, which deletes models/grpo before it makes a new one."""
GONE = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's error code for what it does not have."""
UNNAMED = (GONE, "INVALID_PARAMETER_VALUE")
"""Its codes for an alias that names nothing: there is no such model, or the model has no such alias."""


class ModelVersion(Record):
    """One registered version."""

    number: int
    tags: dict[str, str]
    folder: Path
    """Its kept checkpoint; not checked yet."""
    made_ms: int = 0
    """When it was registered, milliseconds since 1970, UTC."""
    run_id: str = ""
    """The MLflow run that registered it; empty where none did."""
    shared: bool = False
    """Whether its files are an artifact of that run, which other machines can read."""

    @property
    def decided_in(self) -> str:
        """The MLflow run of its last decision; empty where there is none."""
        return self.tags.get(DECIDED, self.run_id)

    @property
    def checkpoint_hash(self) -> str:
        """Empty for a version that somebody registered by hand: no checkpoint is known of it."""
        return self.tags.get(CHECKPOINT, "")

    def verified(self) -> Path:
        """The folder, after its contents were checked against the hash; `DataError` when lost or damaged."""
        return verify_kept(self.folder)

    @property
    def lost(self) -> str:
        """Why its kept checkpoint cannot be used any more; empty when it can."""
        try:
            self.verified()
        except DataError as error:
            return error.what
        return ""

    @property
    def taken_out(self) -> str:
        """By whom it was taken out of service, and why; empty where it was not."""
        if ROLLED_BACK not in self.tags:
            return ""
        found = self.tags.get(CANARY)
        return f"{'a person' if found is None else f'its canary ({found})'} took this version out of service"


LIBRARIES = {"mlflow", "requests", "urllib3", "botocore", "boto3", "s3transfer"}
"""Whose errors are those of the registry, its server and the store of its artifacts."""


def _named(action: Callable[P, T]) -> Callable[P, T]:
    """MLflow's own errors, and those of what it speaks to, as one line for a person."""

    @wraps(action)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return action(*args, **kwargs)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in LIBRARIES:
                raise
            # SQL and its values follow the first line.
            what = f"{action.__name__} failed: {(str(error).splitlines() or [type(error).__name__])[0]}"
            fix = "see that MLflow's server answers, and orchestra doctor; then the same command again"
            failure = ServiceError(what, where="the model registry", fix=fix)
            raise storage_failure(error) or failure from error

    return wrapped


class Registry:
    """Versions of one registered model."""

    def __init__(self, root: Path, model_name: str) -> None:
        self.root, self.model_name = root, model_name
        self.client: Any = connect(root)

    @_named
    def at(self, alias: str) -> ModelVersion | None:
        """The version that an alias names; None when nothing bears it."""
        found = known(lambda name: self.client.get_model_version_by_alias(self.model_name, name), alias, UNNAMED)
        if found is None:
            # MLflow has the same codes for a workspace that there is not, which this query raises.
            self.client.search_registered_models(self._filter)
            return None
        return self._version(found)

    @_named
    def of(self, checkpoint_hash: str) -> ModelVersion | None:
        """The version made of that checkpoint; None when there is none."""
        return next((version for version in self.versions() if version.checkpoint_hash == checkpoint_hash), None)

    def version(self, number: int) -> ModelVersion | None:
        """The version of that number; None when there is none."""
        return next((version for version in self.versions() if version.number == number), None)

    @_named
    def versions(self) -> list[ModelVersion]:
        """Every version that `promote` registered; one that somebody registered by hand is left out."""
        found = self.client.search_model_versions(self._filter, max_results=10_000)
        return [version for version in map(self._version, found) if version.checkpoint_hash]

    @_named
    def add(self, folder: Path, checkpoint_hash: str, tags: Mapping[str, str], run_id: str | None) -> ModelVersion:
        """The version of a checkpoint: the one there is, or a new one over a kept copy of `folder`."""
        kept = keep(folder, self.root / STORE)
        found = self.of(checkpoint_hash)
        if found is not None:
            return found
        if not self.client.search_registered_models(self._filter):
            self.client.create_registered_model(self.model_name)
        source, run_id = self._upload(kept, run_id)
        tagged = {CHECKPOINT: checkpoint_hash, **tags}
        version = self.client.create_model_version(self.model_name, source=source, run_id=run_id, tags=tagged)
        return self._version(version).model_copy(update={"tags": tagged})

    def _upload(self, kept: Path, run_id: str | None) -> tuple[str, str | None]:
        """Where the version's files are, and its run: this folder, or on a server an artifact that others can read.

        The version is registered after it: an upload that was cut off is made again.
        """
        if own_database(self.root):
            return kept.resolve().as_uri(), run_id
        if run_id is None:
            run_id = self.client.create_run(experiment(self.client, self.root), run_name="promote").info.run_id
            self.client.set_terminated(run_id)
        self.client.log_artifacts(run_id, str(kept), ARTIFACT)
        return f"{self.client.get_run(run_id).info.artifact_uri}/{ARTIFACT}", run_id

    @_named
    def fetch(self, version: ModelVersion) -> ModelVersion:
        """The version, its files here too: they are downloaded where another machine registered it.

        A download that is not the checkpoint of that hash is thrown away; `verified` then says that it is gone.
        """
        if version.shared and not version.folder.is_dir():
            store = self.root / STORE
            store.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=store, prefix=".download-") as folder:
                found = Path(self.client.download_artifacts(version.run_id, ARTIFACT, folder))
                if hash_dir(found) == version.checkpoint_hash:
                    keep(found, store)
        return version

    @_named
    def point(self, alias: str, version: ModelVersion) -> bool:
        """Let an alias name a version; whether that changed anything.

        A server tells webhooks of it: the team's, or that of `orchestra up`.
        """
        now = self.at(alias)
        if now is not None and now.number == version.number:
            return False
        if not move(self.root, self.model_name, alias, version.number):
            self.client.set_registered_model_alias(self.model_name, alias, str(version.number))
            if untold := listeners(self.root):
                screen(UNTOLD.format(", ".join(untold), f"{alias} is version {version.number}"))
        return True

    @_named
    def tag(self, version: ModelVersion, tags: Mapping[str, str]) -> None:
        """Set the tags that differ."""
        for key, value in tags.items():
            if version.tags.get(key) != value:
                self.client.set_model_version_tag(self.model_name, str(version.number), key, value)

    @_named
    def describe(self, number: int, text: str) -> None:
        """The description that MLflow shows beside a version, Markdown."""
        self.client.update_model_version(self.model_name, str(number), text)

    @_named
    def description(self, number: int) -> str:
        """That description; empty where there is none."""
        return str(self.client.get_model_version(self.model_name, str(number)).description or "")

    @_named
    def untag(self, version: ModelVersion, *keys: str) -> None:
        for key in keys:
            if key in version.tags:
                self.client.delete_model_version_tag(self.model_name, str(version.number), key)

    @property
    def _filter(self) -> str:
        return f"name = '{self.model_name}'"

    def _version(self, version: Any) -> ModelVersion:
        tags = dict(version.tags)
        return ModelVersion(
            number=int(version.version),
            tags=tags,
            folder=self.root / STORE / tags.get(CHECKPOINT, "none"),
            made_ms=int(version.creation_timestamp or 0),
            run_id=version.run_id or "",
            shared=bool(version.run_id) and str(version.source).endswith(f"/{ARTIFACT}"),
        )


def known(get: Callable[[str], T], name: str, absent: Collection[str] = (GONE,)) -> T | None:
    """What MLflow's client gets by that name; None where its error is one of `absent`: removed from MLflow for good."""
    from mlflow.exceptions import MlflowException

    try:
        return get(name)
    except MlflowException as error:
        if error.error_code not in absent:
            raise
        return None


def git_commit(root: Path) -> str:
    """The commit checked out, `+` after it when files differ from it or code is not in it; empty without git."""
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        added = _git(root, "ls-files", "--others", "--exclude-standard", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed or added else "")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
