"""The benchmarks run, compare like with like, and their larger models act as the small one."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import domains, gpu_step, grpo_step, memory, rollout, rollout_latency, shared_prefix, validation
from benchmarks.bench import ROOT, Bench, open_bench
from benchmarks.clock import Spent
from benchmarks.gpu_step_trl import Timed, Work
from benchmarks.grpo_step import BAR, OWN, Parts, measure, report
from benchmarks.rollout import compare, table
from benchmarks.shapes import SHAPES, grow
from benchmarks.synthesis import Line
from benchmarks.synthesis import bars as synthesis_bars
from benchmarks.synthesis import table as synthesis_table
from orchestra.rollout.policies.transformers import load_model


@pytest.fixture(scope="module")
def bench() -> Bench:
    return open_bench(2)


def test_all_four_ways_write_the_same_tokens_when_greedy(bench: Bench) -> None:
    result = compare(bench, 2, 0.0)
    assert {name: line.same for name, line in result.lines.items()} == dict.fromkeys(result.lines, result.episodes)
    assert len({line.tokens for line in result.lines.values()}) == 1
    assert result.greedy_equal == len(bench.examples)
    assert all(ratio > 0 for ratio in result.ratios("cpu_s").values())
    assert "| 12 |" in table(result, "cpu_s")


def test_a_larger_shape_computes_the_same_function() -> None:
    small = load_model(ROOT / "models/base/embedded")
    ids = torch.randint(8, 1000, (2, 50), generator=torch.Generator().manual_seed(0))
    big = grow(small, SHAPES["double"]).eval()
    assert big.num_parameters() > 4 * small.num_parameters()
    with torch.inference_mode():
        torch.testing.assert_close(big(ids).logits, small(ids).logits, atol=2e-3, rtol=1e-3)


def test_a_steps_parts_add_up_to_it(bench: Bench, tmp_path: Path) -> None:
    small = {"examples_per_step": 2, "group_size": 2}
    params = bench.params.model_copy(update={"grpo": bench.params.grpo.model_copy(update=small)})
    tiny = Bench(params, bench.codec, bench.toolkit, bench.examples, load_model(ROOT / "models/base/embedded"))
    seconds = measure(tiny, 3, 1, tmp_path, time.perf_counter)
    assert all(seconds[name] > 0 for name in OWN)
    assert f"bar: {BAR:.0%}" in report(seconds, "")


def test_both_passes_have_the_same_gradient(bench: Bench, tmp_path: Path) -> None:
    small = {"examples_per_step": 2, "group_size": 4, "min_group_std": 0.0}
    params = bench.params.model_copy(update={"grpo": bench.params.grpo.model_copy(update=small)})
    tiny = Bench(params, bench.codec, bench.toolkit, bench.examples, bench.model)
    lines = shared_prefix.compare(tiny, shared_prefix.batches(tiny, 2, tmp_path))
    assert len(lines) == 2
    assert all(line.packed < line.tokens and line.difference < shared_prefix.NOISE for line in lines)
    assert "bar: 1.5 x" in shared_prefix.report(lines, "")


def test_an_episode_does_not_wait_for_the_tools_of_others() -> None:
    result = rollout_latency.measure(24, 8, scale=0.1)
    assert result.whole
    assert result.faster > 1.5
    assert "bar: 3 x" in rollout_latency.report(result)


def test_the_bars_of_a_rollout_can_be_missed() -> None:
    def line(name: str, cpu_s: float) -> rollout.Line:
        return rollout.Line(name, 1000, Spent(cpu_s, cpu_s), 8)

    lines = [line("ours", 1.0), line("trl", 9.9), line("one_by_one", 12.0), line("recomputed", 1.9)]
    found = rollout.bars(rollout.Comparison(0.0, 8, {one.name: one for one in lines}, None), "cpu_s")
    assert list(found.values()) == [False, True, False] and all("temperature 0" in name for name in found)


@pytest.mark.parametrize(
    ("result", "met"),
    [
        (rollout_latency.Result(6.0, 2.0, 1.9, 64, True), [True, True, True]),
        (rollout_latency.Result(6.0, 2.1, 1.8, 64, False), [False, False, False]),
    ],
)
def test_the_bars_of_slow_tools_can_be_missed(result: rollout_latency.Result, met: list[bool]) -> None:
    assert list(rollout_latency.bars(result).values()) == met


@pytest.mark.parametrize(("shared_s", "difference", "met"), [(0.5, 1e-5, [True, True]), (0.7, 2e-4, [False, False])])
def test_the_bars_of_shared_prefixes_can_be_missed(shared_s: float, difference: float, met: list[bool]) -> None:
    lines = [shared_prefix.Line(8, 100, 50, 1.0, shared_s, difference)]
    assert list(shared_prefix.bars(lines).values()) == met


@pytest.mark.parametrize(("rest_s", "met"), [(0.4, True), (0.5, False)])
def test_the_bar_of_a_step_can_be_missed(rest_s: float, met: bool) -> None:
    assert list(grpo_step.bars({OWN[0]: 0.5, OWN[1]: 0.25, OWN[2]: 0.25, "optimizer": rest_s}).values()) == [met]


@pytest.mark.parametrize(("cpu_s", "met"), [(40.0, True), (40.1, False)])
def test_the_bar_of_synthesis_is_of_two_idle_cores_and_can_be_missed(cpu_s: float, met: bool) -> None:
    lines = [Line(20_000, workers, 99.0, cpu_s, 150.0) for workers in (1, 2)]
    assert synthesis_bars(lines) == {"20,000 examples": met}


@pytest.mark.parametrize(("wall_s", "memory_mb", "met"), [(60.0, 2000.0, [True, True]), (61.0, 2001.0, [False, False])])
def test_the_bars_of_validation_are_of_one_size_and_can_be_missed(
    wall_s: float, memory_mb: float, met: list[bool]
) -> None:
    found = validation.Figures(validation.BARRED_ROWS, 0, 2, wall_s, 99.0, memory_mb)
    assert list(validation.bars(found).values()) == met
    assert validation.bars(replace(found, rows=20_000)) == {}


def test_the_bar_of_memory_can_be_missed_on_both_sides() -> None:
    assert memory.bars({"a": 0.15, "b": -0.16, "c": 0.16}) == {"a": True, "b": False, "c": False}


@pytest.mark.parametrize(("cpu_ms", "met"), [(2.0, True), (2.1, False)])
def test_the_bar_of_a_domains_copy_is_of_processor_time_and_can_be_missed(cpu_ms: float, met: bool) -> None:
    assert domains.timed_row("a copy", (9.0, cpu_ms), 2.0) == ("a copy", f"9.00 ms, of CPU {cpu_ms:.2f}", "≤ 2 ms", met)
    assert domains.timed_row("a copy", (9.0, cpu_ms)).met is None


def test_a_part_inside_another_counts_once() -> None:
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    parts = Parts(lambda: next(now))
    with parts.part("outer"), parts.part("inner"):
        pass
    parts.mark()
    rest = sum(parts.seconds.values()) - parts.seconds["outer"] - parts.seconds["inner"]
    assert (parts.seconds["outer"], parts.seconds["inner"], rest) == (2.0 + 4.0, 3.0, 1.0 + 5.0)


def test_a_grown_domain_is_copied_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domains, "REPEATS", 2)
    domain = domains.grown(tmp_path / "mock", 150_000)
    assert 150_000 <= len(domain.image) < 500_000
    assert min(*domains.copy_ms(domain), *domains.verdict_ms(domain, 20)) > 0


def test_a_line_of_synthesis_says_what_idle_cores_would_give() -> None:
    line = Line(examples=20_000, workers=2, wall_s=40.0, cpu_s=25.0, peak_mb=150.4)
    assert (line.rate, line.idle_rate) == (500.0, 1_600.0)
    assert "| 20,000 | 2 | 40.0 | 25.0 | 500 | 1.25 | 1,600 | 150 |" in synthesis_table([line])


def test_a_step_on_a_gpu_counts_neither_first_nor_last_steps_nor_the_sync_as_writing() -> None:
    clock = Timed(steps=[90.0, 9.0, 2.0, 4.0, 50.0], generated=[80.0, 8.0, 1.5, 2.5, 9.0], tokens=[9, 9, 100, 300, 9])
    means = clock.means(gpu_step.WARM)
    assert means == {"step_s": 3.0, "generate_s": 2.0, "tokens": 200.0}
    found = {
        "ours": gpu_step.Figures(
            **means, sync_s=1.0, peak_gib=9.9, measures={}, sync_parts={"write": 0.5, "load": 0.25}
        ),
        "trl": gpu_step.Figures(step_s=6.0, generate_s=2.0, sync_s=0.0, tokens=100.0, peak_gib=12.0),
    }
    text = gpu_step.table(found, 10.4)
    assert "| this project | 3.00 | 2.00 | 1.00 | 200 | 9.9 |" in text
    assert "Its weights to vLLM: write 0.50 s, load 0.25 s" in text
    assert "TRL's step takes 2.00 times as long." in text
    assert Work().advantages(3) == [1.0, -1.0, 1.0]
