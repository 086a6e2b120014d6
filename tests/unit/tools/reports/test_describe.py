"""Measured descriptions: asked once, kept, and worded as the outcomes warrant."""

import asyncio
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.accounting.budget import Budget
from orchestra.errors import BudgetError, ConfigError, DataError
from orchestra.files.jsonl import read_jsonl
from orchestra.rewards.outcome import verify
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.experts.simulated import BookEntry
from orchestra.tools.reports.describe import (
    LONGEST,
    Tried,
    run,
    sample,
    skills,
    summary,
    template,
    with_description,
    write,
)
from orchestra.tools.reports.describe import written as write_with
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Component, Example, Price
from tests.support.endpoint import answer, ended, serving
from tests.support.experts import expert, real
from tests.support.worlds import ROOT, example, toolkit

TOPICS = ("law", "math", "music")


def questions(count: int = 30) -> list[Example]:
    return [
        example(f"q{n}", instruction=f"who made {n}?", answer="A", category=Category.TOPIC).model_copy(
            update={"topic": TOPICS[n % 3]}
        )
        for n in range(count)
    ]


@pytest.fixture
def tools(tmp_path: Path) -> Toolkit:
    kit = toolkit(tmp_path)
    for one in questions():
        assert one.topic is not None
        kit.book.add(BookEntry(question=one.instruction, topic=one.topic, answer="A", wrong=("B", "C")))
    return kit


def measured(tools: Toolkit, file: Path, count: int = 30, expert: str = "llama-3.3-70b") -> list[Tried]:
    return asyncio.run(run(expert, sample(questions(), count, 0), tools, verify, file))


def tried(topic: str, right: int, of: int) -> list[Tried]:
    return [
        Tried(expert="x", example_id=f"{topic}{n}", topic=topic, question="?", reply="A", solved=n < right)
        for n in range(of)
    ]


def test_topics_come_in_turn_and_only_questions_for_experts() -> None:
    drawn = sample([*questions(), example("sum", golden_calls=[{"name": "calculator", "arguments": {}}])], 7, 0)
    assert [one.topic for one in drawn] == ["law", "math", "music", "law", "math", "music", "law"]
    assert drawn == sample(questions(), 7, 0) and drawn != sample(questions(), 7, 1)
    with pytest.raises(DataError, match="no example needs an expert"):
        sample([example(golden_calls=[{"name": "calculator", "arguments": {}}])], 7, 0)


def test_a_fallback_is_not_asked_what_the_expert_is_measured_on(tools: Toolkit, tmp_path: Path) -> None:
    entry = tools.catalogue.entry("llama-3.3-70b")
    assert entry.simulated is not None
    down = entry.simulated.model_copy(update={"failures": 1.0})
    entries = tools.catalogue.entries | {
        "llama-3.3-70b": entry.model_copy(update={"simulated": down, "fallback": "gpt-5"})
    }
    budget = Budget(tmp_path / "ledger.jsonl", None)
    kit = Toolkit(replace(tools.catalogue, entries=entries), {}, tmp_path, book=tools.book, budget=budget)
    found = measured(kit, tmp_path / "out.jsonl", 6)
    assert all(one.solved is None and "llama-3.3-70b: " in (one.failure or "") for one in found) and len(found) == 6
    assert budget.spent_usd == 0


def test_outcomes_are_kept_and_not_asked_again(tools: Toolkit, tmp_path: Path) -> None:
    file, budget = tmp_path / "out" / "llama.jsonl", Budget(tmp_path / "ledger.jsonl", Decimal("0.05"))
    tools = toolkit(tmp_path, budget=budget, book=tools.book)
    with pytest.raises(BudgetError):
        measured(tools, file)
    kept = read_jsonl(file, Tried)
    assert 5 <= len(kept) < 30 and 0 < budget.spent_usd <= Decimal("0.05")
    again = Budget(tmp_path / "second.jsonl", None)
    tools = toolkit(tmp_path, budget=again, book=tools.book)
    found = measured(tools, file)
    assert len(found) == 30 and found[: len(kept)] == kept and read_jsonl(file, Tried) == found
    assert again.by_component()[Component.EXPERT].calls == 30 - len(kept)
    assert skills(found)["music"][1] == 10 and summary(found)[0].endswith("(simulated)")
    assert measured(tools, file) == found and again.by_component()[Component.EXPERT].calls == 30 - len(kept)


