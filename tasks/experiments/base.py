"""Makes the shipped tiny base again: `make base`. A longer SFT on varied worlds, once; the pipeline starts from it.

It teaches what a pre-trained model brings along: the turn format, copying names and numbers, reading the tool table,
comparing prices and seconds, saying a preference in a word, carrying out any choice that a thought names. Its teacher
has no favourite: GRPO finds out which choice suits which user. Every episode is told of names and numbers of its own
(`Disguise`), short toolboxes come first.
"""

import hashlib
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestra.config.schema import Habits, Params
from orchestra.files.jsonl import write_jsonl
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.render import Codec
from orchestra.synthesis.dataset.generate import generate
from orchestra.synthesis.preferences import grammar
from orchestra.synthesis.questions.anonymize import NAME, Disguise
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.toolkit import Toolkit
from orchestra.training.choices import SEARCH
from orchestra.training.resume import last_step
from orchestra.training.teacher import teacher_policy
from orchestra.types import Category, Episode, Example, ToolKind
from tasks.platform.checkpoints import save_checkpoint
from tasks.platform.stage import Meter, Stage, run

SEED = 1001
EXAMPLES, FEWER = 16_000, 12_000
"""Of one world; each world has a seed of its own."""
RENAMED, WISHES = 0.7, 0.7
"""Share of the examples whose experts are invented ones, and of those whose user states a preference."""
MIX = {
    Category.TOPIC: 0.28,
    Category.LOOKUP: 0.22,
    Category.CHANGE: 0.21,
    Category.TWO_HOP: 0.05,
    Category.FACT: 0.03,
    Category.ARITHMETIC: 0.11,
    Category.DIRECT: 0.1,
}
"""Reading the table of experts is what a small model learns last."""
TASKS = MIX | {Category.TOPIC: 0.2, Category.LOOKUP: 0.26, Category.CHANGE: 0.25}
"""More of what a model that reads the table still misses most."""
COPIES = {
    Category.TOPIC: 0.16,
    Category.LOOKUP: 0.27,
    Category.CHANGE: 0.24,
    Category.TWO_HOP: 0.05,
    Category.FACT: 0.02,
    Category.ARITHMETIC: 0.14,
    Category.DIRECT: 0.12,
}
"""What needs exact copies, once choices are carried out well."""
WIDE = {
    Category.TOPIC: 0.15,
    Category.LOOKUP: 0.13,
    Category.CHANGE: 0.12,
    Category.TWO_HOP: 0.05,
    Category.FACT: 0.03,
    Category.ARITHMETIC: 0.3,
    Category.DIRECT: 0.22,
}
"""Sums and everyday sentences in all their wordings."""
WIDER = {
    Category.TOPIC: 0.1,
    Category.LOOKUP: 0.1,
    Category.CHANGE: 0.08,
    Category.TWO_HOP: 0.03,
    Category.FACT: 0.02,
    Category.ARITHMETIC: 0.42,
    Category.DIRECT: 0.25,
}
"""More of them."""
EVOLVED = 0.4
"""Share of the domain examples that are evolved: two in one, a condition, what only the user knows."""
TEACHER = Habits(strongest=0.0, stop=0.5)
"""Every choice is as likely as any other, so that none is learned."""
SPREAD, BATCH, OPTIMIZER, LEARNING_RATE, GENTLER = 4.0, 16, "muon", 0.003, 0.002
PRECISION = "bfloat16"
"""1.4 times as fast as float32 on a processor that multiplies bfloat16 (AVX-512); the weights stay float32."""
TARGET = "models/base/embedded"


@dataclass(frozen=True)
class BaseLesson:
    """One training: the model goes on from the lesson before."""

    name: str
    worlds: range
    """Numbers of the worlds that it goes through."""
    mix: Mapping[Category, float]
    short: float = 0.0
    """Share of the examples whose toolbox holds little more than the tools that they need."""
    examples: int = EXAMPLES
    """Of one world."""
    rate: float = LEARNING_RATE


LESSONS = (
    BaseLesson("short", range(2), MIX, short=1.0),
    BaseLesson("full", range(5), MIX),
    BaseLesson("last", range(5, 7), TASKS),
    BaseLesson("more", range(7, 9), COPIES, examples=FEWER, rate=GENTLER),
    BaseLesson("again", range(9, 12), COPIES, examples=FEWER, rate=GENTLER),
    BaseLesson("wide", range(12, 14), WIDE, examples=FEWER, rate=GENTLER),
    BaseLesson("wider", range(14, 17), WIDER, short=0.6, examples=FEWER, rate=GENTLER),
)
"""From short toolboxes copying is learned several times faster, so they lead."""


@dataclass(frozen=True)
class LessonWorld:
    """Examples with the tools that know their answers."""

    examples: list[Example]
    toolkit: Toolkit
    seed: int


