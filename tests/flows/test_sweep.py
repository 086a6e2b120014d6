"""A sweep: every combination in a copy of the workspace, which stays as it is, and a table of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.sweep import make_copy
from orchestra.config.schema import load_params
from tests.flows.workspace import Workspace


def test_a_copy_has_the_values_the_cache_and_its_own_lock(plain: Workspace) -> None:
    (plain.root / "dvc.lock").write_text("of the workspace", encoding="utf-8")
    (plain.root / "data/extra/mine.jsonl").write_text("", encoding="utf-8")
    before = (plain.root / "params.yaml").read_text(encoding="utf-8")
    copy = make_copy(plain.root, plain.root / "work/sweeps/a", ["grpo.seed=5"])
    assert load_params(copy / "params.yaml").grpo.seed == 5
    assert (plain.root / "params.yaml").read_text(encoding="utf-8") == before
    assert not (copy / "dvc.lock").exists() and (copy / "tasks/sft.py").is_file() and not (copy / "work").exists()
    assert (copy / "data/extra/mine.jsonl").is_file(), "git ignores it, and the stages read it"
    shown = subprocess.run(
        [sys.executable, "-m", "dvc", "cache", "dir"], cwd=copy, capture_output=True, text=True, check=True
    ).stdout
    assert Path(shown.strip()) == (plain.root / ".dvc/cache").resolve()


def test_a_copy_that_is_renewed_lacks_what_was_deleted_and_keeps_what_it_made(plain: Workspace) -> None:
    root, copy = plain.root, plain.root / "work/sweeps/a"
    gone = [
        "data/domains/mock/entries/mine.csv",
        "data/extra/mine.jsonl",
        "data/protected/mine.parquet",
        "tasks/sft.py",
    ]
    for name in gone[:3]:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("", encoding="utf-8")
    make_copy(root, copy, ["grpo.seed=5"])
    made = [
        "dvc.lock",
        "data/generated/train.jsonl",
        "models/sft/model.safetensors",
        "work/grpo/state",
        ".state/mlflow.db",
    ]
    for name in made:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("made", encoding="utf-8")
    for name in gone:
        (root / name).unlink()
    make_copy(root, copy, ["grpo.seed=5"])
    assert not [name for name in gone if (copy / name).exists()]
    assert [(copy / name).read_text(encoding="utf-8") for name in made] == ["made"] * len(made)
    assert (copy / ".dvc/config.local").is_file() and load_params(copy / "params.yaml").grpo.seed == 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_sweep_compares_and_shares_what_is_equal(plain: Workspace) -> None:
    text = "\n".join(plain.orchestra("sweep", "--set", "grpo.steps=1,2"))
    assert "| grpo.steps=1 | " in text and "| grpo.steps=2 | " in text
    assert "grpo.steps=2: sft: restored from DVC's run cache" in text
    assert not (plain.root / "dvc.lock").exists() and len(plain.orchestra("runs")) == 2
    names = {run.info.run_name for run in plain.runs()}
    assert len(names) > 2, "MLflow has the runs of both"
    assert "a sweep needs more than one combination" in plain.orchestra("sweep", "--set", "grpo.steps=1", code=2)[-1]
