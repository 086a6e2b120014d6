"""Kills stages whose experts cost money: what was paid before the kill is in the result, and is not paid again."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml

from orchestra.files.jsonl import write_jsonl
from orchestra.rollout.parse import format_answer, format_call
from orchestra.types import Category, Example, Preference, ToolCall
from tests.support.endpoint import Double, answer, running
from tests.support.waiting import soon
from tests.support.worlds import ROOT, catalogue, codec, example, tiny_model, toolkit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXPERT, URL_ENV = "gpt-5", "PAID_EXPERT_URL"
CHEAP = Preference(kind="cheap", words="", outcome=0.5, compute=1, latency=0)
"""Seconds decide nothing: those of a real reply are never the same twice."""
ROLLOUT = {"max_turns": 3, "max_turn_tokens": 64, "max_tokens": 640}
SECTIONS: dict[str, dict[str, Any]] = {
    "sft": {"batch_size": 4, "save_steps": 50},
    "grpo": {
        "steps": 4, "examples_per_step": 4, "group_size": 4, "optimizer": "adamw", "learning_rate": 0.0005, "mix": {},
        "branch": None, "min_group_std": 0.001, "eval_every": 2, "eval_examples": 2, "save_steps": 2,
    },
    "evaluate": {"examples": 12, "policies": [], "baselines": ["always_strongest", "random"], "bootstrap": 50,
                 "safety": None},
}  # fmt: skip
MADE = {"sft": "models/sft", "grpo": "models/grpo"}


class Provider:
    """An expert's provider, which counts the replies that it sends, and from `limit` of them on sends none."""

    def __init__(self) -> None:
        self.paid = Counter[str]()
        self.limit: int | None = None
        self.double = Double(self._reply)

    def _reply(self, request: dict[str, Any]) -> tuple[int, Any, float]:
        question = request["messages"][-1]["content"]
        with self.double.lock:
            if self.limit is not None and self.paid.total() >= self.limit:
                return 0, {}, 3600
            self.paid[question] += 1
        # The same to a question each time, and not the same to each question.
        return 200, answer("Tesk" if hashlib.sha256(question.encode()).digest()[0] % 2 else "Burr Olm"), 0.0

    def stuck(self) -> bool:
        """Whether requests wait, and no other has come for some seconds: all that was sent was kept by then."""
        before = len(self.double.asked)
        time.sleep(3)
        return self.double.at_once > 0 and len(self.double.asked) == before


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    with running(made.double):
        yield made


def question(name: str) -> Example:
    """A topic question with one expert on offer, which any answer solves: rewards differ by dollars alone."""
    return example(
        name, instruction=f"who wrote Opal {name}?", answer=None, kind="database", domain="mock", preference=CHEAP,
        category=Category.TOPIC, toolbox=[catalogue().spec(EXPERT)],
    ).model_copy(update={"topic": "music"})  # fmt: skip


