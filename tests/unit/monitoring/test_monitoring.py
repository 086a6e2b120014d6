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
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from monitoring import drift as drifting
from monitoring.drift import CHECKS_A_MONTH, LEVEL, MIN_EPISODES, TESTS, WINDOW, Sample, alike, drift, sample
from monitoring.spending import PER_SOLVED
from orchestra.serving.records.telemetry import Telemetry
from orchestra.serving.releases import vllm
from orchestra.types import StopReason
from tests.support.worlds import ROOT, episode

PROMETHEUS = ROOT / "monitoring/prometheus"
RULES = [PROMETHEUS / "rules.yaml", PROMETHEUS / "workspace.yaml"]
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
    handed_over = episode(calls={"mine": 1}, answer=None).model_copy(update={"stop": StopReason.HANDED_OVER})
    assert sample([handed_over]) == sample([]), "the caller's own tool says nothing about the model"
    assert drift(sample([]), sample([])) == []


@pytest.mark.parametrize(
    ("tasks", "questions", "kept"),
    [
        (0, 100, (0, 820)),  # Nobody names a domain.
        (90, 0, (180, 0)),
        (50, 50, (180, 180)),
        (1, 99, (8, 820)),
        (0, 0, (180, 820)),  # Nothing was asked.
    ],
)
def test_the_evaluated_are_compared_in_the_shares_that_are_served(
    tasks: int, questions: int, kept: tuple[int, int]
) -> None:
    one, other = episode(calls={"book": 1}), episode()
    evaluated = [(one, True)] * 180 + [(other, False)] * 820
    found = alike(evaluated, [(one, True)] * tasks + [(other, False)] * questions)
    assert (found.count(one), found.count(other)) == kept
    few = [(one, True)] * 3 + [(other, False)] * 820
    assert len(alike(few, [(one, True)] * 90)) == 823, "too few were evaluated to be compared alone"


def test_steady_traffic_raises_no_alarm() -> None:
    """300 windows without overlap: checks of a running server see each window many times."""
    assert [signal for seed in range(1, 301) for signal in drift(USUAL, traffic(seed))] == []


def test_every_test_has_its_share_of_the_error_level() -> None:
    """One that is added without a share would raise more false alarms a month than stated."""
    worse = traffic(1, mix=(0.02, 0.97, 0.01, 0.0), usd=2, seconds=2, answered=0.5, parsed=0.5, failed=0.5)
    told = {signal.name for signal in drift(USUAL, worse)} | {PER_SOLVED}
    assert len(told) == TESTS and LEVEL * TESTS * CHECKS_A_MONTH <= 1 + 1e-9


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


def counted(first: dict[str, int], failed: int = 0) -> Sample:
    """Episodes by their first tool, all answered, and those that a tool's failure ended."""
    count = sum(first.values())
    usd, seconds = ([unit * (1 + number % 7) for number in range(count)] for unit in (0.01, 5.0))
    return Sample(first, usd, seconds, answered=count, turns=2 * count, parsed=2 * count, failed=failed)


EVALUATED = counted({"gpt-5": 400, "gpt-5-mini": 500, "search": 104, "none": 20}, failed=10)


BASE = 1 + (np.arange(20_000) * 0.6180339887) % 1


def certain(
    mix: tuple[float, ...] = (0.3, 0.5, 0.15, 0.05), usd: float = 1.0, seconds: float = 1.0, answered: float = 0.95,
    parsed: float = 0.95, failed: float = 0.01,
) -> Sample:  # fmt: skip
    """So many episodes that every difference is beyond chance."""
    count = len(BASE)
    whole = [round(count * share) for share in (answered, parsed, failed)]
    first = {name: round(count * share) for name, share in zip(TOOLS, mix, strict=True) if share}
    return Sample(first, (usd * BASE).tolist(), (seconds * BASE).tolist(), whole[0], count, whole[1], whole[2])


