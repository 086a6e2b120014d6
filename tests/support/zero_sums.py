"""How far the gradient of many passes is from the sum in float32, under the shipped settings of DeepSpeed; a script."""

import json
import sys
from typing import Any

import torch

from orchestra.config.compute import Compute
from orchestra.training.distributed import settle
from tests.support.worlds import ROOT

PASSES, WIDTH = 16, 64


def main(strategy: str) -> None:
    """Prints the largest relative distance of a weight's gradient."""
    import deepspeed
    from deepspeed.utils import safe_get_full_grad

    settle(Compute.model_validate({"strategy": strategy, "optimizer": "adamw"}), "grpo")
    settings = json.loads((ROOT / f"models/recipes/deepspeed/{strategy}.json").read_text(encoding="utf-8"))
    settings |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0}
    settings |= {"bf16": {"enabled": True}}
    plain, trained = _model().bfloat16(), _model()
    optimizer = torch.optim.AdamW(trained.parameters())
    engine: Any = deepspeed.initialize(model=trained, optimizer=optimizer, config=settings)[0]
    sums = [torch.zeros(WIDTH, WIDTH) for _ in plain.parameters()]
    for number in range(PASSES):
        rows = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number)).bfloat16()
        plain.zero_grad()
        torch.autograd.backward(_loss(plain, rows))
        for one, weight in zip(sums, plain.parameters(), strict=True):
            assert weight.grad is not None
            one += weight.grad
        engine.set_gradient_accumulation_boundary(number == PASSES - 1)
        engine.backward(_loss(engine, rows), scale_wrt_gas=False)
    pairs = zip(map(safe_get_full_grad, trained.parameters()), sums, strict=True)
    print(max(float((found - one).norm() / one.norm()) for found, one in pairs))


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])


def _loss(model: Any, rows: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(rows).float().square().mean()
    return found


if __name__ == "__main__":
    main(sys.argv[1])
