"""Makes the shipped tiny base anew: `make base`. A longer SFT on varied worlds, once; the pipeline starts from it.

It teaches what a pre-trained model brings along: the turn format, copying names and numbers, reading the tool table,
comparing prices and seconds, heeding a stated preference. Its teacher has no favourite: which expert is worth its
price is left to GRPO.
"""

import random
import shutil
import tempfile
from pathlib import Path

from orchestra.config import Habits, Params
from orchestra.jsonl import write_jsonl
from orchestra.rollout.loop import rollout
from orchestra.rollout.render import Codec
from orchestra.synthesis.generate import generate
from orchestra.synthesis.variation import vary
from orchestra.tools.catalogue import Catalogue
from orchestra.tools.toolkit import Toolkit
from orchestra.training.teacher import teacher_policy
from orchestra.types import Episode, Example, ToolKind
from tasks._checkpoints import save_checkpoint
from tasks._stage import Meter, Stage, run
from tasks.synthesize import NAMES

SEED = 1001
EXAMPLES, FULL, VARIED = 16_000, 12_000, 0.5
"""Examples with short toolboxes, how many of them come again in full, and the share with invented experts."""
TEACHER = Habits(bias=0.0, heed=0.8, careless=0.05)
SPREAD, EPOCHS, BATCH, LEARNING_RATE = 4.0, 1, 16, 0.002
TARGET = "models/base/embedded"


def shorten(example: Example, catalogue: Catalogue) -> Example:
    """The example with only the tools it needs: copying is learned several times faster from short prompts."""
    needed = {call.name for call in example.verifier.golden_calls}
    if not needed:
        experts = [spec for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
        experts.sort(key=lambda spec: -catalogue.skill(spec.tool, example.topic or ""))
        needed = {spec.name for spec in experts[:2]}
    return example.model_copy(update={"toolbox": tuple(s for s in example.toolbox if s.name in needed)})


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
        short = [shorten(example, maker.catalogue) for example in examples]
        lessons = {
            "short": _episodes(stage, short, toolkit, codec),
            "full": _episodes(stage, examples[:FULL], toolkit, codec),
        }
    model, work = new_model(stage.root / params.model.recipe, SEED), stage.work_dir()
    for name, episodes in lessons.items():
        meter = stage.progress(-(-len(episodes) // BATCH) * EPOCHS, f"base, {name} toolboxes")

        def log(metrics: dict[str, float], step: int, meter: Meter = meter) -> None:
            meter(step, note=f"loss {metrics['train/loss']:.3f}")

        result = train_sft(model, codec, episodes, params.sft, work / name, log)
        stage.say(f"{name} toolboxes: loss {result.loss:.3f} after {result.steps} steps")
    data = stage.root / params.model.recipe / "tokenizer.json"
    names = "".join(f"{name}\n" for name in sorted(made.names))
    save_checkpoint(stage, model, codec, TARGET, base=None, data=data, files={NAMES: names})
    shutil.rmtree(work)


def _episodes(stage: Stage, examples: list[Example], toolkit: Toolkit, codec: Codec) -> list[Episode]:
    """The teacher's answered episodes."""
    teacher = teacher_policy(toolkit.catalogue, TEACHER, SEED, codec.turn)
    meter = stage.progress(len(examples), "teacher episodes")
    price = toolkit.catalogue.policy_price
    limits = stage.params.rollout
    made = rollout(examples, teacher, codec, toolkit, limits, price=price, on_progress=meter.advance)
    return [episode for episode in made if episode.answer is not None]


if __name__ == "__main__":
    run("base", main)
