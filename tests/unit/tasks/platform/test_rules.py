"""The suites: every rule can fail, with its own words and severity, and good data breaks none."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestra.types import SPLITS
from orchestra.validation.frames import BALANCE
from orchestra.validation.rows import COLUMNS, PROBLEMS
from tasks.platform.expectations import Checked, check
from tasks.platform.rules import PROBLEM_WORDS, suites

MIX = {"topic": 0.5, "fact": 0.5, "change": 0.0}
ROWS = 60
GOOD: dict[str, Any] = {
    "kind": "question",
    "instruction_chars": 40,
    "tools": 5,
    "experts": 3,
    "choices": 3,
    "golden_calls": 0,
    "entities": 1,
    "expert_usd_min": 0.01,
    "expert_usd_max": 0.1,
    "tool_usd_min": 0.0,
    "tool_usd_max": 0.1,
    "latency_s_min": 0.1,
    "latency_s_max": 60.0,
    "weight_min": 0.1,
    "weight_max": 1.0,
}
ROW_BREAKS: dict[tuple[str, str], tuple[str, Any]] = {
    **{(column, PROBLEM_WORDS[column]): ("critical", "words") for column in PROBLEMS},
    ("id", "the id is not unique"): ("critical", "train-0"),
    ("made_here", "a category that the mix lacks"): ("critical", "change"),
    ("kind", "an unknown kind"): ("critical", "riddle"),
    ("instruction_chars", "the instruction is empty or too long"): ("critical", 2),
    ("tools", "no tools or too many"): ("critical", 65),
    ("expert_usd_min", "an expert costs nothing"): ("critical", 0.0),
    ("tool_usd_min", "a negative price"): ("critical", -0.1),
    ("latency_s_min", "a negative latency"): ("critical", -1.0),
    ("weight_min", "a preference weight outside [0, 1]"): ("critical", -0.1),
    ("weight_max", "a preference weight outside [0, 1]"): ("critical", 1.1),
    ("entities", "about no entity: it cannot be kept apart"): ("critical", 0),
    ("request", "the same request twice"): ("warning", "train-0"),
    ("instruction_chars", "a long instruction"): ("warning", 1001),
    ("golden_calls", "a known solution of many calls"): ("warning", 17),
    ("choices", "only one expert: nothing to choose"): ("warning", 1),
    ("tool_usd_max", "every tool is free: nothing to weigh"): ("warning", 0.0),
    ("expert_usd_max", "a very expensive expert"): ("warning", 11.0),
    ("latency_s_max", "a very slow tool"): ("warning", 601.0),
}
"""Severity and a bad value, by column and reason; the row of that place is broken, and only so."""
BALANCE_BREAKS = {
    ("examples", "a set is empty"): ("critical", 0.0),
    ("domain_ratio", "a domain is all but missing"): ("critical", 0.05),
    ("domain_ratio", "the domains are uneven"): ("warning", 2.5),
    ("offered_ratio", "an expert is offered far more or less than the others"): ("warning", 6.0),
    ("needed_ratio", "hardly any known solution needs a domain's tool"): ("warning", 0.01),
}
ANSWER_BREAKS: dict[tuple[str, str], tuple[str, Any]] = {
    ("question", "two answers to one question"): ("critical", "question 9"),
    ("topic", "an answer about a topic that no expert has"): ("critical", "alchemy"),
    ("answer_chars", "an empty answer"): ("critical", 0),
    ("right_among_wrong", "a wrong answer that is the right one"): ("critical", 1),
    ("wrong", "no plausible wrong answer"): ("warning", 0),
}
CORPUS_BREAKS: dict[tuple[str, str], tuple[str, Any]] = {
    ("id", "two records have one id"): ("critical", "9"),
    ("text_chars", "an empty record"): ("critical", 0),
    ("text_chars", "a long record"): ("warning", 3000),
}
SETS = {
    ("train_category", "the train set does not follow synthesize.mix"): "critical",
    ("train_category", "the train set follows synthesize.mix only roughly"): "warning",
    ("heldout_category", "the heldout set does not follow synthesize.mix"): "critical",
    ("heldout_category", "the heldout set follows synthesize.mix only roughly"): "warning",
    ("leak", "the splits are not disjoint"): "critical",
}
LACKS = {
    (f"{split}_category", f"the {split} set has no {category} example"): (split, category)
    for split in SPLITS
    for category in ("topic", "fact")
}
Frames = dict[str, pd.DataFrame]


def good() -> Frames:
    rows = []
    for split in SPLITS:
        for number in range(ROWS):
            name, category = f"{split}-{number}", ("topic", "fact")[number % 2]
            own = {"row": f"{split}:{number}", "split": split, "id": name, "request": name, "category": category}
            rows.append(dict.fromkeys(COLUMNS) | GOOD | own)
    examples = pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(PROBLEMS, "str"))
    numbers = [str(number) for number in range(10)]
    fine = {name: 1.0 for name in BALANCE if name.endswith("_ratio") or name == "examples"}
    return {
        "examples": split_categories(examples),
        "balance": pd.DataFrame([{"row": f"train: {n}", "name": n} | fine for n in numbers]),
        "answers": pd.DataFrame(
            [
                {"row": f"answers:{n}", "question": f"question {n}", "topic": "music"}
                | {"answer_chars": 4, "right_among_wrong": 0, "wrong": 2}
                for n in numbers
            ]
        ),
        "corpus": pd.DataFrame([{"row": f"corpus:{n}", "id": n, "text_chars": 50} for n in numbers]),
    }


def split_categories(examples: pd.DataFrame) -> pd.DataFrame:
    if "made_here" not in examples:
        examples["made_here"] = examples["category"]
    for split in SPLITS:
        examples[f"{split}_category"] = examples["category"].where(examples["split"] == split)
    return examples


def spoil(frame: pd.DataFrame, breaks: dict[tuple[str, str], tuple[str, Any]], first: int = 0) -> None:
    """One break in each row, from row number `first`."""
    for number, ((column, _), (_, value)) in enumerate(breaks.items(), start=first):
        frame.loc[number, column] = value


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """Every rule broken once, each by a row of its own."""
    frames = good()
    frames["examples"].loc[frames["examples"].index % 10 != 0, "category"] = "topic"
    spoil(frames["examples"], ROW_BREAKS, first=1)
    frames["examples"].loc[40:45, "leak"] = "also held out: Ovel"
    split_categories(frames["examples"])
    spoil(frames["balance"], BALANCE_BREAKS)
    spoil(frames["answers"], ANSWER_BREAKS)
    spoil(frames["corpus"], CORPUS_BREAKS)
    return check(frames, suites(MIX, dict.fromkeys(SPLITS, ROWS), ["music"]), tmp_path_factory.mktemp("docs"))


def test_every_rule_is_broken_below() -> None:
    every = {
        name: {(rule.column, rule.meta["reason"]) for rule in rules}
        for name, rules in suites(MIX, dict.fromkeys(SPLITS, ROWS), ["music"]).items()
    }
    assert every == {
        "examples": set(ROW_BREAKS) | set(SETS) | set(LACKS),
        "balance": set(BALANCE_BREAKS),
        "answers": set(ANSWER_BREAKS),
        "corpus": set(CORPUS_BREAKS),
    }


@pytest.mark.parametrize("known", [10, 0])
def test_good_data_breaks_none_even_where_nothing_is_known(tmp_path: Path, known: int) -> None:
    frames = good() | {name: good()[name][:known] for name in ("answers", "corpus")}
    checked = check(frames, suites(MIX, dict.fromkeys(SPLITS, ROWS), ["music"]), tmp_path / "docs")
    assert [outcome for outcome in checked.outcomes if not outcome.passed] == []
    assert checked.rows == {} and checked.tables == [] and checked.warnings == []


@pytest.mark.parametrize(("column", "reason"), ROW_BREAKS)
def test_a_rule_of_the_examples_refuses_its_row_or_warns_of_it(broken: Checked, column: str, reason: str) -> None:
    severity, value = ROW_BREAKS[column, reason]
    row = f"train:{list(ROW_BREAKS).index((column, reason)) + 1}"
    outcome = next(o for o in broken.outcomes if (o.column, o.reason) == (column, reason) and o.suite == "examples")
    assert not outcome.passed and outcome.severity == severity
    said = f"{reason}: {value}" if column in PROBLEM_WORDS else f"{reason} ({value})"
    if severity == "warning":
        assert any(name.startswith(row) for name in outcome.named) and outcome in broken.warnings
        assert row not in broken.rows  # A warning refuses nothing.
    else:
        assert broken.rows[row] == [said]


@pytest.mark.parametrize(("column", "reason"), SETS)
def test_a_rule_of_a_set_names_no_row(broken: Checked, column: str, reason: str) -> None:
    outcome = next(o for o in broken.outcomes if (o.column, o.reason) == (column, reason))
    assert (outcome.passed, outcome.severity, outcome.count) == (False, SETS[column, reason], 0)
    assert (reason in broken.tables) == (outcome.severity == "critical")
    assert (outcome in broken.warnings) == (outcome.severity == "warning")


@pytest.mark.parametrize(
    ("suite", "column", "reason"),
    [
        (suite, *key)
        for suite, breaks in (("balance", BALANCE_BREAKS), ("answers", ANSWER_BREAKS), ("corpus", CORPUS_BREAKS))
        for key in breaks
    ],
)
def test_a_rule_of_the_other_sets_stops_or_warns_and_names_the_place(
    broken: Checked, suite: str, column: str, reason: str
) -> None:
    severity = (BALANCE_BREAKS | ANSWER_BREAKS | CORPUS_BREAKS)[column, reason][0]
    outcome = next(o for o in broken.outcomes if (o.suite, o.column, o.reason) == (suite, column, reason))
    assert not outcome.passed and outcome.severity == severity and outcome.named and outcome.text.startswith(reason)
    assert (outcome.text in broken.tables) == (severity == "critical")
    assert (outcome in broken.warnings) == (severity == "warning")


@pytest.mark.parametrize(("split", "category"), LACKS.values())
def test_a_set_that_lacks_a_small_category_is_refused(tmp_path: Path, split: str, category: str) -> None:
    frames, mix = good(), {"topic": 0.02, "fact": 0.02, "lookup": 0.96}
    examples = frames["examples"]
    examples.loc[examples.index % ROWS > 1, "category"] = "lookup"
    lacking = (examples["split"] == split) & (examples["category"] == category)
    frames["examples"] = split_categories(examples.assign(category=examples["category"].mask(lacking, "lookup")))
    checked = check(frames, suites(mix, dict.fromkeys(SPLITS, ROWS), ["music"]), tmp_path / "docs")
    assert checked.tables == [f"the {split} set has no {category} example"] and checked.rows == {}


def test_a_set_too_small_for_a_category_may_lack_it() -> None:
    rules = suites({"topic": 0.96, "fact": 0.04}, {"train": 25, "heldout": 24}, [])["examples"]
    told = {rule.meta["reason"] for rule in rules}
    assert "the train set has no fact example" in told and "the heldout set has no fact example" not in told
