"""Trains the shipped base for ten small GRPO steps on the choice of an expert; the reward of each step is printed."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from orchestra import Codec, Toolkit, load_params, question, train_grpo
from orchestra.rollout.policies.transformers import load_model
from orchestra.tools.experts.simulated import AnswerBook, BookEntry
from orchestra.types import Preference

ROOT = Path(__file__).parents[1]
CHEAP = Preference(kind="cheap", words="keep it cheap.", outcome=1.0, compute=1.0, latency=0.0)
EXPERTS = ["gpt-5", "gpt-5-mini", "llama-3.3-70b", "qwen3-235b"]
BATTLES = ("Tamora", "Borvane", "Seldeon", "Gorzod", "Prawin", "Meltar", "Dorvane", "Kelmin", "Sarvon", "Ulder")
KNOWN = [
    BookEntry(question=f"When was the Battle of {name} fought?", topic="history", answer="1640", wrong=("1612", "1688"))
    for name in BATTLES
]
"""What the simulated experts are asked about, and the wrong answers that some of them give."""


def main() -> None:
    params, base = load_params(ROOT / "params.yaml"), ROOT / "models/base/embedded"
    toolkit = Toolkit.from_params(params, ROOT, book=AnswerBook.of(KNOWN))
    items = [question(one.question, toolkit, tools=EXPERTS, answer=one.answer, preference=CHEAP) for one in KNOWN]
    changed: dict[str, object] = {"steps": 10, "examples_per_step": 1, "group_size": 8, "branch": None, "mix": {}}
    settings = params.grpo.model_copy(update={**changed, "eval_every": 20, "save_steps": 20})

    def log(metrics: dict[str, float], step: int) -> None:
        if "train/reward" in metrics:
            said = ", ".join(f"{name} {metrics[f'train/{name}']:.3f}" for name in ("reward", "grad_norm"))
            print(f"step {step}: {said}", flush=True)

    with tempfile.TemporaryDirectory() as work:
        result = train_grpo(
            load_model(base), Codec.load(base), toolkit, items, settings, params.rollout,
            toolkit.catalogue.policy_price, Path(work), log, lambda model: {},
        )  # fmt: skip
    print(f"{result.steps} steps; the experts are simulated, so no dollar was paid")


if __name__ == "__main__":
    main()