LOST = (0.01 / 1.01, 0.05 / 1.05)


@pytest.mark.parametrize(
    ("small", "large", "name", "told"),
    [
        ({"usd": 1.19}, {"usd": 1.21}, "dollars an episode", (1.5, 1.815)),
        ({"usd": 0.84}, {"usd": 0.82}, "dollars an episode", (1.5, 1.23)),
        ({"seconds": 1.19}, {"seconds": 1.21}, "seconds an episode", (1.5, 1.815)),
        ({"answered": 0.925}, {"answered": 0.915}, "share answered", (0.95, 0.915)),
        ({"answered": 0.999}, {"answered": 0.5}, "share answered", (0.95, 0.5)),
        ({"parsed": 0.925}, {"parsed": 0.915}, "share of turns that parse", (0.95, 0.915)),
        ({"failed": 0.035}, {"failed": 0.05}, "share lost to tools", LOST),
        ({"mix": (0.355, 0.445, 0.15, 0.05)}, {"mix": (0.365, 0.435, 0.15, 0.05)}, "mix of tools", (0.0, 0.065)),
    ],
)
def test_what_is_too_small_to_matter_raises_no_alarm_however_sure(
    small: dict[str, Any], large: dict[str, Any], name: str, told: tuple[float, float]
) -> None:
    assert drift(certain(), certain(**small)) == []
    (signal,) = drift(certain(), certain(**large))
    assert signal.name.startswith(name) and (signal.reference, signal.current) == pytest.approx(told, abs=1e-3)


@pytest.mark.parametrize(
    ("before", "now", "collapsed"), [(0.87, 0.895, False), (0.87, 0.92, True), (0.91, 0.96, False)]
)
def test_a_tool_that_had_nearly_all_before_has_not_collapsed(before: float, now: float, collapsed: bool) -> None:
    one, other = (certain(mix=(share, 1 - share, 0.0, 0.0)) for share in (before, now))
    found = drift(one, other)
    assert [signal.name for signal in found] == ["share of gpt-5 (collapse onto one tool)"] * collapsed
    assert all((signal.reference, signal.current) == pytest.approx((before, now)) for signal in found)


def test_tools_that_are_rare_count_together() -> None:
    """Each would be too rare for the test; that a tenth of the traffic went to such tools is news."""
    one, other = {"gpt-5": 1000}, {"gpt-5": 900, **{f"new {number}": 2 for number in range(50)}}
    (signal,) = drift(counted(one), counted(other))
    assert signal.name.startswith("mix of tools") and signal.current == pytest.approx(0.1)


@pytest.mark.parametrize("tool", ["none", "new"])
def test_a_collapse_onto_a_tool_that_was_rare_or_is_new_is_found(tool: str) -> None:
    for count in (MIN_EPISODES, 60, 100, WINDOW):
        names = [signal.name for signal in drift(EVALUATED, counted({tool: count}))]
        assert names == ["mix of tools (share that moved)", f"share of {tool} (collapse onto one tool)"]


@pytest.mark.parametrize("lost", [350, WINDOW])
def test_an_outage_of_the_tools_is_found_however_few_episodes_it_leaves(lost: int) -> None:
    left = WINDOW - lost
    usual = {name: left * count // 1024 for name, count in EVALUATED.first.items() if left}
    (signal,) = drift(EVALUATED, counted(usual, failed=lost))
    assert signal.name == "share lost to tools" and signal.reference == pytest.approx(10 / 1034)
    assert signal.current == pytest.approx(lost / (lost + sum(usual.values())))
    assert drift(EVALUATED, counted({}, failed=MIN_EPISODES - 1)) == []


SAMPLES = st.builds(
    counted, st.dictionaries(st.sampled_from([*TOOLS, "new"]), st.integers(1, 120)), st.integers(0, WINDOW)
)


@given(SAMPLES, SAMPLES)
def test_whatever_the_counts_each_difference_has_a_probability(reference: Sample, current: Sample) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drifting, "LEVEL", 2.0)
        assert all(0 <= signal.p_value <= 1 for signal in drift(reference, current))


