"""Simulated experts: calibrated, repeatable, and unsure of what is in no book."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.accounting.ledger import cost_of
from orchestra.errors import DataError
from orchestra.tools.base import UNSURE, ToolContext
from orchestra.tools.catalogue.entry import Simulated
from orchestra.tools.experts.simulated import AnswerBook, BookEntry, SimulatedExpert, question_key, uniform
from orchestra.types import ToolKind
from tests.support.worlds import ROOT, catalogue

QUESTIONS = 1500


def book(topic: str) -> AnswerBook:
    made = AnswerBook()
    for number in range(QUESTIONS):
        made.add(BookEntry(question=f"what is {topic} {number}?", topic=topic, answer="A", wrong=("B", "C", "D")))
    return made


@pytest.mark.parametrize("topic", ["math", "music", "arithmetic"])
def test_shares_of_right_unsure_and_wrong_are_the_catalogue_s(topic: str) -> None:
    answers = book(topic)
    for name in catalogue().names(ToolKind.EXPERT):
        entry = catalogue().entry(name)
        assert entry.simulated is not None
        replies = [SimulatedExpert(name, entry, answers).reply(e.question) for e in answers.entries.values()]
        skill = entry.simulated.skills[topic]
        assert replies.count("A") / QUESTIONS == pytest.approx(skill, abs=0.045)
        assert replies.count(UNSURE) / QUESTIONS == pytest.approx((1 - skill) * entry.simulated.unsure, abs=0.045)


@pytest.mark.parametrize("name", catalogue().names(ToolKind.EXPERT))
def test_hard_questions_are_missed_more_often_and_the_skill_holds_over_all(name: str) -> None:
    entry, share = catalogue().entry(name), catalogue().hard_share
    assert entry.simulated is not None and share > 0
    for topic, skill in entry.simulated.skills.items():
        easy, hard = (entry.simulated.chance(topic, share, hard=it) for it in (False, True))
        assert 0 <= hard <= easy <= 1
        assert share * hard + (1 - share) * easy == pytest.approx(skill)
    made = AnswerBook()
    for number in range(QUESTIONS):
        entered = BookEntry(question=f"q {number}?", topic="code", answer="A", wrong=("B", "C"), hard=number % 2 == 0)
        made.add(entered)
    expert = SimulatedExpert(name, entry, made, share)
    for hard in (False, True):
        replies = [expert.reply(e.question) for e in made.entries.values() if e.hard == hard]
        chance = entry.simulated.chance("code", share, hard=hard)
        assert replies.count("A") / len(replies) == pytest.approx(chance, abs=0.06)
        doubt = (1 - chance) * entry.simulated.doubt(hard=hard)
        assert replies.count(UNSURE) / len(replies) == pytest.approx(doubt, abs=0.06)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_chances_stay_in_range_and_average_to_the_skill(skill: float, share: float, gap: float) -> None:
    behaviour = Simulated(skills={"law": skill}, unsure=0.5, hard_gap=gap)
    easy, hard = (behaviour.chance("law", share, hard=it) for it in (False, True))
    assert -1e-9 <= hard <= easy + 1e-9 and easy <= 1 + 1e-9
    assert share * hard + (1 - share) * easy == pytest.approx(skill)


def test_experts_are_right_apart_and_err_partly_together() -> None:
    answers = book("law")
    one, two = (SimulatedExpert(n, catalogue().entry(n), answers) for n in ("gpt-5", "claude-opus-4.1"))
    said = [(one.reply(e.question), two.reply(e.question)) for e in answers.entries.values()]
    assert sum(a == b == "A" for a, b in said) / QUESTIONS == pytest.approx(0.65 * 0.61, abs=0.05)
    wrong = [a == b for a, b in said if {a, b} <= {"B", "C", "D"}]
    # Half of the time each says the popular one, or else one of two others: 0.5² + 0.5² / 2.
    assert sum(wrong) / len(wrong) == pytest.approx(0.375, abs=0.13)


def test_a_call_is_charged_exactly_and_says_simulated() -> None:
    expert = SimulatedExpert("gpt-5", catalogue().entry("gpt-5"), book("law"))
    spec = catalogue().spec("gpt-5", price_factor=1.7)
    context = ToolContext("what is law 3?", spec.price, spec.latency_s)
    first = asyncio.run(expert.call({}, context))
    assert first == asyncio.run(expert.call({"question": "What is  law 3"}, context))
    assert first.cost_usd == cost_of(spec.price, first.usage)
    assert first.simulated and 0.74 * spec.latency_s < first.latency_s < 1.26 * spec.latency_s


def test_mean_cost_is_what_the_model_is_shown() -> None:
    expert, spec = SimulatedExpert("gpt-5", catalogue().entry("gpt-5"), AnswerBook()), catalogue().spec("gpt-5")
    costs = [float(cost_of(spec.price, expert.usage(f"q{n}")[0])) for n in range(QUESTIONS)]
    assert sum(costs) / QUESTIONS == pytest.approx(float(spec.call_usd), rel=0.02)


@given(st.text())
def test_unknown_questions_make_every_expert_unsure(question: str) -> None:
    assert SimulatedExpert("gpt-5", catalogue().entry("gpt-5"), AnswerBook()).reply(question) == UNSURE


@given(st.text(max_size=30), st.text(max_size=30))
def test_uniform_is_in_range_and_parts_do_not_run_together(a: str, b: str) -> None:
    assert 0 <= uniform(a, b) < 1
    assert uniform(a + "x", b) != uniform(a, "x" + b)


def test_another_process_gets_the_same_numbers() -> None:
    code = "from orchestra.tools.experts.simulated import uniform; print(uniform('gpt-5', 'q'))"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    ).stdout
    assert float(printed) == uniform("gpt-5", "q")


def test_the_book_is_read_and_its_bad_line_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    good = BookEntry(question="Who?", topic="law", answer="A", wrong=())
    path.write_text(good.model_dump_json() + "\n", encoding="utf-8")
    assert AnswerBook.load(path).find(" who ") == good
    path.write_text(good.model_dump_json() + "\nnot json\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"answers\.jsonl:2"):
        AnswerBook.load(path)


def test_normalise() -> None:
    assert question_key("  Who leads\nBorvane ?") == question_key("who leads borvane")
