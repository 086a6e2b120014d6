"""docs/claims.md and the README's table: what they say, and that nothing else of the README changes."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestra.errors import DataError
from orchestra.evaluation.claims.arms import ArmRow
from orchestra.evaluation.claims.claims import Claim
from orchestra.evaluation.claims.page import BEGIN, END, Facts, StageRun, block, changed, page, refresh
from orchestra.statistics.intervals import Interval
from tests.support.worlds import ROOT

SPAN = Interval(value=0.5, low=0.4, high=0.6)
ROWS = [ArmRow(name="accuracy", unit="share", cells={"base": SPAN, "grpo": SPAN})]
CLAIM = Claim(name="cost", bar="≤ 30 %", value=0.5, low=0.4, high=0.6, holds=False, per_seed=(0.4, 0.6))
FACTS = Facts(
    date="2025-12-01",
    command="orchestra learn --seeds 0,4",
    commit="abc123+",
    cores=2,
    load=0.25,
    profile="embedded",
    price_date="2025-11-15",
    examples=1024,
    probe_examples=200,
    price_spread=2.5,
    bootstrap=1000,
    simulated=True,
    seeds=(0, 4),
    minutes={"0": 10.04, "4": 11.96},
    changed={"grpo.steps": "60 (default 120)"},
    failures=("seed 5: grpo: stopped — read the log",),
    parts=(
        StageRun(of="seed 0", stage="sft", minutes=4.0, dollars=12.5, reused=False),
        StageRun(of="seed 0", stage="grpo", minutes=5.25, dollars=2.5, reused=True),
        StageRun(of="data", stage="validate", minutes=0.5, dollars=None, reused=False),
    ),
)


def test_the_page_says_what_it_rests_on() -> None:
    text = page(FACTS, [CLAIM], "| expert |", ROWS)
    for said in (
        "# Claims (simulated experts)",
        "`orchestra learn --seeds 0,4` on 2025-12-01",
        "- Training seeds 0, 4",
        "1,024 held-out examples",
        "10.0, 12.0 minutes on a machine of 2 cores; 0.2 other processes",
        "$15.00 spent (simulated)",
        "Commit abc123+: files differed from it",
        "`grpo.steps` 60 (default 120)",
        "**Failed:** seed 5: grpo: stopped — read the log",
        "| cost | ≤ 30 % | 50.0 % |",
        "| seed 0 | grpo | 5.2 | 2.50 | an earlier run's |",
        "| data | validate | 0.5 | — |  |",
        "| all | | 9.8 | 15.00 | |",
        "| expert |",
        "| | base | **ours** |",
        "| accuracy | 50.0 % [40.0 %, 60.0 %] | 50.0 % [40.0 %, 60.0 %] |",
        "corrected for 1 claims",
    ):
        assert said in text
    assert text.endswith("|\n")


def test_nothing_is_called_simulated_that_was_not_and_no_failure_is_made_up() -> None:
    facts = FACTS.model_copy(update={"simulated": False, "failures": (), "commit": "abc123", "changed": {}})
    text = page(facts, [CLAIM], "", ROWS) + block(facts, [CLAIM], ROWS)
    assert "simulated" not in text and "Failed" not in text and "differed" not in text
    assert "Parameters that differ from those committed: none." in text


def test_the_readme_gets_the_table_with_its_date_and_what_failed() -> None:
    text = block(FACTS, [CLAIM, CLAIM.model_copy(update={"name": "price", "headline": True})], ROWS)
    assert "| accuracy | 50.0 % | 50.0 % |" in text
    assert "| price | ≤ 30 % | 50.0 % | 40.0 % to 60.0 % | **no** |" in text and "| cost |" not in text
    assert text.startswith("2025-12-01, training seeds 0, 4, 1,024 held-out examples, made with **simulated experts**")
    assert "**Failed:** seed 5" in text and text.endswith("|") and "(docs/claims.md)" in text


@given(st.text(), st.text(), st.text(), st.text())
def test_only_what_is_between_the_markers_changes(before: str, old: str, after: str, new: str) -> None:
    assume(not any(mark in part for part in (before, old, after) for mark in (BEGIN, END)))
    once = refresh(f"{before}{BEGIN}{old}{END}{after}", new)
    assert once == f"{before}{BEGIN}\n{new.strip()}\n{END}{after}"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_readme_without_its_place_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"README\.md: no place for the claims table"):
        refresh(text, "new")


def test_our_readme_has_the_place() -> None:
    assert "the new table" in refresh((ROOT / "README.md").read_text(encoding="utf-8"), "the new table")


def test_what_differs_is_named_with_its_default() -> None:
    default = {"grpo": {"steps": 120, "kl": 0.0}, "profile": "embedded"}
    assert changed(default, default) == {}
    now = {"grpo": {"steps": 60, "kl": 0.0, "reward": "full"}, "profile": "embedded", "new": {"a": 1}}
    assert changed(default, now) == {
        "grpo.steps": "60 (default 120)",
        "grpo.reward": "full (default None)",
        "new.a": "1 (default None)",
    }
