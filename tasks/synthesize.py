"""Stage synthesize: examples, the corpus their searches read and the answers their experts know."""

import json

from orchestra.jsonl import write_jsonl
from orchestra.synthesis.generate import SPLITS, card, generate
from orchestra.synthesis.io import write_examples
from orchestra.tools.toolkit import Toolkit
from tasks._stage import Stage, run

OUTPUT = "data/generated"


def main(stage: Stage) -> None:
    """Write data/generated, whole or not at all."""
    config = stage.params.synthesize
    toolkit = Toolkit.from_params(stage.params, stage.root)
    meter = stage.progress(config.train_examples + config.heldout_examples, "examples")
    made = generate(stage.params, toolkit, meter.advance)
    summary = card(made, stage.params)
    with stage.write_dir(OUTPUT) as folder:
        for split in SPLITS:
            write_examples(folder / f"{split}.jsonl", made.examples[split])
        write_jsonl(folder / "corpus.jsonl", made.documents)
        write_jsonl(folder / "answers.jsonl", made.answers)
        (folder / "card.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    stage.log_metrics(
        {
            "train_examples": len(made.examples["train"]),
            "heldout_examples": len(made.examples["heldout"]),
            "documents": len(made.documents),
            "dropped": sum(made.dropped.values()),
            "unanswerable": sum(made.unanswerable.values()),
        }
    )
    stage.log_artifact(stage.root / OUTPUT / "card.json")
    stage.say(f"{len(made.examples['train'])} training and {len(made.examples['heldout'])} held-out examples")


if __name__ == "__main__":
    run("synthesize", main)
