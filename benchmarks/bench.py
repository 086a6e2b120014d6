"""What both benchmarks run on: the shipped base over freshly made examples, and clocks that count alike."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks import clock
from benchmarks.clock import Spent
from orchestra.config.schema import Params, load_params
from orchestra.rollout.render import Codec
from orchestra.synthesis.dataset.generate import generate
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Example, Price

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOT = Path(__file__).parents[1]
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """One world and one model, shared by everything that is compared."""

    params: Params
    codec: Codec
    toolkit: Toolkit
    examples: list[Example]
    model: PreTrainedModel

    @property
    def price(self) -> Price:
        return self.toolkit.catalogue.policy_price


def open_bench(examples: int, *, shape: str = "embedded", device: str = "cpu", threads: int = 1) -> Bench:
    """`examples` new examples of the default profile and a model of `shape` on `device`; sets torch's threads."""
    import torch

    from benchmarks.shapes import model_of

    torch.set_num_threads(threads)
    params, toolkit, chosen = open_world(load_params(ROOT / "params.yaml"), examples)
    folder = ROOT / (params.model.base or params.model.recipe)
    return Bench(params, Codec.load(folder), toolkit, chosen, model_of(shape, folder, device))


def open_world(params: Params, examples: int) -> tuple[Params, Toolkit, list[Example]]:
    """A profile that makes no more than it must, the tools that know what it made, and `examples` training examples."""
    # The generator needs enough examples to fill every category and both splits.
    few = params.synthesize.model_copy(update={"train_examples": max(examples, 64), "heldout_examples": 16})
    params = params.model_copy(update={"synthesize": few})
    toolkit = Toolkit.from_params(params, ROOT)
    made = generate(params, toolkit)
    return params, made.known_to(toolkit), made.examples["train"][:examples]


def timed(work: Callable[[], T], device: str = "cpu") -> tuple[T, Spent]:
    """Run `work` and say what it took; a GPU is waited for at both ends."""
    if not device.startswith("cuda"):
        return clock.timed(work)
    import torch

    def finished() -> T:
        result = work()
        torch.cuda.synchronize()
        return result

    torch.cuda.synchronize()
    return clock.timed(finished)


def machine(device: str = "cpu") -> str:
    """What the figures were taken on, and how busy it was: a busy machine says so in the report."""
    import torch

    busy = os.getloadavg()[0]
    what = torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()} CPU"
    return f"{what}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, load {busy:.1f}"
