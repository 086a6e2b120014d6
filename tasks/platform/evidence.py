"""Stores the evidence about versions in the workspace and in MLflow, for the comparison with the next candidate."""

import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from orchestra.files import atomic
from orchestra.promotion.evidence import Evidence
from tasks.platform.registry import ModelVersion

EVIDENCE = "evidence"
"""Tag of a version: what the gate read of it, as JSON, without the single results."""
ARTIFACT = "decision/evidence.json"
"""The whole of it, in the run that registered the version."""
KEPT = ".state/evidence"
"""The whole of it in the workspace, by checkpoint and benchmark version."""


def keep(root: Path, found: Evidence, client: Any, run_id: str | None) -> None:
    """Keep it in the workspace and, for other machines, in that run."""
    text = found.model_dump_json() + "\n"
    atomic.write_text(_file(root, found.checkpoint_hash, found.data_hash), text)
    if run_id is not None:
        client.log_text(run_id, text, ARTIFACT)


def kept(root: Path, client: Any, version: ModelVersion, data_hash: str) -> Evidence | None:
    """The evidence of a version on that benchmark version; None when it is nowhere, or of another."""
    file = _file(root, version.checkpoint_hash, data_hash)
    if file.is_file():
        return read(file.read_text(encoding="utf-8"))
    if version.run_id:
        # Where the record cannot be reached, the version is measured again: that costs time and decides nothing.
        with contextlib.suppress(Exception), TemporaryDirectory() as folder:
            found = read(Path(client.download_artifacts(version.run_id, ARTIFACT, folder)).read_text(encoding="utf-8"))
            return found if found is not None and found.data_hash == data_hash else None
    return None


def judgement_file(root: Path, found: Evidence) -> Path:
    """Where the judgement of it lies while the aliases move, until all of it is told."""
    return _file(root, found.checkpoint_hash, found.data_hash).with_suffix(".judgement")


def read(text: str) -> Evidence | None:
    """Evidence from JSON; None when another version of this program wrote it, so that it is measured again."""
    try:
        return Evidence.model_validate_json(text)
    except ValidationError:
        return None


def _file(root: Path, checkpoint_hash: str, data_hash: str) -> Path:
    return root / KEPT / f"{checkpoint_hash[:16]}-{data_hash[:16]}.json"