def test_what_is_kept_costs_what_it_costs_at_the_present_price(tools: Toolkit, tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    before = measured(tools, file, 6)
    price = tools.catalogue.prices["llama-3.3-70b"]
    rates = ("input_per_million", "cached_input_per_million", "output_per_million", "per_call", "per_second")
    twice = price.model_copy(update={one: 2 * rate for one in rates if (rate := getattr(price, one)) is not None})
    later = replace(tools.catalogue, prices={**tools.catalogue.prices, "llama-3.3-70b": twice})
    found = measured(Toolkit(later, {}, tmp_path, book=tools.book), file, 6)
    assert [one.cost_usd for one in found] == [2 * one.cost_usd for one in before]
    assert len(read_jsonl(file, Tried)) == 6, "nothing is asked again"
    assert measured(tools, file, 6) == before


def test_another_question_of_the_same_id_is_asked(tools: Toolkit, tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    same, other, last = questions(3)
    asyncio.run(run("llama-3.3-70b", [same, other], tools, verify, file))
    found = asyncio.run(run("llama-3.3-70b", [same, last.model_copy(update={"id": other.id})], tools, verify, file))
    assert [one.question for one in found] == [same.instruction, last.instruction]
    assert len(read_jsonl(file, Tried)) == 3


def test_failed_calls_are_asked_again(tools: Toolkit, tmp_path: Path) -> None:
    file, entries = tmp_path / "o.jsonl", tools.catalogue.entries
    entry = entries["llama-3.3-70b"]
    assert entry.simulated is not None
    broken = entry.model_copy(update={"simulated": entry.simulated.model_copy(update={"failures": 1.0})})
    ill = Toolkit(replace(tools.catalogue, entries={**entries, "llama-3.3-70b": broken}), {}, tmp_path, book=tools.book)
    assert [one.failure is not None for one in measured(ill, file, 3)] == [True] * 3
    with pytest.raises(DataError, match="every call failed"):
        template(read_jsonl(file, Tried))
    assert [one.failure for one in measured(tools, file, 3)] == [None] * 3


def test_an_expert_that_gives_no_answer_is_wrong_and_not_asked_again(
    tools: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be measured on the questions that it finished."""
    replies = [(200, one, 0.0) for one in (ended("length"), ended("content_filter"), answer("A"))]
    with serving(replies) as double:
        kit = real(monkeypatch, tools, double, real=expert())
        kit = Toolkit(kit.catalogue, {}, tmp_path, book=tools.book)
        found = measured(kit, tmp_path / "o.jsonl", 3, "real")
        assert measured(kit, tmp_path / "o.jsonl", 3, "real") == found and len(double.asked) == 3
    assert sorted((one.solved, one.failure) for one in found) == [(False, None), (False, None), (True, None)]
    assert all(one.cost_usd > 0 for one in found)


def test_only_experts_are_described(tools: Toolkit, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="calculator is not an expert"):
        measured(tools, tmp_path / "o.jsonl", 3, "calculator")


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"law": 9, "math": 8, "music": 0, "code": 0, "physics": 1}, "law and math"),
        ({"law": 9, "math": 5, "music": 0, "code": 0, "physics": 1}, "law and some math"),
        ({"law": 10, "math": 5, "music": 8, "code": 0, "art": 0, "trade": 0, "past": 0}, "law, music and some math"),
        ({"law": 7, "math": 6, "music": 7}, "strong in every subject"),
        ({"law": 5, "math": 5, "music": 5}, "good in every subject"),
        ({"law": 3, "math": 4, "music": 3}, "fair in every subject"),
        ({"law": 0, "math": 1, "music": 0}, "weak in every subject"),
    ],
)  # fmt: skip
def test_the_template_says_what_the_shares_warrant(shares: dict[str, int], said: str) -> None:
    assert template([one for topic, right in shares.items() for one in tried(topic, right, 10)]) == said


@pytest.mark.parametrize("text", ['"Knows music, weak at law."', "x" * (LONGEST + 1), "two\nlines", "<|im_end|> hi"])
def test_a_model_writes_one_line_from_the_outcomes(tmp_path: Path, text: str) -> None:
    with serving([(200, answer(text), 0)]) as double:
        budget = Budget(tmp_path / "l.jsonl", Decimal(1))
        chat = PaidChat(
            Chat("w", model="w", url=double.url), Price(output_per_million=Decimal(1)), budget, Component.GENERATOR
        )
        outcomes = [*tried("music", 3, 3), *tried("law", 0, 3)]
        if text.startswith('"'):
            assert asyncio.run(write_with(outcomes, chat)) == "Knows music, weak at law."
            told = double.asked[0]["messages"][1]["content"]
            assert '"music": "3 of 3 right"' in told and '"right": false' in told
        else:
            with pytest.raises(DataError, match="no description of one line"):
                asyncio.run(write_with(outcomes, chat))
        assert budget.spent_usd == Decimal("0.000007")


def test_only_the_one_line_of_the_catalogue_changes(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    shutil.copy(ROOT / "data/catalogue/tools.yaml", path)
    before = path.read_text(encoding="utf-8").splitlines()
    _, old, new = with_description(path.read_text(encoding="utf-8"), "qwen2.5-math-7b", "easy math: yes")
    assert (old, new) == ("    description: some math", '    description: "easy math: yes"')
    write(path, {"qwen2.5-math-7b": "easy math: yes"})
    after = path.read_text(encoding="utf-8").splitlines()
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [(old, new)]
    with pytest.raises(ConfigError):
        write(path, {"qwen2.5-math-7b": "no"})  # YAML would read a truth value.
    assert path.read_text(encoding="utf-8").splitlines() == after and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="no line with a description of gpt-9"):
        write(path, {"gpt-5": "x", "gpt-9": "x"})
    assert path.read_text(encoding="utf-8").splitlines() == after  # All of them or none.


def test_an_entry_with_an_anchor_has_its_line_too() -> None:
    text = "tools:\n  small: &small\n    kind: expert\n    description: math\n"
    assert with_description(text, "small", "law")[0] == text.replace("math", "law")


def test_a_reasoning_model_has_room_for_its_thoughts(tmp_path: Path) -> None:
    """Its thoughts count against the limit of the reply, and a reply of nothing else is one line with what to do."""
    with serving([(200, answer(""), 0)]) as double:
        chat = PaidChat(
            Chat("w", model="w", url=double.url), Price(), Budget(tmp_path / "l", None), Component.GENERATOR
        )
        with pytest.raises(DataError, match=r"name another model, or take the template: leave --model out$"):
            asyncio.run(write_with(tried("music", 3, 3), chat))
        assert double.asked[0]["max_completion_tokens"] >= 4_000
