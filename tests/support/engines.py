"""A rollout engine that is watched: what its server decodes beside what the trainer does."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from orchestra.config.schema import Grpo
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.transformers import TransformersPolicy
from orchestra.serving.engines.policy import ServedPolicy
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
    """Decodes greedily on both sides after each sync, on the rank that owns the server.

    `killed_at`: the sync after which the server is killed, once the first turn of that round is there.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.equal: list[bool] = []
        self.killed_at: int | None = None
        self.killed: list[int] = []
        self.cut = 0
        """Turns that were in flight then."""

    def _sync(self, model: PreTrainedModel) -> str:
        url = super()._sync(model)
        prompts = [codec().prompt(one) for one in examples()[:4]]
        reference = TransformersPolicy("", name="reference", model=model, eos_id=codec().eos_id)
        served = self.policy(0.0, 0)
        self.equal.append(_greedy(reference, prompts) == _greedy(served, prompts))
        return url

    def policy(self, temperature: float, seed: int) -> ServedPolicy:
        served = super().policy(temperature, seed)
        return Killing(served, self._kill) if len(self.equal) == self.killed_at and not self.killed else served

    def _kill(self, in_flight: int) -> None:
        assert isinstance(self.server, OwnServer) and self.server.pid is not None
        self.killed.append(self.server.pid)
        os.kill(self.server.pid, signal.SIGKILL)
        self.cut = in_flight


class Killing(ServedPolicy):
    """Has the server killed when one turn is there and others are not."""

    def __init__(self, served: ServedPolicy, kill: Callable[[int], None]) -> None:
        super().__init__(served.inner, served._recover)
        self._kill, self._asked, self._there = kill, 0, 0

    async def _turn(self, conversation: Conversation, most: int) -> Generation:
        self._asked += 1
        made = await super()._turn(conversation, most)
        self._there += 1
        if self._there == 1:
            self._kill(self._asked - self._there)
        return made


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
