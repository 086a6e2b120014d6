"""Evaluations resume per attempt, are the same whoever makes them, keep to their cap, and never score a failure."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.accounting.ledger import total
from orchestra.config.judge import JudgeSettings
from orchestra.errors import BudgetError, ConfigError, DataError
from orchestra.evaluation.benchmarks.base import Attempt, Question
from orchestra.evaluation.benchmarks.models import ModelSettings
from orchestra.evaluation.benchmarks.run import Evaluation, decided
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.experts.judging import URL
from orchestra.types import Charge
from tests.support.benchmarks import MODEL, ROOT, evaluation, pairs, player, published
from tests.support.endpoint import answer, ended, serving
from tests.support.serving_world import params, workspace

CHILD = """
import sys
from pathlib import Path
from tests.support.benchmarks import evaluation
file, root, url, tape, mode, shards = sys.argv[1:]
made = evaluation("hle", Path(file), Path(root), url, trials=2, concurrency=4, tape=(mode, tape))
made.attempt([shard for shard in made.shards if shards == "all" or str(shard.index) in shards])
"""


def text(made: Evaluation) -> str:
    return "".join(attempt.model_dump_json() + "\n" for attempt in made.attempts())


def child(file: Path, root: Path, url: str, tape: Path, mode: str, shards: str = "all") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD, str(file), str(root), url, str(tape), mode, shards]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, URL: url})


def written(root: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in root.rglob("attempts/*.jsonl"))


def test_questions_that_no_verdict_could_be_right_on_are_refused(tmp_path: Path) -> None:
    file = published("hle", tmp_path, pairs("hle")[:3])
    rows = [json.loads(line) for line in file.read_text().splitlines()]

    def asked(**changes: str) -> None:
        changed = [rows[0], {**rows[1], **changes}, rows[2]]
        file.write_text("".join(json.dumps(row) + "\n" for row in changed))
        assert evaluation("hle", file, tmp_path, "").questions

    for changes in ({"answer": " "}, {"question": ""}):
        with pytest.raises(DataError, match=r"hle: question 'h001' has no text or no reference answer"):
            asked(**changes)
    with pytest.raises(DataError, match=r"hle: two questions have the id 'h000' — name each file once, and"):
        asked(id="h000")


def test_killed_twice_and_resumed_or_shared_by_two_it_is_the_same_to_the_byte(tmp_path: Path) -> None:
    file, tape = published("hle", tmp_path, pairs("hle")[:40]), tmp_path / "tape.jsonl"
    broken, whole, shared = (tmp_path / name for name in ("broken", "whole", "shared"))
    reply = player("hle")
    with serving(lambda request: (*reply(request)[:2], 0.05)) as double:
        for enough in (12, 40):
            process = child(file, broken, double.url, tape, "auto")
            while written(broken) < enough and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL and written(broken) < 80
        assert child(file, broken, double.url, tape, "auto").wait() == 0
        asked = len(double.asked)
        assert child(file, whole, double.url, tape, "replay").wait() == 0
        both = [child(file, shared, double.url, tape, "replay", shards) for shards in ("0", "1")]
        assert [process.wait() for process in both] == [0, 0]
        assert len(double.asked) == asked < 160 + 2 * 2 * 4, "only what was under way at a kill is asked again"
    runs = [evaluation("hle", file, root, trials=2) for root in (broken, whole, shared)]
    assert len(runs[0].attempts()) == 80
    assert text(runs[0]) == text(runs[1]) == text(runs[2])


def test_a_cap_ends_it_with_what_was_made_kept_and_a_higher_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reply = published("hle", tmp_path, pairs("hle")[:6]), player("hle")
    usage = {"prompt_tokens": 2000, "completion_tokens": 1000}
    with serving(lambda request: (200, reply(request)[1] | {"usage": usage}, 0)) as double:
        monkeypatch.setenv(URL, double.url)
        capped = evaluation("hle", file, tmp_path, double.url, concurrency=1, cap_usd=Decimal("0.05"))
        with pytest.raises(BudgetError, match="are spent"):
            capped.attempt(capped.shards)
        made = len(capped.attempts())
        assert 0 < made < 6
        spent = total(read_jsonl(capped.folder / "ledger.jsonl", Charge))
        assert 0 < spent <= Decimal("0.05")
        more = replace(capped, cap_usd=Decimal("1"))
        assert more.attempt(more.shards) == 6 - made
    assert len(more.attempts()) == 6


def test_an_answer_that_the_cap_left_unjudged_is_judged_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reply = published("hle", tmp_path, pairs("hle")[:2]), player("hle")
    costly = {"prompt_tokens": 1000, "completion_tokens": 20_000}
    with serving(lambda request: (200, reply(request)[1] | {"usage": costly}, 0)) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("hle", file, tmp_path, double.url, concurrency=1, cap_usd=Decimal("0.045"))
        for _ in range(2):
            with pytest.raises(BudgetError, match="are spent"):
                made.attempt(made.shards)
            assert [request["model"] for request in double.asked] == [MODEL] and made.attempts() == []
        more = replace(made, cap_usd=Decimal("1"))
        assert more.attempt(more.shards) == 2
        assert [request["model"] == MODEL for request in double.asked] == [True, False, True, False]
    alone = evaluation("hle", file, tmp_path / "alone", double.url, concurrency=1)
    with serving(lambda request: (200, reply(request)[1] | {"usage": costly}, 0)) as double:
        monkeypatch.setenv(URL, double.url)
        alone = replace(alone, model=replace(alone.model, model=f"{MODEL}@{double.url}"))
        alone.attempt(alone.shards)
    assert [one.model_copy(update={"latency_s": 0}) for one in more.attempts()] == [
        one.model_copy(update={"latency_s": 0}) for one in alone.attempts()
    ]


def test_what_workers_booked_counts_against_the_cap_of_a_later_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = published("hle", tmp_path, pairs("hle")[:6])
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("hle", file, tmp_path, double.url)
        worker = replace(made, ledger="ledger-00000", limit=3)
        assert worker.attempt(worker.shards) == 3
        spent = total(read_jsonl(made.folder / "ledger-00000.jsonl", Charge))
        with pytest.raises(BudgetError, match=f"{spent} of {spent} USD are spent"):
            replace(made, cap_usd=spent).attempt(made.shards)
        own = replace(worker, limit=6, cap_usd=2 * spent, ledger="ledger-00001")
        assert own.budget().spent_usd == 0, "a worker has its share of the cap for itself"


def test_failures_are_kept_apart_from_wrong_answers_and_tried_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.tools.chat.client.RETRIED", frozenset[int]())
    file, down = published("hle", tmp_path, pairs("hle")[:3]), [True]
    reply = player("hle")

    def faulty(request: dict[str, object]) -> object:
        return (500, "down", 0) if down[0] and request["model"] != MODEL else reply(request)

    with serving(faulty) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("hle", file, tmp_path, double.url, concurrency=1)
        made.attempt(made.shards)
        assert [attempt.solved for attempt in made.attempts()] == [None] * 3
        assert all("HTTP 500" in attempt.failure for attempt in made.attempts())
        down[0] = False
        assert made.attempt(made.shards) == 0
        part = replace(made, only=("Math",))
        assert sum(part.journal.forget_failures(shard) for shard in part.shards) == 1 == part.attempt(part.shards)
        assert [attempt.solved is None for attempt in made.attempts()] == [True, False, True]
        before = len(double.asked)
        assert sum(made.journal.forget_failures(shard) for shard in made.shards) == 2 == made.attempt(made.shards)
        again = [request["model"] for request in double.asked[before:]]
        assert again and MODEL not in again, "the answers are there: only the judge is asked"
    assert [attempt.solved for attempt in made.attempts()] == [True, True, False]


def test_thoughts_that_do_not_end_and_a_refusal_are_wrong_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the accuracy, paid for, and not drawn again until one is right."""
    file, tape = published("hle", tmp_path, pairs("hle")[:3]), str(tmp_path / "tape.jsonl")
    reply, replies = player("hle"), [(200, ended("length"), 0), (200, ended("content_filter"), 0)]

    def unwilling(request: dict[str, object]) -> object:
        return replies.pop() if replies and request["model"] == MODEL else reply(request)

    with serving(unwilling) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("hle", file, tmp_path, double.url, concurrency=1, tape=("auto", tape))
        made.attempt(made.shards)
        assert sum(made.journal.forget_failures(shard) for shard in made.shards) == 0 == made.attempt(made.shards)
    assert [attempt.solved for attempt in made.attempts()] == [False, False, False]
    assert [attempt.why for attempt in made.attempts()][:2] == ["it refused", "its thoughts did not end"]
    assert all(not attempt.failure and attempt.cost_usd > 0 for attempt in made.attempts())
    for mode in ("auto", "replay"):
        again = evaluation("hle", file, tmp_path / mode, double.url, tape=(mode, tape))
        again.attempt(again.shards)
        assert again.attempts() == made.attempts()


