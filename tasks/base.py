"""Makes the shipped tiny base anew: `make base`. A longer SFT on varied worlds, once; the pipeline starts from it.

It teaches what a pre-trained model brings along: the turn format, copying names and numbers, reading the tool table,
comparing prices and seconds, heeding a stated preference. Its teacher has no favourite: which expert is worth its
price is left to GRPO.
"""

import random
import tempfile
from pathlib import Path

from orchestra.config import Habits, Params
from orchestra.jsonl import write_jsonl
from orchestra.rollout.loop import rollout
from orchestra.rollout.render import Codec
from orchestra.synthesis.generate import generate
from orchestra.synthesis.variation import vary
from orchestra.tools.toolkit import Toolkit
from orchestra.training.teacher import teacher_policy
from tasks._checkpoints import save_checkpoint
from tasks._stage import Stage, run

SEED = 1001
EXAMPLES, VARIED = 24_000, 0.5
TEACHER = Habits(bias=0.0, heed=0.8, careless=0.05)
SPREAD, EPOCHS, BATCH, LEARNING_RATE = 4.0, 1, 16, 0.002
TARGET = "models/base/embedded"


def recipe_of_base(params: Params) -> Params:
    """The parameters that the base is made with, on top of the profile's."""
    synthesize = params.synthesize.model_copy(
        update={"seed": SEED, "train_examples": EXAMPLES, "heldout_examples": 8, "price_spread": SPREAD}
    )
    sft = params.sft.model_copy(
        update={"seed": SEED, "teacher": TEACHER, "epochs": EPOCHS, "batch_size": BATCH, "learning_rate": LEARNING_RATE}
    )
    model = params.model.model_copy(update={"base": None})
    return params.model_copy(update={"synthesize": synthesize, "sft": sft, "model": model})


def main(stage: Stage) -> None:
    """Recipe folder → models/base/embedded; continues after a kill."""
    from orchestra.training.sft import new_model, train_sft

    stage.params = params = recipe_of_base(stage.params)
    codec = Codec.load(stage.root / params.model.recipe)
    maker = Toolkit.from_params(params, stage.root)
    meter = stage.progress(EXAMPLES, "examples")
    made = generate(params, maker, meter.advance)
    with tempfile.TemporaryDirectory() as folder:
        write_jsonl(Path(folder) / "corpus.jsonl", made.documents)
        write_jsonl(Path(folder) / "answers.jsonl", made.answers)
        toolkit = Toolkit.from_params(params, stage.root, Path(folder))
        rng = random.Random(SEED)
        examples = [vary(e, maker.catalogue, rng) if rng.random() < VARIED else e for e in made.examples["train"]]
        teacher = teacher_policy(toolkit.catalogue, TEACHER, SEED, codec.turn)
        price = toolkit.catalogue.policy_price
        meter = stage.progress(len(examples), "teacher episodes")
        episodes = rollout(examples, teacher, codec, toolkit, params.rollout, price=price, on_progress=meter.advance)
    kept = [episode for episode in episodes if episode.answer is not None]
    model = new_model(stage.root / params.model.recipe, SEED)
    meter = stage.progress(-(-len(kept) // BATCH) * EPOCHS, "base")

    def log(metrics: dict[str, float], step: int) -> None:
        meter(step, note=f"loss {metrics['train/loss']:.3f}")

    result = train_sft(model, codec, kept, params.sft, stage.work_dir(), log)
    save_checkpoint(stage, model, codec, TARGET, base=None, data=stage.root / params.model.recipe / "tokenizer.json")
    stage.say(f"loss {result.loss:.3f} after {result.steps} steps")


if __name__ == "__main__":
    run("base", main)
