"""The dollars of a training are those of its ledger: each belongs to one step or one check."""

import copy
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import phase
from orchestra.config.schema import Grpo
from orchestra.rollout.loop import RolloutOptions
from orchestra.training.grpo import health
from orchestra.training.grpo.spent import CHECKS, StepSpending
from orchestra.training.grpo.trainer import train_grpo
from orchestra.types import Charge, Component, Example
from tasks import grpo
from tests.support.worlds import PRICE, codec, toolkit, warm_model
from tests.unit.training.grpo.branching.world import GREEDY, question, taught
from tests.unit.training.grpo.branching.world import LIMITS as WORDY
from tests.unit.training.grpo.test_engine import Played
from tests.unit.training.grpo.test_trainer import LIMITS, SETTINGS, Killed, examples


def train(
    work: Path, settings: Grpo, *, ledger: str = "ledger.jsonl", stop_at: int = 0, copies: list[float] | None = None
) -> Decimal:
    """Train as the stage does, with checks by the same tools; the dollars in the ledger."""
    branched = settings.branch is not None
    items: list[Example] = [question(f"e{i}") for i in range(4)] if branched else examples()
    model = copy.deepcopy(taught()) if branched else warm_model()
    engine: Any = Played() if settings.engine == "vllm" else None
    work.mkdir(exist_ok=True)
    budget, file = Budget(work / ledger, None, "grpo"), work / grpo.STEPS
    tools = toolkit(work, budget=budget)
    spent = StepSpending(budget, "grpo", grpo.told(file, ledger))
    limits = WORDY if branched else LIMITS

    def evaluate(current: Any) -> dict[str, float]:
        with phase(CHECKS):
            grpo.watch(items[:2], current, engine, codec(), tools, RolloutOptions(limits, PRICE))
        return {"spent_usd": float(spent.checks())}

    def log(metrics: dict[str, float], step: int) -> None:
        with file.open("a") as lines:
            lines.write(json.dumps({"step": step, grpo.LEDGER: ledger, **metrics}) + "\n")
        if copies is not None and "train/cost_usd" in metrics:
            copies.append(metrics["train/cost_usd"] * settings.group_size * settings.examples_per_step)
        if step == stop_at and "train/reward" in metrics:
            raise Killed

    try:
        train_grpo(
            model, codec(), tools, items, settings, limits, PRICE, work, log, evaluate, engine=engine, spent=spent
        )
    finally:
        budget.close()
    return Budget(work / ledger, None).spent_usd


def told(work: Path) -> dict[str, float]:
    """The dollars of the stage's report, by their names."""
    found: dict[str, float] = {}
    for row in grpo._last_of_each_step(work / grpo.STEPS):
        for name, value in row.items():
            if name.endswith(grpo.SPENT):
                found[name] = found.get(name, 0.0) + value
    return found


def test_copies_of_greedy_episodes_cost_nothing_and_beginnings_do(tmp_path: Path) -> None:
    branch = GREEDY.model_copy(update={"later": 1.0, "starts": "even"})
    copies: list[float] = []
    settings = SETTINGS.model_copy(update={"branch": branch, "scale": "none", "learning_rate": 1e-3})
    booked = train(tmp_path / "work", settings, copies=copies)
    found = told(tmp_path / "work")
    assert sum(found.values()) == pytest.approx(float(booked)) and found["dev/spent_usd"] > 0
    assert found["train/spent_usd"] != pytest.approx(sum(copies)), "what the groups' episodes cost is another sum"


@pytest.mark.parametrize(
    "change",
    [{}, {"num_iterations": 2}, {"engine": "vllm"}, {"engine": "vllm", "steps_ahead": 1}],
    ids=["one step", "two steps a round", "server", "one round ahead"],
)
def test_every_dollar_is_of_one_step_or_one_check(tmp_path: Path, change: dict[str, Any]) -> None:
    booked = train(tmp_path / "work", SETTINGS.model_copy(update=change))
    found = told(tmp_path / "work")
    assert set(found) == {"train/spent_usd", "dev/spent_usd"} and min(found.values()) > 0
    assert sum(found.values()) == pytest.approx(float(booked))


def test_what_was_played_ahead_for_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = health.reason_to_stop
    monkeypatch.setattr(
        "orchestra.training.grpo.callbacks.reason_to_stop",
        lambda history, *rest, **more: "no signal: tested" if len(history) == 2 else reason(history, *rest, **more),
    )
    booked = train(tmp_path / "work", SETTINGS.model_copy(update={"engine": "vllm", "steps_ahead": 1}))
    found = told(tmp_path / "work")
    assert found["ahead/spent_usd"] > 0 and sum(found.values()) == pytest.approx(float(booked))


SIX = SETTINGS.model_copy(update={"steps": 6})


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole training in `whole`, and in `work` one that was killed at its third step."""
    folder = tmp_path_factory.mktemp("attempts")
    train(folder / "whole", SIX)
    with pytest.raises(Killed):
        train(folder / "work", SIX, stop_at=3)
    return folder


@pytest.mark.parametrize("again", ["ledger.jsonl", "other.jsonl"], ids=["the same ledger", "another run's ledger"])
def test_a_killed_training_tells_what_all_its_attempts_paid(tmp_path: Path, attempts: Path, again: str) -> None:
    work = Path(shutil.copytree(attempts / "work", tmp_path / "work"))
    train(work, SIX, ledger=again)
    booked = sum(Budget(work / name, None).spent_usd for name in {"ledger.jsonl", again})
    whole = Budget(attempts / "whole/ledger.jsonl", None).spent_usd
    assert booked > whole, "the third step was paid twice"
    assert sum(told(work).values()) == pytest.approx(float(booked))
    assert told(work)["dev/spent_usd"] == pytest.approx(told(attempts / "whole")["dev/spent_usd"])


def test_what_was_paid_for_a_step_that_was_not_logged_is_of_the_next(tmp_path: Path) -> None:
    def charge(usd: int) -> Charge:
        return Charge(component=Component.POLICY, name="policy", cost_usd=Decimal(usd))

    budget = Budget(tmp_path / "ledger.jsonl", None, "grpo")
    Budget(tmp_path / "ledger.jsonl", None, "sft").book(charge(100))
    spent = StepSpending(Budget(tmp_path / "ledger.jsonl", None, "grpo"), "grpo")
    assert spent.steps() == spent.checks() == 0, "another stage's dollars in the same file"
    budget.book(charge(3))
    with phase(CHECKS):
        budget.book(charge(5))
    budget.close()
    (tmp_path / grpo.STEPS).write_text(
        json.dumps({"step": 1, grpo.LEDGER: "ledger.jsonl", "train/spent_usd": 1.0}) + "\n"
        + json.dumps({"step": 1, grpo.LEDGER: "older.jsonl", "train/spent_usd": 9.0}) + "\n"
    )  # fmt: skip
    before = grpo.told(tmp_path / grpo.STEPS, "ledger.jsonl")
    resumed = StepSpending(Budget(tmp_path / "ledger.jsonl", None, "grpo"), "grpo", before)
    assert [resumed.steps(), resumed.checks()] == [Decimal(2), Decimal(5)]
    assert resumed.steps() == resumed.checks() == 0
