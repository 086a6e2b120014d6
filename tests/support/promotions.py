"""A workspace with checkpoints of random weights, evaluated and ready for the gate, and its real MLflow registry."""

import json
import shutil
from pathlib import Path

from orchestra.config.schema import Params, load_params
from orchestra.files.checkpoint import write_manifest
from tasks import evaluate
from tasks.platform.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry
from tasks.platform.stage import Stage
from tests.support.databases import make_database
from tests.support.worlds import ROOT, codec, example, tiny_model

CALLS = [{"name": "calculator", "arguments": {"expression": "37*24"}}]
LENIENT = {
    "objective": "accuracy_and_dollars",
    "min_accuracy": 0.0,
    "min_valid": 0.0,
    "max_cost_ratio": 1000.0,
    "max_cost_usd": None,
    "max_latency_p95_s": None,
    "min_preference": None,
    "max_safety_failures": None,
    "rule_margin": 1.0,
    "min_examples": 1,
    "accuracy_margin": 1.0,
    "cost_margin": 1e6,
    "accuracy_gain": -1.1,
}
"""Random models pass these."""
RULES = ["always_strongest", "random"]


def params(**promotion: float | str | None) -> Params:
    shipped = load_params(ROOT / "params.yaml")
    update = {
        "world": shipped.world.model_copy(update={"domains": []}),
        "rollout": shipped.rollout.model_copy(update={"max_turns": 2, "max_turn_tokens": 4}),
        "evaluate": shipped.evaluate.model_copy(
            update={"examples": 4, "bootstrap": 50, "baselines": RULES, "safety": None}
        ),
        "promote": shipped.promote.model_copy(update={**LENIENT, **promotion}),
    }
    return shipped.model_copy(update=update)


def train(root: Path, name: str, seed: int) -> None:
    """Random weights in place of a training."""
    folder = root / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    tiny_model(seed, hidden=16).save_pretrained(str(folder), safe_serialization=True)
    codec().tokenizer.save_pretrained(str(folder))
    write_manifest(folder, base=None, data_hash="t", params={"seed": seed}, git_commit="", price_date="2025-11-15")


def hold_out(root: Path, count: int) -> None:
    items = [example(f"e{n}", golden_calls=CALLS).model_dump_json() for n in range(count)]
    (root / "data/validated/heldout.jsonl").write_text("\n".join(items) + "\n")


def evaluated(root: Path, **promotion: float | str | None) -> Stage:
    evaluate.main(Stage.open("evaluate", root, params(**promotion)))
    return Stage.open("promote", root, params(**promotion))


def workspace(root: Path) -> None:
    """A workspace with two checkpoints, evaluated, and an empty registry."""
    shutil.copytree(ROOT / "data/catalogue", root / "data/catalogue")
    (root / "data/generated").mkdir()
    (root / "data/validated").mkdir()
    (root / "data/generated/answers.jsonl").write_text("")
    (root / "data/generated/corpus.jsonl").write_text(json.dumps({"id": "1", "title": "A", "text": "B."}) + "\n")
    hold_out(root, 6)
    train(root, "sft", 0)
    train(root, "grpo", 1)
    evaluated(root)
    make_database(root)


def aliases(root: Path) -> dict[str, int | None]:
    registry = Registry(root, "orchestrator")
    found = {alias: registry.at(alias) for alias in (CANDIDATE, CHAMPION, PREVIOUS)}
    return {alias: None if version is None else version.number for alias, version in found.items()}
