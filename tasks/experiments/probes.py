"""The probes of one trained model, a process of `orchestra learn`: `python -m tasks.experiments.probes COUNT`."""

import sys
from pathlib import Path

from orchestra.errors import ConfigError
from orchestra.evaluation.probes.run import run_probes
from orchestra.evaluation.report import TRAINED
from orchestra.tools.toolkit import Toolkit
from tasks.evaluate import checkpoint, heldout, on_progress, players
from tasks.experiments.sealed import wording
from tasks.platform.stage import Stage, run

OUTPUT = "reports/probes.json"
REPOSITORY = Path(__file__).resolve().parents[2]
"""The folder that a run is in links to the code, and holds no tests."""


def main(stage: Stage) -> None:
    """models/grpo, data/validated/heldout.jsonl → reports/probes.json; continues after a kill."""
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        raise ConfigError(
            "the number of examples is missing",
            where="tasks.experiments.probes",
            fix="python -m tasks.experiments.probes 200",
        )
    params, root = stage.params, stage.root
    toolkit = Toolkit.from_params(params, root)
    with players(stage) as build:
        results = run_probes(
            checkpoint(TRAINED, root / "models" / TRAINED, toolkit.catalogue.policy_price, build),
            heldout(stage),
            toolkit,
            params.rollout,
            price_spread=params.synthesize.price_spread,
            seed=params.evaluate.seed,
            count=int(sys.argv[1]),
            file=stage.work_dir() / "episodes.jsonl",
            on_progress=on_progress(stage),
            wording=wording(REPOSITORY, params),
        )
    stage.write_text(OUTPUT, results.model_dump_json() + "\n")
    stage.say(f"{len(results.trials)} trials")


if __name__ == "__main__":
    run("probes", main)
