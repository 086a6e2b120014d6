"""A rollout engine that is watched: what its server decodes beside what the trainer does."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from orchestra.config.schema import Grpo
from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.policies.transformers import TransformersPolicy
from orchestra.serving.engines.server import OwnServer
from orchestra.system.processes import descendants
from orchestra.training.grpo.engine.sync import RolloutEngine
from tests.support.worlds import ROOT, codec, example, warm_model
from tests.unit.training.grpo.test_trainer import examples

HEAD = 32
"""vLLM's attention on a CPU takes no smaller head."""
MAX_LEN = 1024


def workspace(folder: Path) -> Path:
    """A workspace with vLLM and the checkpoint that training begins from."""
    (folder / ".venv-vllm").symlink_to((ROOT / ".venv-vllm").resolve())
    warm_model(head_dim=HEAD).save_pretrained(str(folder / "base"))
    codec().tokenizer.save_pretrained(str(folder / "base"))
    return folder


class Compared(RolloutEngine):
    """Decodes greedily on both sides after each sync, on the rank that owns the server."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.equal: list[bool] = []
        self.killed_at: int | None = None
        self.killed: list[int] = []

    def _sync(self, model: PreTrainedModel) -> str:
        url = super()._sync(model)
        prompts = [codec().prompt(one) for one in examples()[:4]]
        reference = TransformersPolicy("", name="reference", model=model, eos_id=codec().eos_id)
        served = self.policy(0.0, 0)
        self.equal.append(_greedy(reference, prompts) == _greedy(served, prompts))
        if len(self.equal) == self.killed_at:
            assert isinstance(self.server, OwnServer) and self.server.pid is not None
            self.killed.append(self.server.pid)
            os.kill(self.server.pid, signal.SIGKILL)
        return url


def _greedy(policy: Any, prompts: list[list[int]]) -> list[list[int]]:
    asked = [Conversation(one, ids) for one, ids in zip(examples(), prompts, strict=False)]
    policy.begin(asked)
    try:
        return [one.ids for one in asyncio.run(policy.generate(asked, [16] * len(asked)))]
    finally:
        policy.end()


def engine(root: Path, work: Path, settings: Grpo) -> Compared:
    return Compared(root, work, root / "base", codec(), settings, _sequences(), MAX_LEN, print)


def _sequences() -> list[list[int]]:
    return [codec().prompt(example(f"c{i}", instruction=f"what is {i}7*24?"))[:200] for i in range(4)]


def servers() -> list[int]:
    """Servers that this process has started and that run."""
    return [pid for pid in descendants(os.getpid()) if b"api_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
