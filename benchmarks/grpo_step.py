"""Where the time of a GRPO step goes: `python -m benchmarks.grpo_step`."""

from __future__ import annotations

import inspect
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, machine, open_bench
from benchmarks.command import judge, run_benchmark, usage
from orchestra.system.environment import quiet

BAR = 0.7
"""Share of a step that the model's own forward and backward passes must have."""
OWN = ("rollout: the model", "training: forward", "training: backward")
REST = "TRL, transformers, logging"


class Parts:
    """Seconds of this process by part; a part inside another counts for the inner one alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self.marks: list[dict[str, float]] = []
        self._open = [REST]
        self._since = clock()

    def turn(self) -> None:
        """Give what has passed to the part that is open."""
        now = self.clock()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.turn()
        self._open.append(name)
        try:
            yield
        finally:
            self.turn()
            self._open.pop()

    def mark(self) -> None:
        """Remember the seconds so far."""
        self.turn()
        self.marks.append(self.seconds.copy())

    @contextmanager
    def counted(self, owner: Any, method: str, name: str) -> Iterator[None]:
        """Count calls of a method (plain or async) for a part while this is open."""
        original = owner.__dict__[method]

        def plain(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return original(*args, **kwargs)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return await original(*args, **kwargs)

        setattr(owner, method, awaited if inspect.iscoroutinefunction(original) else plain)
        try:
            yield
        finally:
            setattr(owner, method, original)


def measure(bench: Bench, steps: int, warm: int, work: Path, clock: Callable[[], float]) -> dict[str, float]:
    """Mean seconds of a step by part, over the steps after the first `warm`, through the real training."""
    from contextlib import ExitStack

    from accelerate import Accelerator
    from trl import GRPOTrainer

    from orchestra.rollout.inference.shared_prefix import SharedContexts
    from orchestra.rollout.policies.transformers import TransformersPolicy
    from orchestra.tools.session import ToolSession
    from orchestra.training.grpo import rollouts
    from orchestra.training.grpo.passes import tree_attention
    from orchestra.training.grpo.trainer import train_grpo
    from orchestra.training.optimizer import MuonAdamW

    parts = Parts(clock)
    settings = bench.params.grpo.model_copy(
        update={"steps": steps, "eval_every": steps + 1, "save_steps": steps + 1, "processes": 1}
    )
    watched = [
        (SharedContexts, "__init__", "rollout: the model"),
        (SharedContexts, "feed", "rollout: the model"),
        (TransformersPolicy, "_choose", "rollout: choosing tokens"),
        (TransformersPolicy, "_noise", "rollout: choosing tokens"),
        (ToolSession, "__init__", "rollout: tools"),
        (ToolSession, "call", "rollout: tools"),
        (rollouts.Rounds, "__call__", "rewards and measures"),
        (GRPOTrainer, "_get_per_token_logps_and_entropies", "training: forward"),
        (tree_attention, "scored", "training: forward"),
        (Accelerator, "backward", "training: backward"),
        (MuonAdamW, "step", "optimizer"),
    ]
    module: Any = rollouts
    original = module.rollout

    def rollout(*args: Any, **kwargs: Any) -> Any:
        # A step begins where the one before it ended: at its rollout.
        parts.mark()
        with parts.part("rollout: prompts, parsing, verdicts"):
            return original(*args, **kwargs)

    with ExitStack() as stack:
        for owner, method, name in watched:
            stack.enter_context(parts.counted(owner, method, name))
        stack.callback(setattr, rollouts, "rollout", original)
        module.rollout = rollout
        train_grpo(
            bench.model, bench.codec, bench.toolkit, bench.examples, settings, bench.params.rollout, bench.price, work,
            log=lambda numbers, step: None, evaluate=lambda model: {},
        )  # fmt: skip
    first, last = parts.marks[warm], parts.marks[-1]
    count = len(parts.marks) - 1 - warm
    return {name: (last[name] - first[name]) / count for name in last}


def own_share(seconds: dict[str, float]) -> float:
    """Of a step, what the model's own passes take."""
    return sum(seconds.get(name, 0.0) for name in OWN) / sum(seconds.values())


def bars(seconds: dict[str, float]) -> dict[str, bool]:
    """By name, whether each is met."""
    return {"the model's own passes": own_share(seconds) >= BAR}


def report(seconds: dict[str, float], what: str) -> str:
    """Parts in Markdown, largest first, and whether the bar is met."""
    total = sum(seconds.values())
    rows = [what, "", "| part | s | share |", "|---|---|---|"]
    rows += [f"| {name} | {s:.3f} | {s / total:.1%} |" for name, s in sorted(seconds.items(), key=lambda x: -x[1])]
    rows += [f"| a step | {total:.3f} | |", "", f"The model's own passes: {own_share(seconds):.1%} (bar: {BAR:.0%})."]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    quiet()
    parser = usage(__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm", type=int, default=2, help="first steps that are not counted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    chosen = parser.parse_args(arguments)
    bench = open_bench(max(chosen.steps * 8, 64), threads=chosen.threads)
    with tempfile.TemporaryDirectory() as work:
        seconds = measure(bench, chosen.steps, chosen.warm, Path(work), time.process_time)
    settings = bench.params.grpo
    what = f"{settings.examples_per_step} examples x {settings.group_size} samples, CPU time; {machine()}"
    print(report(seconds, what))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"machine": machine(), "seconds": seconds}, indent=1) + "\n")
    return judge(bars(seconds))


if __name__ == "__main__":
    run_benchmark(main)
