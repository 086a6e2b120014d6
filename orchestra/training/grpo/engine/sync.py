"""The rollout engine of a training: its server gets the trainer's weights before each round, and proves it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.config.schema import Grpo
from orchestra.errors import OrchestraError, ServiceError, TrainingError
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.engines.policy import ServedPolicy
from orchestra.serving.engines.server import OwnServer, Server, open_server
from orchestra.serving.releases.vllm import SERVED_NAME, TOLERANCES
from orchestra.text import one_line
from orchestra.training.distributed import gathered, local_rank, rank
from orchestra.training.grpo.engine import direct
from orchestra.training.grpo.engine.canary import WeightCanary
from orchestra.training.grpo.engine.weights import WholeWeights, untied, write_adapters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.rollout.render import Codec


@dataclass
class RolloutEngine:
    """The first rank of a machine owns its server; the others know the server's address and the model's name in it.

    A server that is named plays for every machine, and rank 0 alone gives it weights.
    """

    root: Path
    work: Path
    base: Path
    """The checkpoint that the training began from: what adapters are put on."""
    codec: Codec
    settings: Grpo
    sequences: list[list[int]]
    """The canary's."""
    max_len: int
    say: Callable[[str], None]
    server: Server | None = None
    model: str = SERVED_NAME
    """Its name in the server: with adapters, a new one at each sync."""
    measures: dict[str, float] = field(default_factory=dict)
    """Of the last sync, on the rank that made it."""

    def __post_init__(self) -> None:
        dtype = self.settings.server.dtype
        self.canary = WeightCanary(self.sequences, dtype, TOLERANCES[dtype])
        named = self.settings.server.url is not None
        self.owner = 0 if named else rank() - local_rank()
        """The rank that owns the server of this one."""
        if self.owner:
            # Machines share the stage's folder.
            self.work = self.work / f"rank-{self.owner}"
        self.files = WholeWeights(self.work / "served", self.codec, dtype, ours=not named)
        self.direct = direct.shares_gpu(self.settings)
        """Whether weights go over CUDA IPC once the server runs: not after the first failure."""

    def sync(self, model: PreTrainedModel) -> None:
        """Give the server the weights of `model`, which is whole on every rank; every rank takes part, and none plays.

        Raises `TrainingError` when the canary finds other weights, `ServiceError` when the server is gone.
        """
        began = time.monotonic()
        told = (self._sync(model), self.model) if rank() == self.owner else ("", "")
        url, self.model = gathered(told)[self.owner]
        if self.server is None:
            self.server = Server(self.root, url, self.settings.server)
        if rank() == self.owner:
            self.measures |= {"engine/sync_s": time.monotonic() - began, "engine/restarts": self.server.restarts}

    def policy(self, temperature: float, seed: int) -> ServedPolicy:
        """Plays with the weights of the last sync."""
        assert self.server is not None
        server, settings, name = self.server, self.settings.server, self.model
        inner = VllmPolicy(
            server.url, name, name="grpo", temperature=temperature, seed=seed, stop_token_ids=[self.codec.eos_id],
            timeout_s=settings.timeout_s, concurrency=settings.sequences, api_key=server.key,
        )  # fmt: skip
        return ServedPolicy(inner, lambda: server.wait_for(name))

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        self.files.close()

    def _sync(self, model: PreTrainedModel) -> str:
        self.measures = dict.fromkeys((f"engine/{part}" for part in ("write_s", "load_s", "canary_s", "direct")), 0.0)
        server = self._given(model)
        try:
            self._prove(server, model)
        except TrainingError as error:
            if not self.measures["engine/direct"]:
                raise
            self._leave_direct(error)
            self._prove(self._given(model), model)
        return server.url

    def _given(self, model: PreTrainedModel) -> Server:
        """The server, which says that it has the weights."""
        give = self._whole if self.settings.lora is None else self._adapters
        try:
            return give(model)
        except ServiceError:
            if self.server is None:
                raise
            # It died meanwhile. It starts with the files, whole or a mixture of old and new, and is told of them again.
            with self._timed("load"):
                self.server.wait_for(self.model)
            return give(model)

    def _prove(self, server: Server, model: PreTrainedModel) -> None:
        with self._timed("canary"):
            ours = self.canary.trainer_scores(model)
            self.measures |= self.canary.check(ours, self._served(server))

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Add the block's seconds to a part of the sync, which may come twice."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.measures[f"engine/{part}_s"] += time.monotonic() - began

    def _served(self, server: Server) -> list[float]:
        together = self.settings.lora is None
        try:
            return server.scores(self.model, self.sequences, together=together)
        except ServiceError:
            server.wait_for(self.model)
            return server.scores(self.model, self.sequences, together=together)

    def _open(self, folder: Path) -> Server:
        return open_server(
            self.root, self.work, folder, self.settings.server, max_len=self.max_len, lora=self.settings.lora,
            say=self.say, direct=self.direct,
        )  # fmt: skip

    def _whole(self, model: PreTrainedModel) -> Server:
        if self.direct and isinstance(self.server, OwnServer):
            try:
                return self._send(self.server, model)
            except direct.NotBegunError as error:
                self._leave_direct(error.__cause__ or error, restart=False)
            except Exception as error:  # Of CUDA, of torch, of the server.
                self._leave_direct(error)
        folder = self.files.folder
        with self._timed("write"):
            self.files.write(model)
        with self._timed("load"):
            if self.server is None:
                self.server = self._open(folder)
                if isinstance(self.server, OwnServer):
                    return self.server
            rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}}
            self.server.post("/collective_rpc", rpc)
            self.server.forget_prompts()
        return self.server

    def _send(self, server: OwnServer, model: PreTrainedModel) -> Server:
        # The model rests while episodes are played, so a server that dies amid them starts with the same weights. One
        # that dies while the model trains plays nothing before the next sync.
        server.refresh = lambda: self.files.write(model)
        with self._timed("load"):
            # One that died while the model trained is no failure of IPC.
            server.wait_for(self.model)
            direct.send(server, untied(model), self.settings.server.dtype)
            server.forget_prompts()
        self.measures["engine/direct"] = 1.0
        return server

    def _leave_direct(self, error: BaseException, *, restart: bool = True) -> None:
        """Give weights as files from here on; with `restart` to a new process: vLLM keeps parts of an update that broke
        off."""
        assert isinstance(self.server, OwnServer)
        self.direct, self.measures["engine/direct"] = False, 0.0
        why = error.what if isinstance(error, OrchestraError) else f"{type(error).__name__}: {error}"
        self.say(f"from now on files take the weights to the rollout server, not CUDA IPC: {one_line(why)[:300]}")
        if restart:
            import torch

            if torch.cuda.is_available():
                # A new process asks for its share as free memory.
                torch.cuda.empty_cache()
            # In the same environment: vLLM files compiled code by it.
            self.server.restart()
            with self._timed("load"):
                self.server.wait_for(self.model)
        self.server.refresh = None

    def _adapters(self, model: PreTrainedModel) -> Server:
        if self.server is None:
            shutil.rmtree(self.work / "adapters", ignore_errors=True)
            with self._timed("load"):
                self.server = self._open(self.base)
        name = f"{SERVED_NAME}-{time.time_ns():x}"
        folder = self.work / "adapters" / name
        with self._timed("write"):
            write_adapters(model, folder)
        with self._timed("load"):
            self._load_adapters(self.server, name, folder)
        return self.server

    def _load_adapters(self, server: Server, name: str, folder: Path) -> None:
        """Have the server play with the adapters in `folder`, and forget those before."""
        server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
        if isinstance(server, OwnServer):
            server.adapter = (name, str(folder.resolve()))
        if self.model != SERVED_NAME:
            try:
                server.post("/v1/unload_lora_adapter", {"lora_name": self.model})
            except ServiceError:
                # A server that was started again has never had it.
                server.check()
            shutil.rmtree(self.work / "adapters" / self.model, ignore_errors=True)
        self.model = name
