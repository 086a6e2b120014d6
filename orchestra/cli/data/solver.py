"""The option `--solver`: who tries examples, and what plays a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.files.checkpoint import hash_dir
from orchestra.rollout.policies.chat import PREFIX
from orchestra.system.machine import torch_beside_gpu

if TYPE_CHECKING:
    from orchestra.config.schema import Params
    from orchestra.rollout.users import UserSimulator
    from orchestra.synthesis.filters.filters import Solver
    from orchestra.tools.toolkit import Toolkit

LOGS = ".state/logs/solver"
"""Folder of the server's log."""


def named(option: str, here: Path) -> str:
    """The option's value, a checkpoint's folder as a path that does not depend on where we are."""
    return str(here / option) if _is_folder(option) else option


def _is_folder(name: str) -> bool:
    return name not in ("known", "none") and not name.startswith(PREFIX)


@contextmanager
def open_solver(
    name: str, params: Params, toolkit: Toolkit, root: Path, say: Callable[[str], None],
    user: UserSimulator | None = None,
) -> Iterator[Solver | None]:  # fmt: skip
    """The solver of that name (`solver_named`); a checkpoint is played by `evaluate.engine`, as in evaluation.

    A server ends with the block. Raises `DataError` for what is no checkpoint, `ServiceError` for a server that does
    not start.
    """
    from orchestra.rollout.render import Codec
    from orchestra.serving.engines.checkpoints import CheckpointServers
    from orchestra.synthesis.filters.filters import Solver
    from orchestra.synthesis.filters.solver import solver_named

    settings, limits = params.evaluate, params.rollout
    if not _is_folder(name) or settings.engine == "in_process":
        if _is_folder(name) and (idle := torch_beside_gpu()):
            say(idle)
        yield solver_named(name, params, toolkit, root, user)
        return
    folder = Path(name)
    codec = Codec.load(folder)
    servers = CheckpointServers(
        root, root / LOGS, settings.server, max_len=limits.max_tokens, temperature=params.grpo.temperature, say=say
    )
    with closing(servers):
        yield Solver(servers(folder.name, folder), codec, toolkit, limits, user=user)


def identity(name: str, params: Params) -> str:
    """What the solver is: tries of another one are not continued. Engines draw other random numbers."""
    if not _is_folder(name):
        return f"seed {params.synthesize.seed}"
    engine = params.evaluate.engine
    return hash_dir(Path(name)) + ("" if engine == "in_process" else f" {engine}")
