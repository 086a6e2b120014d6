"""`--solver chat:EXPERT`: what an expert's tries cost is under the version's cap, or they are not made."""

from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestra.accounting.ledger import total
from orchestra.cli.app import app
from orchestra.errors import BudgetError
from orchestra.files.jsonl import read_jsonl, write_jsonl
from orchestra.types import Charge
from tests.support.endpoint import answer, serving
from tests.support.worlds import ROOT, example

LEDGER = "data/versions/default/ledger.jsonl"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with real experts."""
    (tmp_path / "data").mkdir()
    for name in ("dvc.yaml", "data/catalogue", "data/domains", "data/licences.yaml", "data/protected", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["world"] |= {"catalogue": "data/catalogue/real.yaml", "price_date": "2026-08-06"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    return tmp_path


def orchestra(*arguments: str) -> None:
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None:
        raise done.exception
    assert done.exit_code == 0, done.output


def examples(cap_usd: str) -> None:
    orchestra("domains", "examples", "mock", "--count", "6", "--solver", "chat:gpt-5-mini", "--cap-usd", cap_usd)


def test_examples_are_tried_under_the_cap_and_no_try_is_paid_twice(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = answer("I do not know") | {"usage": {"prompt_tokens": 900, "completion_tokens": 100}}
    with serving(lambda _: (200, large, 0)) as double:
        monkeypatch.setenv("OPENAI_BASE_URL", double.url)
        with pytest.raises(BudgetError, match=r"of 0\.015 USD are spent"):
            examples("0.015")
        booked = read_jsonl(workspace / LEDGER, Charge)
        assert 0 < len(double.asked) == len(booked) and total(booked) <= Decimal("0.015")
        examples("1")
        assert len(double.asked) == len(read_jsonl(workspace / LEDGER, Charge)) == 48


def test_difficulties_are_measured_under_the_cap_and_no_try_is_paid_twice(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [example(f"e{number}", instruction=f"What is {number} + 1?") for number in range(12)]
    write_jsonl(workspace / "some.jsonl", asked)
    told = ("data", "measure", "some.jsonl", "--to", "out.jsonl", "--solver", "chat:gpt-5-mini", "--tries", "2")
    large = answer("I do not know") | {"usage": {"prompt_tokens": 900, "completion_tokens": 100}}
    with serving(lambda _: (200, large, 0)) as double:
        monkeypatch.setenv("OPENAI_BASE_URL", double.url)
        with pytest.raises(BudgetError, match=r"work/measure/ledger\.jsonl: .* of 0\.008 USD are spent"):
            orchestra(*told, "--cap-usd", "0.008")
        assert total(read_jsonl(workspace / "work/measure/ledger.jsonl", Charge)) <= Decimal("0.008")
        orchestra(*told)
        assert len(double.asked) == len(read_jsonl(workspace / "work/measure/ledger.jsonl", Charge)) == 24
