"""Stores the evidence about versions in the workspace and in MLflow, for the comparison with the next candidate; and
their evaluated episodes in short, for the comparison with those that they serve."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from orchestra.evaluation.report import EVALUATION, TRAINED, read_comparison
from orchestra.files import atomic
from orchestra.files.jsonl import read_jsonl, stream_jsonl
from orchestra.promotion.evidence import Evidence
from orchestra.types import Component, Episode, Example, Record, ToolCall, Turn, Usage, Verdict
from tasks.platform.registry import ModelVersion

EVIDENCE = "evidence"
"""Tag of a version: what the gate read of it, as JSON, without the single results."""
ARTIFACT = "decision/evidence.json"
"""The whole of it, in the run that judged the version."""
REFERENCE = "decision/reference.jsonl"
"""The evaluated episodes in short, in the same run."""
KEPT = ".state/evidence"
"""The whole of it in the workspace, by checkpoint and benchmark version."""
PREFIX = 16
"""Characters of the checkpoint's hash with which a file's name begins."""
HELDOUT = "data/validated/heldout.jsonl"


class ReferenceEpisode(Record):
    """An evaluated episode with its question; of its texts only the answer is kept."""

    question: str
    episode: Episode
    domain: bool | None = None
    """Whether its example is a domain's task; None: an earlier version of this program kept it."""

    @property
    def of_domain(self) -> bool:
        """The same; of one that does not say, whether it called a domain's tool."""
        charges = self.episode.charges
        return any(one.component is Component.DOMAIN for one in charges) if self.domain is None else self.domain


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
    if run_id := version.decided_in:
        # Where the record cannot be reached, the version is measured again: that costs time and decides nothing.
        with contextlib.suppress(Exception), TemporaryDirectory() as folder:
            found = read(Path(client.download_artifacts(run_id, ARTIFACT, folder)).read_text(encoding="utf-8"))
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
    return root / KEPT / f"{checkpoint_hash[:PREFIX]}-{data_hash[:16]}.json"


def keep_reference(
    root: Path,
    checkpoint_hash: str,
    examples: Mapping[str, Example],
    episodes: Sequence[Episode],
    client: Any = None,
    run_id: str | None = None,
) -> None:
    """Keep a checkpoint's evaluated episodes in short: `reports/` holds those of the last candidate only.

    `run_id`: the MLflow run that keeps them too, for other machines.
    """
    found = (_reference_of(examples[one.example_id], _short(one)) for one in episodes)
    text = "".join(one.model_dump_json(exclude_defaults=True) + "\n" for one in found)
    atomic.write_text(_reference(root, checkpoint_hash), text)
    if run_id is not None:
        client.log_text(run_id, text, REFERENCE)


def fetched_reference(root: Path, client: Any, version: ModelVersion) -> list[ReferenceEpisode]:
    """What another machine kept of a version in MLflow, kept here from now on; none where there is none."""
    with contextlib.suppress(Exception), TemporaryDirectory() as folder:
        there = Path(client.download_artifacts(version.decided_in, REFERENCE, folder))
        found = read_jsonl(there, ReferenceEpisode)
        atomic.write_text(_reference(root, version.checkpoint_hash), there.read_text(encoding="utf-8"))
        return found
    return []


def reference(root: Path, checkpoint_hash: str) -> list[ReferenceEpisode]:
    """The evaluated episodes of a checkpoint; none where they were not kept and the last evaluation is of another."""
    file = _reference(root, checkpoint_hash)
    if file.is_file():
        return read_jsonl(file, ReferenceEpisode, fix=f"rm {file}")
    comparison, episodes = (root / EVALUATION / name for name in ("comparison.json", "episodes.jsonl"))
    if not all(one.is_file() for one in (comparison, episodes, root / HELDOUT)):
        return []
    if read_comparison(comparison).checkpoints.get(TRAINED) != checkpoint_hash:
        return []
    played = {one.example_id: one for one in read_jsonl(episodes, Episode) if one.policy == TRAINED}
    asked = {
        one.id: _reference_of(one, played[one.id]) for one in stream_jsonl(root / HELDOUT, Example) if one.id in played
    }
    return [asked[key] for key in played if key in asked]


def _reference_of(example: Example, episode: Episode) -> ReferenceEpisode:
    return ReferenceEpisode(question=example.instruction, episode=episode, domain=example.domain is not None)


def _short(episode: Episode) -> Episode:
    """What the monitor compares: calls, charges, whether turns parse, the answer and its verdict."""
    turns = tuple(
        Turn(
            ids=(),
            text="",
            call=None if one.call is None else ToolCall(name=one.call.name),
            parse_error=one.parse_error,
            charges=tuple(each.model_copy(update={"usage": Usage()}) for each in one.charges),
        )
        for one in episode.turns
    )
    verdict = None if episode.verdict is None else Verdict(solved=episode.verdict.solved, why="")
    return episode.model_copy(update={"prompt_ids": (), "turns": turns, "verdict": verdict})


def _reference(root: Path, checkpoint_hash: str) -> Path:
    return root / KEPT / f"{checkpoint_hash[:PREFIX]}.episodes.jsonl"
