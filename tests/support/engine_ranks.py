"""A training over several ranks whose episodes a vLLM server plays; started alone, this script starts the ranks."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from orchestra.config.schema import Grpo
from orchestra.training import distributed
from orchestra.training.compute.lora import adapted
from orchestra.training.grpo.engine.sync import RolloutEngine
from orchestra.training.grpo.trainer import train_grpo
from tests.support.engines import HEAD, engine, servers
from tests.support.worlds import PRICE, ROOT, codec, toolkit, warm_model
from tests.unit.training.grpo.test_trainer import LIMITS, examples

MODULE = "tests.support.engine_ranks"


def main(root: Path, work: Path, settings: Grpo, machines: int) -> None:
    """`root` is the workspace with vLLM and the base, `work` is where the ranks leave what they saw.

    With several `machines` each rank has one of its own, as far as it knows.
    """
    if settings.processes > 1 and not distributed.joined():
        command = [sys.executable, "-m", MODULE, str(root), str(work), settings.model_dump_json(), str(machines)]
        distributed.launch(command, settings.processes, work)
    else:
        if machines > 1:
            os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        _train(root, work, settings)


def _train(root: Path, work: Path, settings: Grpo) -> None:
    number = distributed.rank()
    model, logs = warm_model(head_dim=HEAD), list[dict[str, float]]()
    if settings.lora is not None:
        model = adapted(model, settings.lora, settings.seed)
    deepspeed = None
    if settings.strategy != "ddp":
        deepspeed = ROOT / "models/recipes/deepspeed" / f"{settings.strategy}.json"
    world = work / f"world-{number}"
    world.mkdir()
    played = engine(root, work, settings)
    sizes = _weights_while_playing(played)
    try:
        result = train_grpo(
            model, codec(), toolkit(world), examples(), settings, LIMITS, PRICE, work,
            lambda metrics, step: logs.append(metrics), lambda current: {"seen": 1.0}, deepspeed, played,
        )  # fmt: skip
        own = len(servers())
    finally:
        played.close()
    with result.whole() as trained:
        if number == 0:
            found = {name: one.detach().clone().contiguous() for name, one in trained.named_parameters()}
            save_file(found, work / "trained.safetensors")
    told = {
        "equal": played.equal, "history": result.history, "logs": logs, "servers": own,
        "restarts": 0 if played.server is None else played.server.restarts, "sizes": sizes,
        "left": len(servers()),
    }  # fmt: skip
    (work / f"rank-{number}.json").write_text(json.dumps(told), encoding="utf-8")


def _weights_while_playing(played: RolloutEngine) -> list[int]:
    """How many weights this rank holds at each round that the server plays."""
    real, sizes, synced = played.policy, list[int](), dict[str, Any]()

    def sync(model: Any) -> None:
        synced["model"] = model
        type(played).sync(played, model)

    def policy(temperature: float, seed: int) -> Any:
        if temperature:
            sizes.append(sum(one.numel() for one in synced["model"].parameters()))
        return real(temperature, seed)

    played.sync, played.policy = sync, policy  # type: ignore[method-assign]
    return sizes


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Grpo.model_validate_json(sys.argv[3]), int(sys.argv[4]))