def shorten(example: Example, catalogue: Catalogue) -> Example:
    """The example with only the tools it needs; of the experts, the two best and the preferred one; a search."""
    needed = {call.name for call in example.verifier.golden_calls}
    if not needed:
        experts = [spec for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
        experts.sort(key=lambda spec: -catalogue.skill(spec.tool, example.topic or ""))
        words = example.preference.words
        needed = {spec.name for spec in experts[:2]} | {spec.name for spec in experts if spec.name in words}
        needed |= {spec.name for spec in example.toolbox if spec.tool == SEARCH and example.query}
    return example.model_copy(update={"toolbox": tuple(s for s in example.toolbox if s.name in needed)})


def recipe_of_base(
    params: Params,
    seed: int = SEED,
    wishes: Path | None = None,
    mix: Mapping[Category, float] = MIX,
    examples: int = EXAMPLES,
) -> Params:
    """The parameters that the base is made with, on top of the profile's; `wishes`: what its users say."""
    synthesize = params.synthesize.model_copy(
        update={
            "seed": seed,
            "train_examples": examples,
            "heldout_examples": 8,
            "price_spread": SPREAD,
            "mix": dict(mix),
            "evolved_share": EVOLVED,
            "renamed_share": RENAMED,
            "preference_share": WISHES,
            "preferences": str(wishes) if wishes else None,
        }
    )
    sft = params.sft.model_copy(
        update={"seed": SEED, "teacher": TEACHER, "epochs": 1, "batch_size": BATCH}
        | {"optimizer": OPTIMIZER, "learning_rate": LEARNING_RATE, "precision": PRECISION}
    )
    model = params.model.model_copy(update={"base": None})
    return params.model_copy(update={"synthesize": synthesize, "sft": sft, "model": model})


def main(stage: Stage) -> None:
    """Recipe folder → models/base/embedded; continues after a kill."""
    from orchestra.training.sft import new_model, train_sft

    stage.params = params = recipe_of_base(stage.params)
    codec = Codec.load(stage.root / params.model.recipe)
    taken = domain_names(stage.root / "data/domains", params.world.domains)
    model = new_model(stage.root / params.model.recipe, SEED)
    worlds: dict[int, LessonWorld] = {}
    with tempfile.TemporaryDirectory() as folder:
        for lesson in LESSONS:
            for number in lesson.worlds:
                worlds[number] = worlds.get(number) or world(stage, SEED + number, Path(folder) / str(number), lesson)
            disguise = Disguise(codec, random.Random(f"{SEED}/{lesson.name}"), taken)
            episodes = list(taught(stage, lesson, [worlds[number] for number in lesson.worlds], codec, disguise))
            # A Trainer prepares a model object once only: in a second training it would multiply in float32.
            model, before = new_model(stage.root / params.model.recipe, SEED), model
            model.load_state_dict(before.state_dict())
            work = stage.work_dir() / f"{lesson.name}-{digest(episodes)}"
            steps, begun = -(-len(episodes) // BATCH), last_step(work / "checkpoints")
            meter = stage.progress(steps, f"base, {lesson.name} lesson", begun)

            def log(metrics: dict[str, float], step: int, meter: Meter = meter) -> None:
                meter(step, note=f"loss {metrics['train/loss']:.3f}")

            settings = params.sft.model_copy(update={"learning_rate": lesson.rate})
            result = train_sft(model, codec, episodes, settings, work, log)
            stage.say(f"{lesson.name} lesson: loss {result.loss:.3f} after {result.steps} steps")
    data = stage.root / params.model.recipe / "tokenizer.json"
    save_checkpoint(stage, model, codec, TARGET, base=None, data=data)
    shutil.rmtree(stage.work_dir())


def world(stage: Stage, seed: int, folder: Path, lesson: BaseLesson) -> LessonWorld:
    """One world of examples."""
    folder.mkdir()
    wishes = folder / "wishes.jsonl"
    write_jsonl(wishes, grammar.lesson(seed))
    params = recipe_of_base(stage.params, seed, wishes, lesson.mix, lesson.examples)
    maker = Toolkit.from_params(params, stage.root)
    made = generate(params, maker, stage.progress(lesson.examples, f"examples of world {seed}").advance)
    write_jsonl(folder / "corpus.jsonl", made.documents)
    write_jsonl(folder / "answers.jsonl", made.answers)
    return LessonWorld(made.examples["train"], Toolkit.from_params(params, stage.root, folder), seed)


def taught(
    stage: Stage, lesson: BaseLesson, worlds: Iterable[LessonWorld], codec: Codec, disguise: Disguise
) -> Iterator[Episode]:
    """The teacher's answered episodes in every world, disguised."""
    for each in worlds:
        catalogue = each.toolkit.catalogue
        options = RolloutOptions(stage.params.rollout, catalogue.policy_price)
        examples = each.examples
        if lesson.short:
            rng = random.Random(f"{each.seed}/{lesson.name}")
            examples = [shorten(one, catalogue) if rng.random() < lesson.short else one for one in examples]
        teacher = teacher_policy(catalogue, TEACHER, each.seed * len(lesson.name), codec.turn)
        meter = stage.progress(len(examples), f"teacher episodes of world {each.seed}")
        for start in range(0, len(examples), 2000):
            part = examples[start : start + 2000]
            for episode in rollout(part, teacher, codec, each.toolkit, options):
                if episode.answer is not None:
                    yield disguise(episode)
            meter(start + len(part))


def domain_names(folder: Path, domains: Iterable[str]) -> frozenset[str]:
    """Every name in the entries of the domains: some entities are held out, and no base may know them."""
    files = [file for name in domains for file in sorted((folder / name / "entries").iterdir())]
    return frozenset(name for file in files for name in NAME.findall(file.read_text(encoding="utf-8")))


def digest(episodes: Iterable[Episode]) -> str:
    """16 hex digits over the tokens: what a killed training may continue with."""
    sha = hashlib.sha256()
    for episode in episodes:
        sha.update(repr((episode.prompt_ids, episode.completion_ids)).encode())
    return sha.hexdigest()[:16]


if __name__ == "__main__":
    run("base", main)
