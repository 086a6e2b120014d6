"""Results that the stages of `orchestra learn` left in their folders: outcomes, dollars, and one seed's result."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestra.evaluation.outcomes import Outcome, outcome
from orchestra.evaluation.probes.trials import ProbeResults
from orchestra.types import Episode, Example
from tasks.experiments.probes import OUTPUT
from tasks.experiments.store import Kept

EPISODES = "reports/evaluation/episodes.jsonl"


@dataclass
class Measured:
    """One evaluation's episodes without their tokens."""

    outcomes: dict[str, tuple[Outcome, ...]] = field(default_factory=dict)
    """By policy, in the order of the file."""
    simulated: bool = False


def read_episodes(folder: Path, examples: Mapping[str, Example]) -> Measured:
    """Line by line: the rules' episodes together would fill the memory."""
    found: dict[str, list[Outcome]] = {}
    simulated = False
    with (folder / EPISODES).open(encoding="utf-8") as file:
        for line in file:
            episode = Episode.model_validate_json(line)
            simulated = simulated or episode.simulated
            found.setdefault(episode.policy, []).append(outcome(episode, examples[episode.example_id]))
    return Measured({name: tuple(rows) for name, rows in found.items()}, simulated)


def read_probes(folder: Path) -> ProbeResults:
    return ProbeResults.model_validate_json((folder / OUTPUT).read_text(encoding="utf-8"))


def dollars(kept: Kept) -> float | None:
    """What a stage's episodes cost, simulated experts at their prices; of GRPO what its ledger booked for steps and
    checks. None without episodes."""
    if kept.stage == "sft":
        return float(json.loads((kept.folder / "reports/sft.json").read_text(encoding="utf-8"))["spent_usd"])
    if kept.stage == "grpo":
        rows = (kept.folder / "reports/grpo_steps.jsonl").read_text(encoding="utf-8").splitlines()
        return float(sum(value for row in rows for key, value in json.loads(row).items() if key.endswith("/spent_usd")))
    if kept.stage == "evaluate":
        # The ledger is in the episodes; only two of their keys are needed here.
        with (kept.folder / EPISODES).open(encoding="utf-8") as file:
            episodes = (json.loads(line) for line in file)
            return float(sum(float(c["cost_usd"]) for e in episodes for t in e["turns"] for c in t["charges"]))
    if kept.stage == "probes":
        return sum(trial.outcome.cost_usd for trial in read_probes(kept.folder).trials)
    return None
