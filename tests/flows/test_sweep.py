"""A sweep: every combination in a copy of the workspace, which stays as it is, and a table of them."""

import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from flows.sweep import make_copy
from orchestra.accounting.budget import Budget
from orchestra.config.schema import load_params
from orchestra.errors import BudgetError
from orchestra.synthesis.dataset.extra import PAID
from orchestra.synthesis.dataset.versions import CASSETTE, LEDGER
from orchestra.types import Charge, Component
from tests.flows.workspace import Workspace


def test_a_copy_has_the_values_the_cache_and_its_own_lock(plain: Workspace) -> None:
    (plain.root / "dvc.lock").write_text("of the workspace", encoding="utf-8")
    (plain.root / "data/extra/mine.jsonl").write_text("", encoding="utf-8")
    before = (plain.root / "params.yaml").read_text(encoding="utf-8")
    copy = make_copy(plain.root, plain.root / "work/sweeps/a", ["grpo.seed=5"])
    assert load_params(copy / "params.yaml").grpo.seed == 5
    assert (plain.root / "params.yaml").read_text(encoding="utf-8") == before
    assert not (copy / "dvc.lock").exists() and (copy / "tasks/sft.py").is_file()
    assert [one.name for one in (copy / "work").iterdir()] == ["extra"], "what was paid for, and no training state"
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


def test_copies_share_what_was_paid_for_with_the_workspace_and_each_other(plain: Workspace) -> None:
    first, second = (make_copy(plain.root, plain.root / "work/sweeps" / name, []) for name in "ab")
    for place in (plain.root / PAID, first / "data/versions/flow"):
        place.mkdir(parents=True, exist_ok=True)
        (place / CASSETTE).write_text("a reply\n", encoding="utf-8")
        with closing(Budget(place / LEDGER, Decimal(5))) as paid:
            paid.book(Charge(component=Component.EXPERT, name="m", cost_usd=Decimal("4.50"), latency_s=Decimal(1)))
    for folder in (PAID, "data/versions/flow"):
        assert (second / folder / CASSETTE).read_text(encoding="utf-8") == "a reply\n"
        with pytest.raises(BudgetError), Budget(second / folder / LEDGER, Decimal(5)).hold(Decimal(1)):
            pass
    make_copy(plain.root, second, [])
    assert (second / PAID).samefile(plain.root / PAID), "renewed"


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
