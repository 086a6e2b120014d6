"""Preference adherence on scores counted by hand: the words' gain is against the same users silent."""

from pathlib import Path

import pytest

from orchestra.evaluation.analyses.adherence import (
    SAID,
    SILENT,
    AdherenceAnalysis,
    metrics,
    plot,
    rows,
    silenced,
    stating,
    table,
)
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.types import Episode
from tests.support.worlds import NEUTRAL, episode, example

CHEAP = NEUTRAL.model_copy(update={"kind": "cheap", "words": "save.", "outcome": 1.0, "compute": 0.5, "latency": 0.0})
NAMED = NEUTRAL.model_copy(
    update={"kind": "prefer", "words": "I prefer gpt-5.", "compute": 0.0, "latency": 0.0, "tools": {"gpt-5": 0.5}}
)
EXAMPLES = [example("e0", preference=CHEAP), example("e1", preference=NAMED), example("e2")]


def played(*attempts: tuple[bool | None, str, int]) -> list[Episode]:
    """Solved, dollars and calls of gpt-5, of e0, e1, …"""
    return [
        episode(solved=solved, cost_usd=usd, latency_s=1.0, calls={"gpt-5": calls} if calls else {}).model_copy(
            update={"example_id": f"e{number}"}
        )
        for number, (solved, usd, calls) in enumerate(attempts)
    ]


def test_a_silent_user_weighs_the_same_and_says_nothing() -> None:
    asked = stating(EXAMPLES)
    assert [one.id for one in asked] == ["e0", "e1"]
    for one in asked:
        quiet = silenced(one)
        assert quiet.preference.words == "" and quiet.preference.tools == one.preference.tools
        assert quiet.preference.compute == one.preference.compute and quiet.id == one.id


def test_the_gain_is_the_score_with_the_words_minus_that_without(tmp_path: Path) -> None:
    reference = played((True, "0.02", 1), (True, "0.02", 1))
    found = {
        # Half the reference's dollars under cheap: 1 + 0.5 * 2; two calls of gpt-5 for one before: 1 + 0.5 * 2.
        SAID: {"grpo": played((True, "0.01", 1), (True, "0.02", 2)), "sft": reference},
        # Silent it pays as before (1 + 0.5 * 1), and does not solve the second: 0.
        SILENT: {"grpo": played((True, "0.02", 1), (False, "0.02", 1)), "sft": reference},
    }
    made = rows(found, EXAMPLES[:2], "sft", 50, 0)
    by_key = {(one.policy, one.preference): one for one in made}
    assert list(by_key) == [(name, kind) for name in ("grpo", "sft") for kind in ("all", "cheap", "prefer")]
    cheap, prefer, both = by_key["grpo", "cheap"], by_key["grpo", "prefer"], by_key["grpo", "all"]
    assert cheap.said.value == pytest.approx(2.0) and cheap.gain.value == pytest.approx(0.5)
    assert prefer.said.value == pytest.approx(2.0) and prefer.gain.value == pytest.approx(2.0)
    assert both.gain.value == pytest.approx(1.25) and both.examples == 2 and both.accuracy.value == 1
    # The control policy does the same whatever is said.
    assert by_key["sft", "all"].gain.value == 0
    assert both.utility_gain.value is None, "no unit of utility without always-strongest"
    analysis = AdherenceAnalysis(data="own", simulated=True, reference="sft", rows=tuple(made))
    assert metrics(analysis)["grpo.cheap.gain"] == pytest.approx(0.5)
    gain = "+0.500 (+0.500 to +0.500)"
    assert table(analysis)[2][:7] == ("trained orchestrator", "cheap", "1", "2.000", "1.500", gain, "—")
    plot(analysis, tmp_path / "preferences.png")
    assert (tmp_path / "preferences.png").read_bytes().startswith(b"\x89PNG")


def test_utility_has_a_bound_where_eq_5_has_none(tmp_path: Path) -> None:
    strongest = played((True, "0.04", 1), (True, "0.04", 1))
    reference = played((True, "0.02", 1), (True, "0.02", 1))
    # Next to nothing against two cents: a hundredth of a cent more loses 50 of Eq. 5, and a thousandth of utility.
    found = {
        SAID: {"grpo": played((True, "0.0002", 0), (True, "0.02", 1)), "sft": reference, STRONGEST: strongest},
        SILENT: {"grpo": played((True, "0.0001", 0), (True, "0.02", 0)), "sft": reference, STRONGEST: strongest},
    }
    made = rows(found, EXAMPLES[:2], "sft", 50, 0)
    both, cheap, prefer = (one for one in made if one.policy == "grpo")
    assert cheap.gain.value == pytest.approx(0.5 * (100 - 200))
    assert cheap.utility.value == pytest.approx(1 - 0.5 * 0.0002 / 0.04)
    assert cheap.utility_gain.value == pytest.approx(-0.5 * 0.0001 / 0.04)
    # The preferred tool is called because of the words: its weight, 0.5.
    assert prefer.utility_gain.value == pytest.approx(0.5) and both.utility_gain.value == pytest.approx(0.249375)
    assert all(one.utility_gain.value == 0 for one in made if one.policy == STRONGEST)
    analysis = AdherenceAnalysis(data="own", simulated=True, reference="sft", rows=tuple(made))
    assert metrics(analysis)["grpo.prefer.utility_gain"] == pytest.approx(0.5)
    assert table(analysis)[3][8] == "+0.500 (+0.500 to +0.500)"
    plot(analysis, tmp_path / "preferences.png")
    assert (tmp_path / "preferences.png").read_bytes().startswith(b"\x89PNG")


def test_an_attempt_that_infrastructure_ended_is_left_out_of_both_sides() -> None:
    reference = played((True, "0.02", 1), (True, "0.02", 1))
    found = {
        SAID: {"grpo": played((True, "0.01", 1), (True, "0.02", 1)), "sft": reference},
        SILENT: {"grpo": played((None, "0.02", 1), (True, "0.02", 1)), "sft": reference},
    }
    both, cheap, prefer = (one for one in rows(found, EXAMPLES[:2], "sft", 50, 0) if one.policy == "grpo")
    assert (both.examples, cheap.examples, prefer.examples) == (1, 0, 1)
    assert cheap.gain.value is None and both.gain.value == 0
