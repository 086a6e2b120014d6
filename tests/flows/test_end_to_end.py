"""The whole flow as a user runs it, at micro scale: real Prefect, DVC, MLflow, Great Expectations and TRL."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestra.system.environment import machine
from orchestra.system.processes import alive, descendants, services
from orchestra.system.runs import runs
from orchestra.training.resume import last_step
from tasks.platform.ledger import LedgerTail
from tests.flows.workspace import TIMEOUT_S, Workspace

STAGES = ["synthesize", "validate", "sft", "grpo", "evaluate"]
OUTPUTS = [
    "data/generated/train.jsonl",
    "data/generated/heldout.jsonl",
    "data/validated/train.jsonl",
    "data/quarantine/reasons.json",
    "reports/data.html",
    "reports/data_docs/index.html",
    "reports/validate.json",
    "models/sft/model.safetensors",
    "models/sft/manifest.json",
    "reports/sft.json",
    "models/grpo/model.safetensors",
    "models/grpo/manifest.json",
    "reports/grpo_steps.jsonl",
    "reports/evaluation/episodes.jsonl",
    "reports/evaluation/comparison.json",
    "reports/evaluation/table.md",
    "reports/evaluate.json",
    "reports/decision.html",
    "dvc.lock",
]

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def first(micro: Workspace) -> list[str]:
    """What the first run printed."""
    return micro.orchestra("run")


@pytest.fixture
def beside(first: list[str], micro: Workspace, prefect: None) -> Workspace:
    """The same workspace, whose flows ask a Prefect API that runs already."""
    from prefect.settings import PREFECT_API_URL

    return Workspace(micro.root, {"PREFECT_API_URL": str(PREFECT_API_URL.value())})


def position(lines: list[str], pattern: str) -> int:
    return next(index for index, line in enumerate(lines) if re.search(pattern, line))


def test_every_stage_runs_in_order_and_the_end_tells_it_all(first: list[str], micro: Workspace) -> None:
    began = [position(first, rf"^{name}: running") for name in STAGES]
    assert began == sorted(began)
    text = "\n".join(first)
    for said in ("| SFT model |", "always strongest", "Gate: promoted as version 1", "Serving: http://127.0.0.1:"):
        assert said in text
    for place in ("Prefect UI", "MLflow UI", "Data page", "Data Docs", "Decision page"):
        assert re.search(rf"^  {place} ", text, re.M)
    assert first[-1].startswith("retrain: finished in ")
    assert "Traceback" not in text and "Error" not in text


@pytest.mark.parametrize("path", OUTPUTS)
def test_every_output_is_there(first: list[str], micro: Workspace, path: str) -> None:
    assert (micro.root / path).stat().st_size > 0


def test_nothing_half_written_is_left_and_git_is_clean(first: list[str], micro: Workspace) -> None:
    assert not [path for path in micro.root.rglob(".*.partial") if ".dvc" not in path.parts]
    assert not (micro.root / "work" / "sft").exists()
    status = subprocess.run(["git", "status", "--short"], cwd=micro.root, capture_output=True, text=True, check=True)
    assert (
        sorted(status.stdout.split("\n")) == ["", " M params.yaml", "?? dvc.lock"] or status.stdout == "?? dvc.lock\n"
    )


def test_mlflow_has_a_parent_and_a_child_per_stage(first: list[str], micro: Workspace) -> None:
    runs = micro.runs()
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(parents) == 1 and {run.info.status for run in runs} == {"FINISHED"}
    parent = parents[0]
    assert [run.info.run_name for run in reversed(children)] == STAGES
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {parent.data.tags[f"stage.{name}"] for name in STAGES} == {"ran"}
    assert parent.data.tags["decision"] == "Promoted" and parent.data.tags["machine"] == machine()
    for run in children:
        hashes = {key: value for key, value in run.data.tags.items() if key.startswith(("in.", "out."))}
        assert hashes and all(re.fullmatch(r"[0-9a-f]{32}(\.dir)?", value) for value in hashes.values())
    assert any(key.startswith("evaluate.") for key in parent.data.metrics)


def test_the_run_holds_what_identifies_it(first: list[str], micro: Workspace) -> None:
    names = {path.name for path in (micro.root / ".state" / "mlartifacts").rglob("*") if path.is_file()}
    ledger = f"{micro.runs()[-1].info.run_id}.jsonl"
    assert {"dvc.lock", "dvc.yaml", "params.yaml", "decision.html", "sft.log", ledger} <= names


def test_the_record_of_the_run_tells_every_dollar_of_its_ledger(first: list[str], micro: Workspace) -> None:
    (record,) = (one for one in runs(micro.root) if one.flow == "retrain")
    booked = LedgerTail(micro.root, record.mlflow_run).take()
    assert sum(stage.usd for stage in record.stages.values()) == booked
    metrics = next(run for run in micro.runs() if run.info.run_id == record.mlflow_run).data.metrics
    assert metrics["cost/total_usd"] == pytest.approx(float(booked))
    assert (
        metrics["cost/deploy_usd"] == pytest.approx(float(record.stages["deploy"].usd))
        and metrics["cost/deploy_usd"] > 0
    )


def test_the_orchestrator_answers(micro: Workspace, beside: Workspace) -> None:
    lines = micro.orchestra("ask", "What is 37 * 24?", "--preference", "cheap")
    assert any("$" in line for line in lines)
    assert any(line.startswith("monitor: version 1 is the champion") for line in beside.orchestra("monitor"))


def test_status_says_it_all(first: list[str], micro: Workspace) -> None:
    text = "\n".join(micro.orchestra("status"))
    for name in STAGES:
        assert re.search(rf"^  {name} +current$", text, re.M)
    assert re.search(r"^  champion +version 1$", text, re.M) and re.search(r"^  gateway +http://127.* up ", text, re.M)
    assert re.search(r"^  promote +version 1 promoted, ", text, re.M) and "Failed" not in text
    assert re.search(r"^  deploy +version 1 released, ", text, re.M)
    plan = "\n".join(micro.orchestra("plan", "--from", "grpo"))
    assert re.search(r"^sft +stays", plan, re.M) and re.search(r"^evaluate +may run +\d+ (s|min)", plan, re.M)


def test_again_with_nothing_changed(micro: Workspace, beside: Workspace) -> None:
    before = {run.info.run_id for run in micro.runs()}
    serving = services(micro.root)
    lines = beside.orchestra("run")
    assert lines[:6] == ["retrain: starting", *(f"{name}: unchanged" for name in STAGES)]
    assert not [line for line in lines if "running, because" in line]
    new = [run for run in micro.runs() if run.info.run_id not in before]
    assert len(new) == 1 and {new[0].data.tags[f"stage.{name}"] for name in STAGES} == {"unchanged"}
    assert services(micro.root) == serving


def test_a_refusal_is_a_normal_ending_with_a_name(micro: Workspace, beside: Workspace) -> None:
    serving, file = services(micro.root), micro.root / "params.yaml"
    params = file.read_text(encoding="utf-8")
    lines = beside.orchestra("run", "--set", "promote.min_accuracy=1.0")
    file.write_text(params, encoding="utf-8")
    assert "params.yaml: promote.min_accuracy: 0.0 → 1.0" in lines
    assert any(line.startswith("Gate: refused") for line in lines) and ", rejected: " in lines[-1]
    assert services(micro.root) == serving and micro.runs()[0].info.status == "FINISHED"


def test_a_broken_input_is_one_line_that_names_it(micro: Workspace, beside: Workspace) -> None:
    file = micro.root / "data" / "catalogue" / "prices.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text("prices: [", encoding="utf-8")
    try:
        lines = beside.orchestra("run", "--until", "synthesize", code=2)
    finally:
        file.write_text(text, encoding="utf-8")
    assert [line for line in lines if line.startswith("error: ")] == [lines[-1]]
    assert "prices.yaml" in lines[-1] and "Traceback" not in "\n".join(lines)
    assert micro.runs()[0].data.tags["orchestra.error"]
    status = micro.orchestra("status")
    assert status[0] == "Failed" and re.search(r"^  retrain \S+ failed, ", status[1]) and "prices.yaml" in status[2]
    why = "\n".join(micro.orchestra("why"))
    assert re.search(r"^Cause: ConfigError: .*prices\.yaml", why, re.M) and "\nMeaning: params.yaml" in why
    again = beside.orchestra("rerun")
    assert "synthesize: unchanged" in again, "found out before a stage ran, it cost no output"


def step(root: Path) -> int:
    """Of the newest whole checkpoint of sft; 0 without one."""
    return max(map(last_step, (root / "work" / "sft").glob("*/checkpoints")), default=0)


def until_a_checkpoint(flow: subprocess.Popen[str], root: Path, after: int = 0) -> int:
    deadline = time.monotonic() + 600
    while step(root) <= after and flow.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return step(root)


def test_kill_9_leaves_no_orphan_and_the_same_command_goes_on_exactly(first: list[str], micro: Workspace) -> None:
    """The stage is killed, which the flow starts again; then the flow, which leaves that to the user's command."""
    again = ("run", "--until", "sft")
    flow = micro.start(*again, "--set", "sft.seed=1", "--set", "sft.epochs=3", "--set", "sft.save_steps=2")
    assert flow.stdout is not None
    assert any(line.startswith("sft: running") for line in flow.stdout)
    assert "works in this workspace" in micro.orchestra(*again, code=2)[-1]
    saved = until_a_checkpoint(flow, micro.root)
    (stage,) = [pid for pid in descendants(flow.pid) if b"tasks.sft" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(stage, signal.SIGKILL)
    assert any(re.match(r"sft: continues from step [1-9]", line) for line in flow.stdout)
    until_a_checkpoint(flow, micro.root, saved)
    family = [flow.pid, *descendants(flow.pid)]
    assert len(family) >= 4, "the flow, its API, dvc and the stage"
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    flow.stdout.close()
    gone = time.monotonic() + 15
    while any(alive(pid) for pid in family) and time.monotonic() < gone:
        time.sleep(0.05)
    assert [pid for pid in family if alive(pid)] == []
    assert not (micro.root / "models" / "sft").exists() and step(micro.root) > saved

    lines = micro.orchestra(*again)
    assert any(re.match(r"sft: continues from step [1-9]", line) for line in lines), lines
    closed = [run for run in micro.runs() if run.data.tags.get("orchestra.closed")]
    assert [run.info.status for run in closed] == ["KILLED", "KILLED"]

    weights = micro.root / "models/sft/model.safetensors"
    resumed = weights.read_bytes()
    whole = [sys.executable, "-m", "tasks.sft"]
    subprocess.run(whole, cwd=micro.root, env=micro.env, check=True, capture_output=True, timeout=TIMEOUT_S)
    assert weights.read_bytes() == resumed, "as if nothing had been killed"
