"""Trains the shipped base for ten tiny GRPO steps on sums; the reward of each step is printed."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from orchestra import Codec, Toolkit, load_params, question, train_grpo
from orchestra.rollout.policies.transformers import load_model
from orchestra.tools.experts.simulated import AnswerBook
from orchestra.types import Preference

ROOT = Path(__file__).parents[1]
CHEAP = Preference(kind="cheap", words="keep it cheap.", outcome=1.0, compute=1.0, latency=0.0)


def main() -> None:
    params, base = load_params(ROOT / "params.yaml"), ROOT / "models/base/embedded"
    toolkit = Toolkit.from_params(params, ROOT, book=AnswerBook())
    tools = ["calculator", "gpt-5-mini"]
    items = [
        question(f"what is {n}*24?", toolkit, tools=tools, answer=str(n * 24), preference=CHEAP) for n in range(31, 41)
    ]
    settings = params.grpo.model_copy(
        update={"steps": 10, "examples_per_step": 1, "group_size": 4, "eval_every": 20, "save_steps": 20, "mix": {}}
    )

    def log(metrics: dict[str, float], step: int) -> None:
        if "train/reward" in metrics:
            print(f"step {step}: reward {metrics['train/reward']:.3f}", flush=True)

    with tempfile.TemporaryDirectory() as work:
        result = train_grpo(
            load_model(base), Codec.load(base), toolkit, items, settings, params.rollout,
            toolkit.catalogue.policy_price, Path(work), log, lambda model: {},
        )  # fmt: skip
    print(f"{result.steps} steps; the experts are simulated, so no dollar was paid")


if __name__ == "__main__":
    main()
