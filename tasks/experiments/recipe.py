"""Makes the embedded recipe (tokenizer, config) from the generated training examples: `make recipe`."""

from collections import Counter
from collections.abc import Iterable, Iterator

from orchestra.files.examples import read_examples
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.render import Codec
from orchestra.synthesis.preferences import grammar
from orchestra.synthesis.questions.anonymize import ENGLISH, NAME
from orchestra.tools.toolkit import Toolkit
from orchestra.training.teacher import teacher_policy
from orchestra.training.tokenizer import CHOICES, save_recipe, splitter, train_tokenizer
from tasks.platform.stage import Stage, run

EXAMPLES, VOCABULARY = 4000, 2572
HIDDEN, LAYERS, HEADS = 192, 5, 6
COUNTED = 20
"""Times that a word counts at most: a vocabulary of the world's words, not of what the tool table repeats."""


def counted(texts: Iterable[str]) -> Iterator[str]:
    """Each word as often as it occurs, at most `COUNTED` times; a made-up name or tool once, so that it stays in
    pieces, which every other name shares; a choice with its reasons not at all, since it is a token of its own."""
    split = splitter()
    counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    for word, count in sorted(counts.items()):
        if f" {word}" in CHOICES:
            continue
        made_up = "-" in word or (NAME.fullmatch(word) is not None and word not in ENGLISH)
        yield from [word] * (1 if made_up else min(count, COUNTED))


def main(stage: Stage) -> None:
    """data/generated/train.jsonl → the recipe folder; frozen from then on, since checkpoints depend on it."""
    params = stage.params
    folder = stage.root / params.model.recipe
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    toolkit = Toolkit.from_params(params, stage.root)
    examples = read_examples(stage.root / "data/generated/train.jsonl")[:EXAMPLES]
    bytes_only = Codec(train_tokenizer(["a"], 800, template))
    teacher = teacher_policy(toolkit.catalogue, params.sft.teacher, params.sft.seed, bytes_only.turn)
    limits = params.rollout.model_copy(update={"max_tokens": 1_000_000})
    price = toolkit.catalogue.policy_price
    episodes = rollout(examples, teacher, bytes_only, toolkit, RolloutOptions(limits, price))
    texts = [bytes_only.decode([*e.prompt_ids, *e.completion_ids]) for e in episodes]
    texts += [wish.words for wish in grammar.lesson(params.synthesize.seed) if wish.split == "train"]
    save_recipe(
        train_tokenizer(counted(texts), VOCABULARY, template), folder, hidden=HIDDEN, layers=LAYERS, heads=HEADS
    )
    stage.say(f"wrote {params.model.recipe}")


if __name__ == "__main__":
    run("recipe", main)
