"""Weights from the trainer's GPU memory to its own server on the same GPU, over CUDA IPC: vLLM's `ipc` transfer.

It has not yet run on a GPU. A test on a CPU sends weights through vLLM's real server; there a file takes the place of
the memory that CUDA shares.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from orchestra.config.schema import Grpo
from orchestra.serving.engines.server import Server
from orchestra.training.distributed import world_size

if TYPE_CHECKING:
    import torch

BUFFER = 512 * 2**20
"""Bytes of weights that go at once, unless a single one is larger; both sides hold as much besides. Where a server is
killed amid an update, CUDA keeps the trainer's to the end."""
ANSWER_S = 120.0
"""Seconds that the server may take for a message; an update of 8B takes a few."""


class NotBegunError(Exception):
    """CUDA IPC failed before the server had any part of an update: it serves on as it was."""


def shares_gpu(settings: Grpo) -> bool:
    """Whether the stage's own server has the trainer's GPU, and the trained weights rest while episodes are played.

    A server that starts again reads them from files, which are written only then.
    """
    import torch

    server = settings.server
    alone = world_size() == 1 and settings.strategy == "ddp" and settings.lora is None and settings.steps_ahead == 0
    beside = server.url is None and server.device == "gpu" and server.devices is None and server.tensor_parallel == 1
    return alone and beside and torch.cuda.is_available()


def send(server: Server, weights: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Replace the weights of a server that was opened as `direct`.

    Raises `NotBegunError` where it has none of them yet; after any other error it may have half of them.
    """
    import torch

    try:
        parts = packed(weights, getattr(torch, dtype))
        # What this process cannot share shows before the server is amid an update.
        first = next(parts)
        # Again after each start of the server, which does not tell of them.
        server.post("/init_weight_transfer_engine", {"init_info": {"packed": True}}, ANSWER_S)
    except Exception as error:
        raise NotBegunError from error
    server.post("/start_weight_update", {}, ANSWER_S)
    for part in chain([first], parts):
        server.post("/update_weights", {"update_info": part}, ANSWER_S)
    server.post("/finish_weight_update", {}, ANSWER_S)
    if torch.cuda.is_available():
        # The server has let go of the buffer.
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def packed(weights: Mapping[str, torch.Tensor], kind: torch.dtype) -> Iterator[dict[str, Any]]:
    """vLLM's messages (`IPCWeightTransferUpdateInfo`): each is good until the next is asked for."""
    import torch

    sizes = {name: one.numel() * kind.itemsize for name, one in weights.items()}
    most = max(min(BUFFER, sum(sizes.values())), *sizes.values())
    buffer = torch.empty(most, dtype=torch.uint8, device=next(iter(weights.values())).device)
    handles = base64.b64encode(pickle.dumps(shared(buffer))).decode("ascii")
    for names in _parts(sizes, most):
        places = torch.split(buffer[: sum(sizes[name] for name in names)], [sizes[name] for name in names])
        for name, place in zip(names, places, strict=True):
            place.view(kind).view(weights[name].shape).copy_(weights[name])
        if buffer.is_cuda:
            torch.cuda.synchronize(buffer.device)
        yield {
            "names": names, "dtype_names": [str(kind).removeprefix("torch.")] * len(names),
            "shapes": [list(weights[name].shape) for name in names], "tensor_sizes": [sizes[name] for name in names],
            "ipc_handles_pickled": handles,
        }  # fmt: skip


def shared(buffer: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    """How another process finds the buffer's memory, by the GPU that holds it."""
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    _, arguments = reduce_tensor(buffer)  # type: ignore[no-untyped-call]
    return {str(torch.cuda.get_device_properties(buffer.device).uuid): arguments}


def _parts(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """The names in their order, in groups of at most `most` bytes."""
    names: list[str] = []
    for name, size in sizes.items():
        if names and sum(sizes[one] for one in names) + size > most:
            yield names
            names = []
        names.append(name)
    yield names