def metrics(tmp_path: Path) -> set[str]:
    """Every sample name that the gateway can give."""
    telemetry = Telemetry(tmp_path)
    names = set()
    for family in text_string_to_metric_families(telemetry.render().decode()):
        kinds = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
        names |= {family.name + suffix for suffix in kinds[family.type]}
    return names


def rules() -> list[dict[str, Any]]:
    return [rule for file in RULES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def test_rules_and_dashboard_use_metrics_that_exist(tmp_path: Path) -> None:
    there = metrics(tmp_path) | set(workspace_metrics())
    dashboard = json.loads((ROOT / "monitoring/grafana/orchestra.json").read_text())
    expressions = [rule["expr"] for rule in rules()]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"orchestra_\w+", expression)}
    assert used and used <= there, used - there


def workspace_metrics() -> set[str]:
    """What the workspace's facts are called, by their file."""
    text = (ROOT / "tasks/records/metrics.py").read_text(encoding="utf-8")
    return {f"orchestra_{name}" for name in re.findall(r'_gauge\(\s*"(\w+)"', text)}


def test_every_alert_is_in_the_runbook_and_tested() -> None:
    """Heard once, silent once."""
    runbook = (ROOT / "monitoring/runbook.md").read_text()
    files = [file.with_name(file.name.replace(".yaml", ".test.yaml")) for file in RULES]
    tested = [
        (one["alertname"], bool(one["exp_alerts"]))
        for file in files
        for test in yaml.safe_load(file.read_text())["tests"]
        for one in test["alert_rule_test"]
    ]
    for rule in rules():
        assert f"## {rule['alert']}\n" in runbook
        assert rule["annotations"]["runbook"] == f"monitoring/runbook.md#{rule['alert'].lower()}"
        assert {(rule["alert"], True), (rule["alert"], False)} <= set(tested), rule["alert"]


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.name)
def test_the_rules_pass_their_own_tests(file: Path) -> None:
    tests = file.with_name(file.name.replace(".yaml", ".test.yaml"))
    done = asked("promtool", "test", "rules", str(tests))
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_and_alertmanager_take_their_files() -> None:
    done = asked("promtool", "check", "config", str(PROMETHEUS / "prometheus.yaml"))
    assert done.returncode == 0 and "19 rules found" in done.stdout, done.stdout + done.stderr
    done = asked("amtool", "check-config", str(PROMETHEUS / "alertmanager.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_and_tickets_have_their_channels() -> None:
    route = yaml.safe_load((PROMETHEUS / "alertmanager.yaml").read_text())
    assert {rule["labels"]["severity"] for rule in rules()} == {"page", "ticket"}
    named = {one["name"] for one in route["receivers"]}
    assert {route["route"]["receiver"], *(one["receiver"] for one in route["route"]["routes"])} == named
    told = {rule["alert"] for rule in rules()}
    for inhibition in route["inhibit_rules"]:
        words = re.findall(
            r'alertname=~?"([^"]+)"', " ".join(inhibition["source_matchers"] + inhibition["target_matchers"])
        )
        assert {word for group in words for word in group.split("|")} <= told


def asked(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A program of Prometheus; the test is left out where it is not installed."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} (Debian's packages prometheus and prometheus-alertmanager)")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=120, check=False)


def test_the_key_that_the_settings_name_is_the_model_servers() -> None:
    """Prometheus takes a file from the folder of its settings."""
    settings = (PROMETHEUS / "prometheus.yaml").read_text(encoding="utf-8")
    (named,) = re.findall(r"credentials_file: ([^}]+)\}", settings)
    assert (PROMETHEUS / named).resolve() == (ROOT / vllm.KEY).resolve()
    assert f"credentials_file: {named}}}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
