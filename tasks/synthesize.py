"""Stage synthesize: examples, the corpus their searches read and the answers their experts know."""

from collections import Counter

from orchestra.synthesis.dataset.by_model import written_first
from orchestra.synthesis.dataset.shards import CARD
from orchestra.synthesis.dataset.workers import synthesize
from orchestra.synthesis.filters.solver import is_billed
from orchestra.system.environment import cores
from orchestra.tools.toolkit import Toolkit
from tasks.platform.ledger import open_budget, tell
from tasks.platform.stage import Stage, run

OUTPUT = "data/generated"


def main(stage: Stage) -> None:
    """Write data/generated, whole or not at all."""
    budget = open_budget(stage) if _costs_money(stage) else None
    params, out = written_first(stage.params, stage.root, stage.say, budget), stage.root / OUTPUT
    config = params.synthesize
    meter = stage.progress(config.train_examples + config.heldout_examples, "examples")
    made = synthesize(params, stage.root, out, workers=cores(), on_progress=meter, say=stage.say, run=budget)
    stage.log_metrics(
        {
            "train_examples": made["counts"]["train"],
            "heldout_examples": made["counts"]["heldout"],
            "documents": made["documents"],
            "extra_examples": sum(card["examples"] for card in made.get("extra", {}).values()),
            "dropped": sum(made["dropped"].values()),
            "unanswerable": sum(made["unanswerable_topic_questions"].values()),
        }
    )
    stage.log_artifact(out / CARD)
    if budget is not None:
        tell(stage, budget)
    count = Counter(made["counts"])
    for card in made.get("extra", {}).values():
        count[card["split"]] += card["examples"]
    stage.say(f"{count['train']} training and {count['heldout']} held-out examples")


def _costs_money(stage: Stage) -> bool:
    """Whether a model writes examples, or the solver's tries at extra ones are billed."""
    config = stage.params.synthesize
    if config.generator != "rules":
        return True
    return bool(config.extra) and is_billed(config.solver, Toolkit.from_params(stage.params, stage.root))


if __name__ == "__main__":
    run("synthesize", main)
