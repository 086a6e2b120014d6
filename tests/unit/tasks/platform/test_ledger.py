"""What a stage tells of a run's ledger: its own dollars, which add up to the run's with those of the others."""

from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.accounting.budget import Budget
from orchestra.config.schema import load_params
from orchestra.types import Charge, Component
from tasks.platform.ledger import LedgerTail, booked_as, by_stage, ledgers, open_budget, run_ledger, tell
from tasks.platform.stage import Stage
from tasks.records.models import costs
from tests.support.worlds import ROOT


def book(budget: Budget, usd: str, component: Component = Component.EXPERT) -> None:
    budget.book(Charge(component=component, name="x", cost_usd=Decimal(usd)))
    budget.close()


def test_a_stage_logs_what_it_spent_itself_and_the_stages_add_up_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load_params(ROOT / "params.yaml")
    sent: dict[str, dict[str, float]] = {}
    monkeypatch.setattr(Stage, "log_metrics", lambda self, metrics, step=None: sent.update({self.name: metrics}))
    with run_ledger(tmp_path, "r"):
        for name, spent in {"sft": "190.25", "grpo": "500.1"}.items():
            stage = Stage(name, params, tmp_path)
            budget = open_budget(stage)
            book(budget, spent)
            book(budget, "0.05", Component.POLICY)
            if name == "grpo":
                book(open_budget(stage, rank=1, shares=[1, 1]), "250")
            tell(stage, budget)
    with run_ledger(tmp_path, "another"):
        book(open_budget(Stage("grpo", params, tmp_path)), "7")
    assert sent["sft"] == {"spent/expert_usd": 190.25, "spent/policy_usd": 0.05}
    assert sent["grpo"] == {"spent/expert_usd": 750.1, "spent/policy_usd": 0.05}
    told = costs(by_stage(ledgers(tmp_path, "r")))
    assert told == {"cost/sft_usd": 190.3, "cost/grpo_usd": 750.15, "cost/total_usd": 940.45}
    assert told["cost/total_usd"] == float(LedgerTail(tmp_path, "r").take())


def test_outside_of_a_run_and_of_a_job_a_stage_books_in_the_folder_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ORCHESTRA_JOB", "ORCHESTRA_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    book(open_budget(Stage("grpo", load_params(ROOT / "params.yaml"), tmp_path), tmp_path / "mine"), "3")
    assert [file.relative_to(tmp_path) for file in tmp_path.rglob("*.jsonl")] == [Path("mine/ledger.jsonl")]


def test_a_job_of_a_scheduler_has_one_ledger_and_one_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs and, outside of them, the stages that torchrun starts."""
    params = load_params(ROOT / "params.yaml")
    params = params.model_copy(update={"budget": params.budget.model_copy(update={"run_usd": Decimal(100)})})
    monkeypatch.setenv("ORCHESTRA_JOB", "slurm-7")
    with run_ledger(tmp_path, "first"):
        book(open_budget(Stage("synthesize", params, tmp_path)), "10")
    for rank in (0, 1):
        book(open_budget(Stage("grpo", params, tmp_path), rank=rank, shares=[1, 1]), "20")
    with run_ledger(tmp_path, "last"):
        budget = open_budget(Stage("evaluate", params, tmp_path))
        budget.book(Charge(component=Component.EXPERT, name="x", cost_usd=Decimal(5)))
        assert budget.cap_usd is not None and budget.cap_usd - budget.spent_usd == 45
        budget.close()
    told = costs(by_stage(ledgers(tmp_path, booked_as("last"))))
    assert told == {"cost/synthesize_usd": 10, "cost/grpo_usd": 40, "cost/evaluate_usd": 5, "cost/total_usd": 55}
    names = sorted(file.name for file in tmp_path.rglob("*.jsonl"))
    assert names == ["slurm-7-rank1.jsonl", "slurm-7.jsonl"], "none in work/, which the job empties"
