"""How fast rollouts are against TRL's own loop and against `generate`: `python -m benchmarks.rollout`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, machine, open_bench, timed
from benchmarks.clock import Spent
from benchmarks.command import judge, run_benchmark, usage
from benchmarks.shapes import SHAPES
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.system.environment import quiet
from orchestra.types import Episode

BARS = {"trl": 10.0, "one_by_one": 12.0, "recomputed": 2.0}
"""How many times faster ours must be."""
TITLES = {
    "ours": "this project's rollout",
    "trl": "(a) TRL's environment_factory",
    "one_by_one": "(b) one episode at a time, generate",
    "recomputed": "(c) batched generate, prefix recomputed each turn",
}


@dataclass(frozen=True)
class Line:
    """One way of doing the same episodes."""

    name: str
    tokens: int
    """Written by the policy."""
    spent: Spent
    same: int
    """Episodes whose every token equals ours (meaningful when greedy)."""

    def rate(self, clock: str) -> float:
        """Tokens a second."""
        return self.tokens / float(asdict(self.spent)[clock])


@dataclass(frozen=True)
class Comparison:
    temperature: float
    episodes: int
    lines: dict[str, Line]
    greedy_equal: int | None
    """Of our episodes, those whose every token is the most likely one when the whole is computed at once."""

    def ratios(self, clock: str) -> dict[str, float]:
        """How many times more tokens a second ours makes."""
        ours = self.lines["ours"].rate(clock)
        return {name: ours / line.rate(clock) for name, line in self.lines.items() if name != "ours"}


def compare(bench: Bench, samples: int, temperature: float, repeats: int = 1) -> Comparison:
    """All four on the same examples, prompts, tools and turn limits, warmed up.

    The best of `repeats` of each counts, but (b) is measured once: it takes the longest.
    """
    from benchmarks.generate_policy import GeneratePolicy
    from benchmarks.trl_environment import TrlLoop
    from orchestra.rollout.policies.transformers import TransformersPolicy

    device, codec = str(bench.model.device), bench.codec
    pad: Any = codec.tokenizer.pad_token_id
    mine = TransformersPolicy("", name="ours", model=bench.model, eos_id=codec.eos_id, temperature=temperature)
    theirs = GeneratePolicy(bench.model, eos_id=codec.eos_id, pad_id=pad, temperature=temperature)
    every = len(bench.examples) * samples

    def run(policy: Any, batch: int, count: int, each: int) -> list[Episode]:
        options = RolloutOptions(bench.params.rollout, bench.price, samples=each, batch=batch)
        return rollout(bench.examples[:count], policy, codec, bench.toolkit, options)

    def own_loop(policy: Any, batch: int) -> tuple[list[list[int]], int, Spent]:
        run(policy, batch, 1, 1)
        episodes, spent = timed(lambda: run(policy, batch, len(bench.examples), samples), device)
        return [e.completion_ids for e in episodes], sum(sum(e.mask) for e in episodes), spent

    def trl_loop() -> tuple[list[list[int]], int, Spent]:
        with tempfile.TemporaryDirectory() as folder:
            TrlLoop(bench, bench.examples[:1], 2, temperature, Path(folder))()
            loop = TrlLoop(bench, bench.examples, samples, temperature, Path(folder))
            made, spent = timed(loop, device)
        return made, loop.tokens, spent

    ways: dict[str, Callable[[], tuple[list[list[int]], int, Spent]]] = {
        "ours": lambda: own_loop(mine, every),
        "trl": trl_loop,
        "one_by_one": lambda: own_loop(theirs, 1),
        "recomputed": lambda: own_loop(theirs, every),
    }
    lines: dict[str, Line] = {}
    first: list[list[int]] = []
    # In turns, so that a machine that is busy for a while is so for all of them. The longest is measured once.
    for name in [*ways, *[name for name in ways if name != "one_by_one"] * (repeats - 1)]:
        completions, tokens, spent = ways[name]()
        first = first or completions
        line = Line(name, tokens, spent, sum(a == b for a, b in zip(first, completions, strict=True)))
        if name not in lines or spent.cpu_s < lines[name].spent.cpu_s:
            lines[name] = line
    equal = greedy_equal(bench, run(mine, every, len(bench.examples), 1)) if temperature == 0 else None
    return Comparison(temperature, every, lines, equal)


def greedy_equal(bench: Bench, episodes: Sequence[Episode]) -> int:
    """How many episodes a computation of the whole conversation at once, without any cache, agrees with."""
    import torch

    model: Any = bench.model
    agreed = 0
    for episode in episodes:
        ids = [*episode.prompt_ids, *episode.completion_ids]
        with torch.inference_mode():
            logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0]
        likely = logits[len(episode.prompt_ids) - 1 : -1].argmax(-1).tolist()
        own = zip(likely, episode.completion_ids, episode.mask, strict=True)
        agreed += all(best == said for best, said, mask in own if mask)
    return agreed


def bars(result: Comparison, clock: str) -> dict[str, bool]:
    """By name, whether ours is as many times faster as it must be."""
    ratios, at = result.ratios(clock), f"temperature {result.temperature:g}"
    return {f"{TITLES[name]}, {at}": ratios[name] >= bar for name, bar in BARS.items()}


def table(result: Comparison, clock: str) -> str:
    """One comparison in Markdown."""
    what = "greedy" if result.temperature == 0 else f"temperature {result.temperature:g}"
    rows = [
        f"{result.episodes} episodes, {what}",
        "",
        "| | tokens | CPU s | wall s | tokens/s | ours is faster by | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios = result.ratios(clock)
    for name, line in result.lines.items():
        cells = [TITLES[name], f"{line.tokens:,}", f"{line.spent.cpu_s:.2f}", f"{line.spent.wall_s:.2f}"]
        cells += [f"{line.rate(clock):,.0f}"]
        cells += [f"{ratios[name]:.1f}", f"{BARS[name]:g}"] if name in BARS else ["", ""]
        rows.append("| " + " | ".join(cells) + " |")
    if result.greedy_equal is not None:
        same = ", ".join(f"{name} {line.same}" for name, line in result.lines.items() if name != "ours")
        rows += ["", f"Episodes of the same tokens as ours: {same}."]
        rows += [f"Examples whose greedy tokens equal a computation of the whole, uncached: {result.greedy_equal}."]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    quiet()
    parser = usage(__doc__)
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8, help="episodes of each example, at least 2")
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--repeats", type=int, default=3, help="times that each but (b) is measured; the best counts")
    parser.add_argument("--shape", choices=SHAPES, default="embedded")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    chosen = parser.parse_args(arguments)
    # A busy machine delays the wall clock at random; a GPU's work is not in the process's time.
    clock = "wall_s" if chosen.device.startswith("cuda") else "cpu_s"
    bench = open_bench(chosen.examples, shape=chosen.shape, device=chosen.device, threads=chosen.threads)
    print(
        f"{chosen.shape}, {machine(chosen.device)}; tokens/s and ratios by {clock.removesuffix('_s')} time", flush=True
    )
    results = []
    for temperature in chosen.temperature:
        results.append(compare(bench, chosen.samples, temperature, chosen.repeats))
        print("\n" + table(results[-1], clock), flush=True)
    if chosen.json is not None:
        figures = [asdict(r) | {"ratios": r.ratios(clock)} for r in results]
        chosen.json.write_text(json.dumps({"machine": machine(chosen.device), "runs": figures}, indent=1) + "\n")
    return judge({name: met for result in results for name, met in bars(result, clock).items()})


if __name__ == "__main__":
    run_benchmark(main)