def test_a_judge_whose_thoughts_did_not_end_is_asked_again_with_a_cassette_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a judge it is a failure, no result."""
    file, tape = published("hle", tmp_path, pairs("hle")[:2]), str(tmp_path / "tape.jsonl")
    reply, replies = player("hle"), [(200, ended("length"), 0)]

    def cut(request: dict[str, object]) -> object:
        return replies.pop() if replies and request["model"] != MODEL else reply(request)

    with serving(cut) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("hle", file, tmp_path, double.url, concurrency=1, tape=("auto", tape))
        made.attempt(made.shards)
        assert [attempt.judged is None for attempt in made.attempts()] == [True, False]
        before = len(double.asked)
        assert sum(made.journal.forget_failures(shard) for shard in made.shards) == 1 == made.attempt(made.shards)
        assert [request["model"] == MODEL for request in double.asked[before:]] == [False]
    assert all(attempt.judged is not None for attempt in made.attempts())


def test_more_trials_and_questions_go_on_from_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = published("hle", tmp_path, pairs("hle")[:4]), list[Attempt]()
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        few = evaluation("hle", file, tmp_path, double.url, limit=2)
        assert few.attempt(few.shards, seen.append) == 2 and len(seen) == 2
        more = evaluation("hle", file, tmp_path, double.url, trials=2)
        assert more.attempt(more.shards) == 6
    assert [(one.item, one.trial) for one in more.attempts()][:3] == [("h000", 0), ("h000", 1), ("h001", 0)]


def test_a_group_of_many_questions_and_the_whole_share_their_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = published("hle", tmp_path, pairs("hle")[:80])
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        part = evaluation("hle", file, tmp_path, double.url, only=("Math",))
        whole = evaluation("hle", file, tmp_path, double.url)
        assert (part.attempt(part.shards), whole.attempt(whole.shards)) == (40, 40)
        assert part.attempt(part.shards) == 0
    assert [one for one in whole.attempts() if one.group == "Math"] == part.attempts()
    assert [one.item for one in whole.attempts()] == [question.id for question in whole.questions]


def test_a_gateway_states_its_dollars_and_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, row = published("hle", tmp_path, pairs("hle")[:1]), pairs("hle")[0]
    told = {"cost_usd": 0.25, "latency_s": 3.5, "stop": "answered", "simulated": True}
    calls = [{"name": "gpt-5", "arguments": {}, "observation": "12"}]

    def reply(request: dict[str, object]) -> object:
        if request["model"] != "orchestrator":
            return player("hle")(request)
        return (200, answer(row["response"]) | {"orchestra": {**told, "tool_calls": calls}}, 0)

    with serving(reply) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("hle", file, tmp_path)
        model = replace(made.model, model=double.url, price=None, question_usd=Decimal("0.5"))
        made = replace(made, model=model, cap_usd=Decimal("2"))
        made.attempt(made.shards)
        (attempt,) = made.attempts()
        assert double.asked[0]["budget_usd"] == "0.5"
        unbounded = replace(made, root=tmp_path / "other", model=replace(model, question_usd=None))
        with pytest.raises(ConfigError, match="question-usd"):
            unbounded.attempt(unbounded.shards)
    assert (attempt.cost_usd, attempt.latency_s, attempt.calls) == (Decimal("0.25"), 3.5, {"gpt-5": 1})
    assert attempt.simulated and attempt.steps[0].observation == "12" and attempt.solved


@pytest.mark.parametrize("changed", ["data/catalogue/tools.yaml", "data/catalogue/prices.yaml"])
def test_a_checkpoint_with_another_catalogue_or_price_book_gets_results_of_its_own(
    tmp_path: Path, changed: str
) -> None:
    root, file = workspace(tmp_path / "workspace"), published("hle", tmp_path, pairs("hle")[:2])
    (root / "models/grpo").mkdir(parents=True)
    (root / "models/grpo/config.json").write_text("{}")

    def folder() -> Path:
        found = params()
        return Evaluation(root, found, "hle", ModelSettings(root, found, "models/grpo"), (file,)).folder

    before = folder()
    assert folder() == before
    with (root / changed).open("a") as grown:
        grown.write("# another line\n")
    assert folder() != before


def test_attempts_are_of_one_price_of_the_model_and_of_the_judge(tmp_path: Path) -> None:
    file = published("hle", tmp_path, pairs("hle")[:2])

    def folder(day: str, model: str = "openai/gpt-5-mini", judge: str | None = None) -> Path:
        made = evaluation("hle", file, tmp_path)
        world = made.params.world.model_copy(update={"price_date": day})
        told = made.params.model_copy(update={"world": world})
        judging = None if judge is None else JudgeSettings(model="j", price=judge)
        return replace(made, params=told, judge=judging, model=replace(made.model, params=told, price=model)).folder

    before, after = "2025-11-15", "2026-04-02"  # The price of gpt-5 is lower then, that of gpt-5-mini is not.
    assert folder(before) == folder(after)
    assert folder(before, "openai/gpt-5") != folder(after, "openai/gpt-5")
    assert folder(before, judge="openai/gpt-5") != folder(after, judge="openai/gpt-5")


def test_the_dollars_of_a_question_are_one_limit_however_they_are_written(tmp_path: Path) -> None:
    file = published("hle", tmp_path, pairs("hle")[:2])
    made = evaluation("hle", file, tmp_path)
    written = [replace(made.model, question_usd=Decimal(usd)) for usd in ("0.5", "0.50", "50", "5e1")]
    found = [(one.folder, one.variant) for one in (replace(made, model=model) for model in written)]
    assert found[0] == found[1] and found[2] == found[3] and found[2][1].startswith("openai-gpt-5-mini-50-usd")


def test_what_cannot_be_evaluated_is_said_in_one_line(tmp_path: Path) -> None:
    file = published("hle", tmp_path, pairs("hle")[:2])
    with pytest.raises(DataError, match="one of: Math, Other"):
        _ = evaluation("hle", file, tmp_path, only=("Law",)).questions
    with pytest.raises(DataError, match="no question"):
        _ = evaluation("hle", published("hle", tmp_path, []), tmp_path).questions
    with pytest.raises(ConfigError, match="no benchmark named gaia"):
        _ = evaluation("gaia", file, tmp_path).spec


def test_no_answer_is_wrong_and_no_judge_is_paid_to_say_so() -> None:
    question = Question(id="q", messages=(), question="what?", answer="x")
    for said in (None, "", "  "):
        found = asyncio.run(decided(Attempt(item="q", trial=0, answer=said, stop="turn_limit"), question, None))
        assert (found.solved, found.why, found.failure) == (False, "turn_limit", "")
    unjudged = asyncio.run(decided(Attempt(item="q", trial=0, answer="y"), question, None))
    assert unjudged.solved is None and unjudged.failure == "no judge is configured"
