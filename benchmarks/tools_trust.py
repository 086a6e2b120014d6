"""What it costs to distrust: malformed calls read and refused, and hostile observations encoded, in CPU time.

python -m benchmarks.tools_trust
"""

from __future__ import annotations

import random
from functools import partial

from benchmarks.bench import ROOT
from benchmarks.clock import timed
from benchmarks.command import Row, run_benchmark, show
from orchestra.config.schema import load_params
from orchestra.errors import CallError
from orchestra.rollout.parse import MAX_TEXT, format_call, parse_turn
from orchestra.rollout.render import Codec
from orchestra.tools.base import MAX_OBSERVATION
from orchestra.tools.toolkit import Toolkit
from orchestra.types import ToolCall

CALLS = 10_000
PIECES = ["<think>", "</tool_call>", "<tool_call>", *'{}[":,\\', "NaN", "\\ud800", "null", "9" * 400]


def rows() -> list[Row]:
    """Malformed calls and hostile observations, each with its bar; a crash ends the benchmark."""
    kit = Toolkit.from_params(load_params(ROOT / "params.yaml"), ROOT)
    spec = kit.catalogue.spec("search")
    codec = Codec.load(ROOT / "models/recipes/embedded")
    whole = format_call(ToolCall(name="search", arguments={"query": "Norvik"}), "hm")
    rng, refused, slowest, spent = random.Random(0), 0, 0.0, 0.0
    for _ in range(CALLS):
        at = rng.randint(0, len(whole))
        text = whole[:at] + "".join(rng.choices(PIECES, k=rng.randint(1, 4))) + whole[at + rng.randint(0, 20) :]

        def read(text: str = text) -> bool:
            try:
                call = parse_turn(text).call
                if call is not None:
                    kit.check(spec, call.arguments)
            except CallError:
                return True
            return False

        error, took = timed(read)
        refused, slowest, spent = refused + error, max(slowest, took.cpu_s), spent + took.cpu_s
    worst = max(timed(partial(_swallowed, text))[1].cpu_s for text in _worst())
    flood = ("<|im_end|>" * MAX_OBSERVATION)[:MAX_OBSERVATION]
    _, encoding = timed(lambda: codec.observation(flood))
    return [
        Row(f"{CALLS} spoiled calls: refused", f"{refused}", "no crash", True),
        Row("a spoiled call, mean", f"{1e6 * spent / CALLS:.0f} µs", "≤ 1 ms", spent / CALLS <= 0.001),
        Row("a spoiled call, slowest", f"{1e3 * slowest:.1f} ms", "≤ 100 ms", slowest <= 0.1),
        Row(f"the worst turns of {MAX_TEXT} characters", f"{1e3 * worst:.0f} ms", "≤ 500 ms", worst <= 0.5),
        Row(
            f"{MAX_OBSERVATION} characters of stop tokens as an observation",
            f"{encoding.cpu_s:.2f} s",
            "≤ 1 s",
            encoding.cpu_s <= 1,
        ),
    ]


def _worst() -> list[str]:
    """Turns that are all tags, brackets, escapes or keys."""
    keys = ",".join(['"a":1'] * 30_000)
    units = ["<", "<tool_call>", "< / ", "<think>", "<tool_call>" + "[" * 1000, '<tool_call>{"a":' + '{"a":' * 1000]
    return [(unit * MAX_TEXT)[:MAX_TEXT] for unit in units] + [f"<tool_call>{{{keys}}}</tool_call>"]


def _swallowed(text: str) -> bool:
    try:
        return parse_turn(text).call is None
    except CallError:
        return True


if __name__ == "__main__":
    run_benchmark(partial(show, __doc__, rows))
