"""`orchestra learn` as a user runs it, at micro scale: killed, gone on, repeated, and with a seed that fails."""

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.evaluation.claims.page import BEGIN, END
from orchestra.system.processes import alive, descendants
from tests.flows.workspace import Workspace, make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

TIMEOUT_S = 3000
"""Some two minutes on idle cores."""
COMMAND = ("learn", "--seeds", "0,1", "--jobs", "2", "--split", "heldout", "--examples", "12", "--probe-examples", "2")
UNTRAINED = ("base", "base, choices by rule")
STAGES = ("evaluate", "probes")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    yield make(tmp_path_factory.mktemp("learn"))


@pytest.fixture(scope="module")
def killed(workspace: Workspace) -> list[str]:
    """What it printed until it was killed, the first GRPO having begun."""
    process = workspace.start(*COMMAND)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("seed 0 · outcome alone · grpo: "):
            break
    family = [process.pid, *descendants(process.pid)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(family) >= 2 and [pid for pid in family if alive(pid)] == [], "\n".join(lines)
    return lines


@pytest.fixture(scope="module")
def whole(workspace: Workspace, killed: list[str]) -> list[str]:
    """The same command again, to its end."""
    return workspace.orchestra(*COMMAND, timeout_s=TIMEOUT_S)


def table(page: str) -> list[str]:
    """The rows of the claims table, times aside."""
    return [line for line in page.splitlines() if re.search(r"\| (yes|yes, not clearly|\*\*no\*\*) \|$", line)]


def test_it_goes_on_after_a_kill(killed: list[str], whole: list[str]) -> None:
    again = [line for line in whole if line.endswith("from an earlier run")]
    before = [f"{of} · {stage}" for of in UNTRAINED for stage in STAGES]
    sft = ["seed 0 · sft", *(f"seed 0 · SFT · {stage}" for stage in STAGES)]
    kept = {line.split(": done")[0] for line in again}
    assert {"rules · evaluate", *before, *sft} <= kept
    # The other seed may have been further; of what was killed nothing is kept.
    assert not any(line.startswith("seed 0 · outcome alone · grpo") for line in kept)
    assert any(line.startswith("seed 1 · probes: done") for line in whole)


def test_the_page_and_the_readme_have_the_table(workspace: Workspace, whole: list[str]) -> None:
    page = (workspace.root / "docs/claims.md").read_text(encoding="utf-8")
    readme = (workspace.root / "README.md").read_text(encoding="utf-8")
    shown = readme.partition(BEGIN)[2].partition(END)[0]
    assert "(simulated experts)" in page and "simulated experts" in shown
    assert "Training seeds 0, 1" in page and "12 held-out examples" in page and "profile micro" in page
    assert len(table(page)) >= 20 and len(table(shown)) == 11
    means = [line.split(" | ")[:3] for line in table(page)]
    assert all(line.split(" | ")[:3] in means for line in table(shown))
    columns = "| | base | base, choices by rule | SFT | outcome alone | published Eq. 1-3 | **ours** |"
    assert columns in page and columns in shown
    assert "`orchestra learn --seeds 0,1 --split heldout --examples 12 --probe-examples 2 --jobs 2`" in page
    assert "`evaluate.examples` 12 (default 8)" in page
    assert whole[-1] == "wrote docs/claims.md and the table in README.md"


def test_the_pipelines_own_outputs_stay_as_they_are(workspace: Workspace, whole: list[str]) -> None:
    assert not (workspace.root / "models/sft").exists() and not (workspace.root / "models/grpo").exists()
    assert (workspace.root / "data/validated/train.jsonl").is_file()


def test_sft_leaves_the_watched_examples_out(workspace: Workspace, whole: list[str]) -> None:
    reports = [json.loads(file.read_text()) for file in (workspace.root / "work/learn").glob("sft-*/reports/sft.json")]
    trained = (workspace.root / "data/validated/train.jsonl").read_text(encoding="utf-8").count("\n")
    assert len(reports) == 2
    for report in reports:
        assert 0 < report["episodes"] <= trained - 4 and report["spent_usd"] > 0


def test_mlflow_has_a_run_with_a_child_for_each_seed(workspace: Workspace, whole: list[str]) -> None:
    runs = {run.info.run_id: run for run in workspace.runs()}
    parents = [run for run in runs.values() if "mlflow.parentRunId" not in run.data.tags]
    assert sorted(run.info.status for run in parents) == ["FINISHED", "KILLED"]
    parent = next(run for run in parents if run.info.status == "FINISHED")

    def below(run_id: str) -> dict[str, str]:
        found = [run for run in runs.values() if run.data.tags.get("mlflow.parentRunId") == run_id]
        return {str(run.info.run_name): str(run.info.run_id) for run in found}

    seeds = below(parent.info.run_id)
    assert {"seed 0", "seed 1"} <= set(seeds)
    # Of a seed whose SFT ended before the kill, that run is below the killed one.
    earlier = {name for one in parents if one is not parent for name in below(below(one.info.run_id)["seed 1"])}
    stages = set(below(seeds["seed 1"]))
    assert {"grpo", "evaluate", "probes"} <= stages and stages | earlier == {"sft", "grpo", "evaluate", "probes"}
    assert len([key for key in parent.data.metrics if key.endswith(".holds")]) >= 20
    assert parent.data.metrics["dollars"] > 0
    metrics = runs[seeds["seed 1"]].data.metrics
    assert metrics["minutes"] > 0 and "grpo.accuracy" in metrics and "sft.accuracy" in metrics
    names = {path.name for path in (workspace.root / ".state" / "mlartifacts").rglob("*") if path.is_file()}
    assert "claims.md" in names


def test_again_nothing_runs_and_the_table_is_the_same(workspace: Workspace, whole: list[str]) -> None:
    before = table((workspace.root / "docs/claims.md").read_text(encoding="utf-8"))
    lines = workspace.orchestra(*COMMAND, timeout_s=TIMEOUT_S)
    done = [line for line in lines if ": done, " in line]
    # The rules, two untrained arms, and of each seed: sft and its measures, then three arms of GRPO.
    assert len(done) == 1 + 2 * 2 + 2 * (3 + 3 * 3) and all(line.endswith("from an earlier run") for line in done)
    assert table((workspace.root / "docs/claims.md").read_text(encoding="utf-8")) == before


def test_a_seed_that_fails_is_one_line_and_the_other_still_counts(workspace: Workspace, whole: list[str]) -> None:
    folder = next(
        file.parents[2]
        for file in (workspace.root / "work/learn").glob("sft-*/models/sft/README.md")
        if "seed 0" in file.read_text(encoding="utf-8")
    )
    weights: Path = folder / "models/sft/model.safetensors"
    weights.write_bytes(b"lost")
    lines = workspace.orchestra(*COMMAND, code=2, timeout_s=TIMEOUT_S)
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and errors[0].startswith("error: seed 0: evaluate: ")
    page = (workspace.root / "docs/claims.md").read_text(encoding="utf-8")
    assert "**Failed:** seed 0: evaluate: " in page and "Training seed 1 " in page
    assert "Traceback" not in "\n".join(lines)
