"""Unseen tools and prices: what is changed and what is not, and the figures on episodes counted by hand."""

from pathlib import Path

import pytest

from orchestra.evaluation.analyses.changes import (
    BEYOND,
    HEADER,
    KNOWN,
    UNSEEN,
    ChangeAnalysis,
    metrics,
    plot,
    rows,
    table,
    unseen_prices,
    unseen_tools,
)
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.types import Episode, Example
from tests.support.worlds import NEUTRAL, catalogue, episode, example

EXPERTS = ("gpt-5", "gpt-5-mini", "qwen3-32b")
NAMED = NEUTRAL.model_copy(update={"kind": "prefer", "words": "I prefer gpt-5.", "tools": {"gpt-5": 0.5}})
SPREAD = 3.0


def offered(number: int) -> Example:
    return example(
        f"e{number}", toolbox=[catalogue().spec(name) for name in ("calculator", *EXPERTS)], preference=NAMED
    )


def test_unseen_tools_have_other_names_and_words_and_the_same_prices() -> None:
    before = offered(1)
    after = unseen_tools(before, catalogue(), 0)
    assert after == unseen_tools(before, catalogue(), 0) and after.id == before.id
    assert {one.name for one in after.experts}.isdisjoint(one.name for one in before.experts)
    for old, new in zip(before.toolbox, after.toolbox, strict=True):
        assert (new.tool, new.price, new.latency_s) == (old.tool, old.price, old.latency_s)
        assert (new.description == old.description) == (old.name == "calculator")
    (name,) = after.preference.tools
    assert name != "gpt-5" and after.preference.words == f"I prefer {name}."


def test_unseen_prices_lie_beyond_the_range_of_training_and_change_nothing_else() -> None:
    for number in range(20):
        before = offered(number)
        after = unseen_prices(before, catalogue(), SPREAD, 0)
        for old, new in zip(before.toolbox, after.toolbox, strict=True):
            assert (new.name, new.description, new.latency_s) == (old.name, old.description, old.latency_s)
            if old.name == "calculator":
                assert new == old
                continue
            ratio = float(new.price.output_per_million / catalogue().prices[new.tool].output_per_million)
            further = max(ratio, 1 / ratio) / SPREAD
            assert BEYOND[0] - 1e-6 <= further <= BEYOND[1] + 1e-6
            assert (new.call_usd > old.call_usd) == (ratio > 1)


def played(*outcomes: tuple[bool | None, float]) -> list[Episode]:
    return [
        episode(solved=solved, cost_usd=usd, latency_s=10, calls={"gpt-5": 1}).model_copy(
            update={"example_id": f"e{number}"}
        )
        for number, (solved, usd) in enumerate(outcomes)
    ]


def analysed() -> ChangeAnalysis:
    examples = [offered(number) for number in range(4)]
    strongest = played((True, 0.10), (True, 0.10), (True, 0.10), (False, 0.10))
    found = {
        KNOWN: {"grpo": played((True, 0.02), (True, 0.02), (True, 0.02), (False, 0.02)), STRONGEST: strongest},
        UNSEEN: {"grpo": played((True, 0.04), (False, 0.04), (None, 9), (False, 0.04)), STRONGEST: strongest},
    }
    made = rows(found, {KNOWN: examples, UNSEEN: examples}, "sft", 50, 0)
    return ChangeAnalysis(what="tools", data="own", simulated=True, examples=4, reference="sft", rows=tuple(made))


def test_the_change_is_paired_and_the_strongest_is_the_control(tmp_path: Path) -> None:
    known, unseen, control, changed = analysed().rows
    assert known.summary.accuracy.value == 0.75 and known.change.value is None
    # Of the three examples with both verdicts two were solved before and one after; a failed tool decides nothing.
    assert unseen.change.value == pytest.approx(-1 / 3) and unseen.summary.failed == 1
    assert known.summary.cost_ratio.value == pytest.approx(0.2)
    assert unseen.summary.cost_ratio.value == pytest.approx(0.4)
    assert control.summary.policy == changed.summary.policy == STRONGEST and changed.change.value == 0
    told = metrics(analysed())
    assert told["grpo.unseen.change"] == pytest.approx(-1 / 3) and told[f"{STRONGEST}.known.cost_ratio"] == 1
    cells = table(analysed())
    assert cells[0] == HEADER and [row[1] for row in cells[1:]] == [KNOWN, UNSEEN] * 2
    assert cells[2][4].startswith("-33.3 (") and cells[1][4] == "—"
    plot(analysed(), tmp_path / "changes.png")
    assert (tmp_path / "changes.png").read_bytes().startswith(b"\x89PNG")
