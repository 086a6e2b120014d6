"""Makes the embedded recipe (tokenizer, config) again, from the generated training examples: `make recipe`."""

from orchestra.files.examples import read_examples
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.render import Codec
from orchestra.tools.toolkit import Toolkit
from orchestra.training.teacher import teacher_policy
from orchestra.training.tokenizer import save_recipe, train_tokenizer
from tasks.platform.stage import Stage, run

EXAMPLES, VOCABULARY = 4000, 1152
HIDDEN, LAYERS, HEADS = 128, 4, 4


def main(stage: Stage) -> None:
    """data/generated/train.jsonl → the recipe folder; frozen from then on, since checkpoints depend on it."""
    params = stage.params
    folder = stage.root / params.model.recipe
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    toolkit = Toolkit.from_params(params, stage.root)
    examples = read_examples(stage.root / "data/generated/train.jsonl")[:EXAMPLES]
    bytes_only = Codec(train_tokenizer(["a"], 400, template))
    teacher = teacher_policy(toolkit.catalogue, params.sft.teacher, params.sft.seed, bytes_only.turn)
    limits = params.rollout.model_copy(update={"max_tokens": 1_000_000})
    price = toolkit.catalogue.policy_price
    episodes = rollout(examples, teacher, bytes_only, toolkit, RolloutOptions(limits, price))
    texts = [bytes_only.decode([*e.prompt_ids, *e.completion_ids]) for e in episodes]
    save_recipe(train_tokenizer(texts, VOCABULARY, template), folder, hidden=HIDDEN, layers=LAYERS, heads=HEADS)
    stage.say(f"wrote {params.model.recipe}")


if __name__ == "__main__":
    run("recipe", main)