def warm(folder: Path) -> None:
    """A tiny model that asks the expert, or answers at once."""
    import torch

    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = [format_call(ToolCall(name=EXPERT)), format_answer("yes")]
    batch = [(codec().prompt(question(f"e{i}")), codec().turn(said[i % 2])) for i in range(4)]
    for _ in range(60):
        optimizer.zero_grad()
        for prompt, turn in batch:
            labels = torch.tensor([[-100] * len(prompt) + turn])
            model(input_ids=torch.tensor([prompt + turn]), labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(str(folder))
    codec().tokenizer.save_pretrained(str(folder))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which each of the stages can run at once; its one expert is real."""
    return make_paid_world(tmp_path_factory.mktemp("template"))


def make_paid_world(root: Path) -> Path:
    """The same, in that folder."""
    for folder in ("data/generated", "data/validated"):
        (root / folder).mkdir(parents=True)
    for shared in ("data/domains", "models/recipes"):
        (root / shared).parent.mkdir(exist_ok=True)
        (root / shared).symlink_to(ROOT / shared)
    copytree(ROOT / "data/catalogue", root / "data/catalogue")
    real = yaml.safe_load((ROOT / "data/catalogue/real.yaml").read_text(encoding="utf-8"))["tools"][EXPERT]
    real |= {"parameters": catalogue().entry(EXPERT).parameters, "base_url_env": URL_ENV, "api_key_env": None}
    team = {"extends": "tools.yaml", "tools": {EXPERT: real}}
    (root / "data/catalogue/team.yaml").write_text(yaml.safe_dump(team), encoding="utf-8")
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["world"] |= {"domains": ["mock"], "catalogue": "data/catalogue/team.yaml"}
    params["model"] |= {"base": "models/sft"}
    params["rollout"] |= ROLLOUT
    for section, values in SECTIONS.items():
        params[section] |= values
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    toolkit(root / "data/generated")
    for split in ("train", "heldout"):
        write_jsonl(root / f"data/validated/{split}.jsonl", [question(f"{split[0]}{i}") for i in range(14)])
    warm(root / "models/sft")
    return root


def workspace(template: Path, root: Path) -> Path:
    return Path(copytree(template, root, symlinks=True))


def start(root: Path, stage: str, provider: Provider) -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("ORCHESTRA_CASSETTE", "ORCHESTRA_LEDGER")}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", URL_ENV: provider.double.url}
    with (root / "screen.log").open("a", encoding="utf-8") as screen:
        return subprocess.Popen(
            [sys.executable, "-m", f"tasks.{stage}"], cwd=root, env=env, stdout=screen, stderr=screen, text=True
        )


def screen(root: Path) -> str:
    return (root / "screen.log").read_text(encoding="utf-8")


def booked(root: Path, stage: str) -> int:
    """Calls of the expert in the ledgers."""
    files = root.glob(f"work/{stage}/*/ledger*.jsonl")
    return sum(json.loads(line)["name"] == EXPERT for file in files for line in file.read_text().splitlines())


def result(root: Path, stage: str) -> dict[str, Any]:
    """What the stage made, without what the clock decides."""
    from safetensors.torch import load_file

    told = json.loads((root / f"reports/{stage}.json").read_text(encoding="utf-8"))
    found = {
        name: value for name, value in told.items() if not name.split(".")[-1].startswith(("latency", "step_time"))
    }
    if stage in MADE:
        weights = load_file(root / MADE[stage] / "model.safetensors")
        found |= {name: tensor.numpy().tobytes() for name, tensor in weights.items()}
    return found


@pytest.mark.parametrize("stage", ["sft", "grpo", "evaluate"])
def test_what_was_paid_before_a_kill_is_not_paid_again(
    stage: str, template: Path, provider: Provider, tmp_path: Path
) -> None:
    whole = workspace(template, tmp_path / "whole")
    assert start(whole, stage, provider).wait() == 0, screen(whole)
    needed = Counter(provider.paid)
    assert needed.total() >= 10, needed

    cut = workspace(template, tmp_path / "cut")
    provider.paid.clear()
    provider.limit = needed.total() * 3 // 4
    run = start(cut, stage, provider)
    try:
        assert soon(lambda: run.poll() is not None or provider.stuck(), 600) and run.poll() is None, screen(cut)
        if stage == "grpo":
            assert list(cut.glob("work/grpo/*/checkpoints/checkpoint-2/complete")), "killed too early to show anything"
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    before = Counter(provider.paid)
    assert before.total() == provider.limit and booked(cut, stage) == before.total()

    provider.limit = None
    assert start(cut, stage, provider).wait() == 0, screen(cut)
    print(f"{stage}: {before.total()} replies before the kill, {provider.paid.total() - before.total()} after it")
    assert provider.paid == needed, "every reply is paid once, as in a run without a kill"
    assert booked(cut, stage) == needed.total()
    assert result(cut, stage) == result(whole, stage)
