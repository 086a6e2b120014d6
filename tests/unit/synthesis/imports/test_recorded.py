"""Published ToolScale rows whose database is missing: the golden calls are right, others a judge reads."""

from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.accounting.budget import Budget
from orchestra.config.judge import JudgeSettings
from orchestra.rollout.parse import format_answer, format_call
from orchestra.synthesis.filters.filters import proven
from orchestra.synthesis.imports.importer import ExampleImporter
from orchestra.synthesis.imports.toolscale import ToolScale
from orchestra.tools.experts.judging import URL, JudgeEndpoint
from orchestra.tools.recording import UNKNOWN, Recording
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Example, Price, ToolCall
from orchestra.validation.rows import answer_problem, reference_problem
from tests.support.endpoint import answer, serving
from tests.support.scripts import play, says
from tests.support.worlds import toolkit

DATA = Path(__file__).parent / "data/toolscale.jsonl"
JUDGE = JudgeEndpoint(
    JudgeSettings(model="judge-1", price="openai/o3-mini"),
    Price(input_per_million=Decimal(2), output_per_million=Decimal(10)),
)
OTHER = ToolCall(name="get_account", arguments={"account_id": "A-8"})


@pytest.fixture
def rows(importer: ExampleImporter) -> list[Example]:
    loaded = ToolScale(judged=True, here={"mock"}).load([DATA], importer)
    return [row for _, row in loaded if isinstance(row, Example)]


def judged(folder: Path) -> Toolkit:
    return toolkit(folder, budget=Budget(folder / "ledger.jsonl", Decimal(1)), judge=JUDGE)


def attempt(item: Example, tools: Toolkit, calls: tuple[ToolCall, ...], said: str) -> Episode:
    return play(tools, says(*map(format_call, calls), format_answer(said)), item)


def test_the_golden_calls_are_right_without_a_judge_and_tell_what_must_be_told(
    rows: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weather = rows[0]
    with serving([(200, answer("Decision: FALSE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(weather, judged(tmp_path), weather.verifier.golden_calls, "It will be 14 mm.")
    assert episode.solved and double.asked == []
    assert [turn.observation for turn in episode.turns][:-1][-1] == "done. 14 mm"


@pytest.mark.parametrize("decision", ["TRUE", "FALSE"])
def test_other_calls_and_words_are_the_judges_to_decide(
    rows: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    finance = rows[1]
    calls = (OTHER, *finance.verifier.golden_calls)
    with serving([(200, answer(f"Decision: {decision}"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(finance, judged(tmp_path), calls, "Paid.")
    assert episode.verdict is not None and episode.solved == (decision == "TRUE")
    said = episode.verdict.judged
    assert said is not None and said.rubric == "calls" and episode.turns[0].observation == UNKNOWN
    done = said.prompt.partition("did and said===")[2]
    assert 'get_account({"account_id": "A-8"})' in done and "Paid." in done and len(double.asked) == 1
    known = said.prompt.partition("did and said===")[0]
    assert "schedule_transfer(" in known and "A-8" not in known and finance.instruction in known


def test_doing_nothing_is_for_the_judge_and_never_right_by_itself(
    rows: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving([(200, answer("Decision: FALSE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(rows[1], judged(tmp_path), (), "Done.")
    assert not episode.solved and "(no calls)" in double.asked[0]["messages"][0]["content"]


def test_the_data_gates_take_them_with_a_judge_and_refuse_them_without(rows: list[Example], tmp_path: Path) -> None:
    (tmp_path / "judged").mkdir()
    with_judge, without = judged(tmp_path / "judged"), toolkit(tmp_path)
    for row in rows:
        assert row.verifier.kind == "judge" and row.domain not in with_judge.domain_folders
        assert reference_problem(row, with_judge) is None and answer_problem(row, with_judge) is None
        assert proven(row, with_judge) is None
        assert "only a judge can check" in str(answer_problem(row, without))
        assert "only a judge can check" in str(proven(row, without))


def test_a_domain_that_is_here_keeps_its_database(importer: ExampleImporter) -> None:
    here = {"toolscale-weather", "toolscale-finance"}
    loaded = ToolScale(judged=True, here=here).load([DATA], importer)
    kinds = {row.verifier.kind for _, row in loaded if isinstance(row, Example)}
    assert kinds == {"database"}


def test_a_recording_counts_every_call_once() -> None:
    pay, see = ToolCall(name="pay", arguments={"n": 1}), ToolCall(name="see")
    recording = Recording((see, pay), ("42",))
    assert [recording.call(call) for call in (pay, see)] == ["done.", "done. 42"] and recording.same
    recording.call(pay)
    assert not recording.same, "paying twice is another thing"
