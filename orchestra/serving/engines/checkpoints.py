"""Checkpoints that are measured through a vLLM server: one server at a time, which ends with the stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestra.config.engine import PlayServer
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.engines.policy import ServedPolicy
from orchestra.serving.engines.server import Server, open_server
from orchestra.serving.releases.vllm import SERVED_NAME

Build = Callable[[str, Path], Policy]
"""The policy of a name and a checkpoint's folder."""


def in_process(name: str, folder: Path) -> Policy:
    """The checkpoint in this process, greedy."""
    from orchestra.serving.engines.finite import FinitePolicy

    return FinitePolicy(folder, name)


class CheckpointServers:
    """Gives each checkpoint's policy; the server of the checkpoint before ends first, as one GPU holds one."""

    def __init__(
        self, root: Path, work: Path, settings: PlayServer, *, max_len: int, say: Callable[[str], None],
        temperature: float = 0.0,
    ) -> None:  # fmt: skip
        """Greedy at temperature 0."""
        self.root, self.work, self.settings, self.max_len, self.say = root, work, settings, max_len, say
        self.temperature = temperature
        self._open: tuple[Path, Server] | None = None

    def __call__(self, name: str, folder: Path) -> Policy:
        """Start the checkpoint's server, or go on with it; raises `ServiceError`."""
        server = self._server(folder)
        inner = VllmPolicy(
            server.url, SERVED_NAME, name=name, temperature=self.temperature, timeout_s=self.settings.timeout_s,
            concurrency=self.settings.sequences, api_key=server.key,
        )  # fmt: skip
        return ServedPolicy(inner, lambda: server.wait_for(SERVED_NAME))

    def _server(self, folder: Path) -> Server:
        if self._open is None or self._open[0] != folder:
            self.close()
            self.say(f"starting vLLM with {folder.name}")
            server = open_server(self.root, self.work, folder, self.settings, max_len=self.max_len, say=self.say)
            self._open = folder, server
        return self._open[1]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
