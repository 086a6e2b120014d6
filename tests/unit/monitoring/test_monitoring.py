"""Drift, and that rules, dashboard and runbook speak of metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from monitoring.drift import LEVEL, MIN_EPISODES, WINDOW, Sample, drift, sample
from orchestra.serving.records.telemetry import Telemetry
from tests.support.worlds import ROOT, episode

RULES = ROOT / "monitoring/prometheus/rules.yaml"
TOOLS = ("gpt-5", "gpt-5-mini", "search", "none")


def traffic(
    seed: int,
    count: int = WINDOW,
    mix: tuple[float, ...] = (0.3, 0.5, 0.15, 0.05),
    usd: float = 1.0,
    seconds: float = 1.0,
    answered: float = 0.96,
    parsed: float = 0.99,
    failed: float = 0.01,
) -> Sample:
    """Served episodes of a made-up model: skewed dollars and seconds, as real ones are."""
    draw = np.random.default_rng(seed)
    counts = draw.multinomial(count, mix)
    return Sample(
        first={name: int(number) for name, number in zip(TOOLS, counts, strict=True) if number},
        cost_usd=(0.01 * usd * draw.lognormal(0, 1, count)).tolist(),
        latency_s=(5 * seconds * draw.lognormal(0, 0.7, count)).tolist(),
        answered=int(draw.binomial(count, answered)),
        turns=2 * count,
        parsed=int(draw.binomial(2 * count, parsed)),
        failed=int(draw.binomial(count, failed)),
    )


USUAL = traffic(0, 1024)


def test_a_sample_says_how_episodes_behaved() -> None:
    lost = episode(solved=None, calls={"gpt-5": 1}, cost_usd=9)
    bad = episode(solved=False, answer=None, parse_error="no call")
    made = sample([episode(calls={"gpt-5": 2, "search": 1}, cost_usd="0.03"), bad, lost])
    assert made.episodes == 2 and made.first == {"gpt-5": 1, "none": 1} and made.failed == 1
    assert made.cost_usd == [0.03, 0.0] and made.answered == 1 and (made.parsed, made.turns) == (4, 5)
    assert drift(sample([]), sample([])) == []


def test_steady_traffic_raises_no_alarm() -> None:
    """300 windows without overlap: checks of a running server see each window many times."""
    assert [signal for seed in range(1, 301) for signal in drift(USUAL, traffic(seed))] == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"mix": (0.15, 0.65, 0.15, 0.05)}, "mix of tools"),
        ({"mix": (0.02, 0.97, 0.01, 0.0)}, "collapse"),
        ({"usd": 1.6}, "dollars"),
        ({"usd": 0.6}, "dollars"),
        ({"seconds": 1.5}, "seconds"),
        ({"answered": 0.84}, "answered"),
        ({"parsed": 0.93}, "parse"),
        ({"failed": 0.08}, "lost to tools"),
    ],
)
def test_each_shift_is_found_in_a_window_of_it_and_by_its_name(change: dict[str, Any], name: str) -> None:
    found = [drift(USUAL, traffic(seed, **change)) for seed in range(20)]
    assert sum(any(name in str(signal) for signal in signals) for signals in found) >= 19
    assert all(signal.p_value < LEVEL for signals in found for signal in signals)
    assert drift(USUAL, traffic(0, MIN_EPISODES - 1, **change)) == []


def metrics(tmp_path: Path) -> set[str]:
    """Every sample name that the gateway can give."""
    telemetry = Telemetry(tmp_path)
    names = set()
    for family in text_string_to_metric_families(telemetry.render().decode()):
        kinds = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
        names |= {family.name + suffix for suffix in kinds[family.type]}
    return names


def test_rules_and_dashboard_use_metrics_that_exist(tmp_path: Path) -> None:
    there = metrics(tmp_path)
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    dashboard = json.loads((ROOT / "monitoring/grafana/orchestra.json").read_text())
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"orchestra_\w+", expression)}
    assert used and used <= there, used - there


def test_every_alert_is_in_the_runbook_and_tested() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    runbook = (ROOT / "monitoring/runbook.md").read_text()
    for rule in rules:
        assert f"## {rule['alert']}\n" in runbook
        assert rule["annotations"]["runbook"] == f"monitoring/runbook.md#{rule['alert'].lower()}"


def test_the_rules_pass_their_own_tests() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (part of the prometheus package)")
    done = subprocess.run(
        [promtool, "test", "rules", str(RULES.with_name("rules.test.yaml"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
