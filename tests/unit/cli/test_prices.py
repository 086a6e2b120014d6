"""`orchestra prices`, `reprice` and `ledger`, as a person types them, and the budget that stages share."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestra.accounting.ledger import cost_of
from orchestra.cli.app import app
from orchestra.config.overrides import apply
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, DataError
from orchestra.files.jsonl import write_jsonl
from orchestra.serving.records.traces import TraceWriter
from orchestra.types import Charge, Component, Episode, StopReason, Turn, Usage, Verdict
from tasks.platform.ledger import LedgerTail, _spent, by_stage, open_budget, run_ledger
from tasks.platform.stage import Stage
from tasks.platform.tracking import Recorder, connect, experiment
from tests.support.databases import make_database
from tests.support.worlds import ROOT, catalogue, example


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def orchestra(*arguments: str, code: int = 0) -> str:
    done: Result = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout


def charge(cost: str = "0.5", component: Component = Component.EXPERT) -> Charge:
    return Charge(component=component, name="x", cost_usd=Decimal(cost))


def test_check_finds_nothing_then_what_is_stale_and_missing(workspace: Path) -> None:
    said = orchestra("prices", "check", "--as-of", "2025-11-15", code=1)
    assert said.count("is no published one: assumed") == 2
    assert said.endswith("prices in use on 2025-11-15: 2 to look at\n")
    said = orchestra("prices", "check", "--as-of", "2025-11-15", "--days", "30", code=1)
    assert "the price of openai/gpt-5 was looked at 100 days before 2025-11-15" in said and "fix: compare it" in said
    assert "gpt-5 has no price on 2025-01-02" in orchestra("prices", "check", "--as-of", "2025-01-02", code=1)
    apply(workspace / "params.yaml", ["retraining.stale_price_days=30"])
    assert said == orchestra("prices", "check", "--as-of", "2025-11-15", code=1), "the parameter is the default"
    with pytest.raises(ConfigError, match="'soon' is not a date"):
        orchestra("prices", "check", "--as-of", "soon")


def test_a_report_folder_is_repriced_to_the_digit(workspace: Path) -> None:
    usage, spec = Usage(input_tokens=400, output_tokens=6000), catalogue().spec("gpt-5")
    spent = Charge(component=Component.EXPERT, name="gpt-5", usage=usage, cost_usd=cost_of(spec.price, usage))
    episode = Episode(
        example_id="e1", policy="grpo", prompt_ids=(1,), turns=(Turn(ids=(1,), text="", charges=(spent,)),),
        stop=StopReason.ANSWERED,
    )  # fmt: skip
    folder = workspace / "reports/evaluation"
    folder.mkdir(parents=True)
    write_jsonl(folder / "episodes.jsonl", [episode, episode.model_copy(update={"policy": "sft"})])
    write_jsonl(workspace / "examples.jsonl", [example("e1", toolbox=[spec])])
    with (workspace / "data/catalogue/prices.yaml").open("a", encoding="utf-8") as book:
        book.write('  - {provider: openai, model: gpt-5, effective_from: 2026-01-01, output: "1", source: a test}\n')
    command = ("reprice", "reports/evaluation", "--as-of", "2026-02-01", "--examples", "examples.jsonl")
    assert orchestra(*command).splitlines()[-1].split() == ["total", "2", "0.1210", "0.1210", "0.0120", "-90.1%"]
    found = json.loads(orchestra(*command, "--policy", "sft", "--json"))
    assert found["total"] == {"calls": 1, "recorded_usd": "0.0605", "before_usd": "0.0605", "after_usd": "0.006"}
    assert found["components"]["expert"] == found["total"] == found["policies"]["sft"]
    with pytest.raises(DataError, match=r"no policy named nope — one of: grpo, sft"):
        orchestra(*command, "--policy", "nope")
    (folder / "comparison.json").write_text('{"price_d', encoding="utf-8")
    with pytest.raises(DataError, match=r"comparison\.json: the comparison is corrupt"):
        orchestra(*command)
    (folder / "comparison.json").unlink()
    (folder / "episodes.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"episodes\.jsonl:1"):
        orchestra(*command)


def served(workspace: Path) -> Path:
    """Traces of two versions, as gateways leave them: judged or not, failed, and half-written."""
    usage, known = Usage(input_tokens=400, output_tokens=6000), catalogue()
    own, expert = (cost_of(price, usage) for price in (known.policy_price, known.spec("gpt-5").price))
    spent = [
        Charge(component=Component.POLICY, name="policy", usage=usage, cost_usd=own),
        Charge(component=Component.EXPERT, name="gpt-5", usage=usage, cost_usd=expert),
        Charge(component=Component.EXPERT, name="gpt-5", usage=usage),
        Charge(component=Component.USER, name="user", cost_usd=Decimal("0.25")),
    ]
    turns = tuple(Turn(ids=(1,), text="", charges=(one,)) for one in spent)
    episode = Episode(example_id="t", policy="7", prompt_ids=(1,), turns=turns, stop=StopReason.ANSWERED)
    judged = episode.model_copy(update={"verdict": Verdict(solved=True, why="right")})
    folder = workspace / ".state/traces"
    writer = TraceWriter(folder, days=30, megabytes=1)
    for version, one in (("7", episode), ("7", judged), ("8", episode), ("8", None)):
        writer.put({"trace_id": "t", "version": version}, None, one)
    writer.close()
    (file,) = folder.iterdir()
    with file.open("a", encoding="utf-8") as out:
        out.write('{"time": "2026-01-01T00:00:00", "trace_id": "t", "ver')
    return file


def test_served_requests_are_repriced_by_tool_and_model(workspace: Path) -> None:
    file = served(workspace)
    with (workspace / "data/catalogue/prices.yaml").open("a", encoding="utf-8") as book:
        book.write('  - {provider: openai, model: gpt-5, effective_from: 2026-01-01, output: "1", source: a test}\n')
    said = orchestra("reprice", ".state/traces", "--as-of", "2026-02-01").splitlines()
    assert said[0].startswith("3 served requests") and said[1].split()[:2] == ["calls", "charged"]
    rows = {line.split()[0]: line.split()[1:] for line in said[2:6]}
    # A replayed call was free, and is on any day.
    assert rows["gpt-5"] == ["6", "0.1815", "0.1815", "0.0180", "-90.1%"]
    assert rows["user"] == ["3", "0.7500", "0.7500", "0.7500", "+0.0%"] and rows["policy"][0] == "3"
    assert said[6] == "3 calls of user as charged: the catalogue knows no price of it"
    assert said[7].startswith("1 requests that ended with an error are left out")
    found = json.loads(orchestra("reprice", str(file), "--as-of", "2026-02-01", "--policy", "7", "--json"))
    assert (found["requests"], found["tools"]["gpt-5"]["after_usd"]) == (2, "0.012")
    exact = [Decimal(found["tools"][name]["after_usd"]) for name in found["tools"]]
    assert sum(exact) == Decimal(found["total"]["after_usd"])
    with pytest.raises(DataError, match="version 9 answered nothing — one of: 7, 8"):
        orchestra("reprice", ".state/traces", "--policy", "9")
    assert f"list {date.today()}" in orchestra("reprice", ".state/traces"), "the day is today's"


def test_the_stages_of_a_run_share_a_ledger_and_its_cap(workspace: Path) -> None:
    shown = workspace / ".state/ledger"
    with run_ledger(workspace, "old"):
        stale = open_budget(Stage.open("sft", workspace))
        stale.book(charge())
    with run_ledger(workspace, "run"):
        first = open_budget(Stage.open("sft", workspace))
        first.book(charge("0.125", Component.POLICY))
        second = open_budget(Stage.open("grpo", workspace))
        second.book(charge())
        assert second.spent_usd == Decimal("0.625") and second.cap_usd is None
        assert second.by_phase().keys() == {"sft", "grpo"}
    assert sorted(file.name for file in shown.iterdir()) == ["old.jsonl", "run.jsonl"]
    said = orchestra("ledger").splitlines()
    assert said[1].startswith("sft · policy") and "0.125000" in said[1] and "0.625000" in said[-1]
    assert json.loads(orchestra("ledger", "--json"))["total"]["cost_usd"] == "0.625"
    assert "total" in orchestra("ledger", ".state/ledger/run.jsonl")


def test_a_ledger_is_added_up_without_being_held(workspace: Path) -> None:
    file, count = workspace / ".state/ledger/run.jsonl", 20_000
    file.parent.mkdir(parents=True)
    file.write_text(f"{charge('0.001').model_dump_json()}\n" * count)
    orchestra("ledger")  # What it imports stays in memory.
    ways: list[Callable[[], Decimal]] = [
        lambda: _spent(file),
        lambda: by_stage([file])[""]["expert"],
        lambda: LedgerTail(workspace, "run").take(),
        lambda: Decimal(json.loads(orchestra("ledger", "--json"))["total"]["cost_usd"]),
    ]
    for add_up in ways:
        tracemalloc.start()
        try:
            assert add_up() == 20
            assert tracemalloc.get_traced_memory()[1] < file.stat().st_size / 2
        finally:
            tracemalloc.stop()


def test_a_ledger_that_the_next_run_put_away_is_still_shown(workspace: Path) -> None:
    make_database(workspace)
    client = connect(workspace)
    run_id = client.create_run(experiment(client, workspace)).info.run_id
    with run_ledger(workspace, run_id):
        open_budget(Stage.open("sft", workspace)).book(charge())
    client.log_text(run_id, "{}\n", "other.jsonl")
    Recorder.open(workspace, "another", "another")
    assert not list((workspace / ".state/ledger").iterdir())
    assert json.loads(orchestra("ledger", "--json"))["total"]["cost_usd"] == "0.5"


def test_ranks_share_what_the_cap_has_left(workspace: Path) -> None:
    text = (workspace / "params.yaml").read_text(encoding="utf-8")
    (workspace / "params.yaml").write_text(text.replace("run_usd: null", 'run_usd: "1.1"'), encoding="utf-8")
    stage = Stage("grpo", load_params(workspace / "params.yaml"), workspace)
    with run_ledger(workspace, "run"):
        open_budget(stage).book(charge("0.1"))
        one, two = (open_budget(stage, rank=rank, shares=[1, 1]) for rank in range(2))
        assert (one.cap_usd, two.cap_usd) == (Decimal("0.6"), Decimal("0.5"))
        unlike = open_budget(stage, rank=0, shares=[3, 1])
        assert unlike.cap_usd == Decimal("0.85")
        two.book(charge("0.5"))
        again = open_budget(stage, rank=1, shares=[1, 1])  # After a kill: what it has spent counts.
        assert again.spent_usd == Decimal("0.5") and again.cap_usd == Decimal("0.75")
    with pytest.raises(DataError, match="no run has been booked here"):
        shutil.rmtree(workspace / ".state")
        orchestra("ledger")
