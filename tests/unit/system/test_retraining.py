"""Requests for a retraining: asked once, taken by one run, and begun by the rules."""

import fcntl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.config.retraining import Retraining
from orchestra.errors import ConfigError
from orchestra.system.retraining import (
    REQUESTS,
    RetrainReason,
    RetrainRequest,
    ask,
    assignments,
    close,
    drop,
    find_request,
    hindrance,
    listed,
    month_left,
    reopen_lost,
    replaced,
    requests,
    take,
    take_up,
)
from orchestra.system.runs import AWAITING, CAPPED, RunJournal, RunRecord, runs
from orchestra.system.workspace import LOCK, locked

PRICE = RetrainReason("price", "a/b@2026-01-01", "a/b costs more", assignments=('world.price_date="2026-01-01"',))
DRIFT = RetrainReason("drift", "mix\0f1", "mix of tools: 0.2", assignments=("grpo.seed=1",))
DATA = RetrainReason("data", "data/extra@1", "data/extra modified")
RETIRED = RetrainReason("model", "a/b", "a/b is retired", needs="name another model")
LOOKED = ("drift", "price", "model", "data")
RULES = Retraining(cooldown_hours=24.0, monthly_usd=Decimal(10))


def asked(root: Path, *reasons: RetrainReason, looked: Any = LOOKED) -> list[str]:
    return [one.what for one in ask(root, reasons, looked, "monitor m1")]


def test_a_request_that_would_be_written_elsewhere_is_left_out(tmp_path: Path) -> None:
    (one,) = ask(tmp_path, [PRICE], ["price"], "monitor m1")
    text = (tmp_path / REQUESTS / f"{one.id}.json").read_text()
    (tmp_path / REQUESTS / "x.json").write_text(text.replace(f'"{one.id}"', '"../../elsewhere"'))
    assert [each.id for each in take(tmp_path, "r1", "r1", 1)] == [one.id]
    assert not (tmp_path / "elsewhere.json").exists()


def states(root: Path) -> list[str]:
    return [one.state for one in requests(root)]


def taken(root: Path, run: str = "r1", usd: str = "4", *, days_ago: float = 0, answered: bool = True) -> None:
    """A run takes what waits, and ends."""
    found = take(root, run, run, 1)
    close(root, found, "Completed" if answered else "Failed", Decimal(usd), answered=answered)
    for one in requests(root):
        began = datetime.now(UTC) - timedelta(days=days_ago)
        attempts = [each.model_copy(update={"began": began}) if each.run_id == run else each for each in one.attempts]
        changed = one.model_copy(update={"attempts": tuple(attempts)})
        (root / REQUESTS / f"{one.id}.json").write_text(changed.model_dump_json())


def test_a_fact_asks_once_and_says_what_saw_it(tmp_path: Path) -> None:
    assert asked(tmp_path, PRICE, DRIFT) == ["a/b costs more", "mix of tools: 0.2"]
    assert asked(tmp_path, PRICE, DRIFT) == []
    assert {(one.cause, one.asked_by) for one in requests(tmp_path)} == {
        ("price", "monitor m1"),
        ("drift", "monitor m1"),
    }


def test_a_fact_that_is_gone_settles_and_asks_again_when_it_is_back(tmp_path: Path) -> None:
    asked(tmp_path, PRICE, DRIFT)
    asked(tmp_path, PRICE, looked=("price",))
    assert sorted(states(tmp_path)) == ["open", "open"], "drift was not looked for"
    asked(tmp_path, PRICE)
    assert sorted(states(tmp_path)) == ["open", "settled"]
    assert asked(tmp_path, PRICE, DRIFT) == ["mix of tools: 0.2"]


def test_a_fact_that_is_back_keeps_its_attempts_for_the_month_and_the_cool_down(tmp_path: Path) -> None:
    asked(tmp_path, DRIFT)
    taken(tmp_path, usd="9", answered=False)
    asked(tmp_path)
    assert states(tmp_path) == ["settled"] and asked(tmp_path, DRIFT) == ["mix of tools: 0.2"]
    assert month_left(tmp_path, RULES) == 1
    assert hindrance(tmp_path, RULES, []).startswith("the cool-down of 24 hours")


@pytest.mark.parametrize("fact", [PRICE, DATA])
def test_a_fact_that_a_failed_run_took_away_stays_open_until_an_answer_or_a_person(
    tmp_path: Path, fact: RetrainReason
) -> None:
    asked(tmp_path, fact)
    taken(tmp_path, answered=False)
    assert asked(tmp_path) == [] and states(tmp_path) == ["open"]
    assert hindrance(tmp_path, RULES, [], now=True) == ""
    taken(tmp_path, "r2")
    assert states(tmp_path) == ["answered"]
    asked(tmp_path, fact)
    assert states(tmp_path) == ["answered"]


def test_a_fact_that_no_run_took_away_settles(tmp_path: Path) -> None:
    asked(tmp_path, PRICE, DATA)
    asked(tmp_path)
    assert states(tmp_path) == ["settled", "settled"]


def test_a_suspended_run_keeps_the_dollars_of_a_ledger_that_was_put_away(tmp_path: Path) -> None:
    asked(tmp_path, PRICE)
    close(tmp_path, take(tmp_path, "r1", "r1", 1), AWAITING, Decimal(8), answered=True)
    close(tmp_path, take_up(tmp_path, "r1"), "Completed", Decimal(0), answered=True)
    assert month_left(tmp_path, RULES) == 2


def test_a_month_is_spent_once_its_cap_ended_a_run_until_the_cap_is_raised(tmp_path: Path) -> None:
    rules = RULES.model_copy(update={"cooldown_hours": 0.0})
    asked(tmp_path, PRICE)
    close(tmp_path, take(tmp_path, "r1", "r1", 1), CAPPED, Decimal("9.9"), answered=False)
    assert hindrance(tmp_path, rules, []) == "", "a smaller cap than the month's ended it"
    found = take(tmp_path, "r2", "r2", 1)
    close(tmp_path, found, CAPPED, Decimal("0.0993"), answered=False, month_usd=rules.monthly_usd)
    assert month_left(tmp_path, rules) == 0
    assert hindrance(tmp_path, rules, [], now=True) == "this month's 10 USD for such runs are spent"
    raised = rules.model_copy(update={"monthly_usd": Decimal(11)})
    assert month_left(tmp_path, raised) == Decimal("1.0007") and hindrance(tmp_path, raised, []) == ""


@pytest.mark.parametrize("flow", ["sweep", "benchmark", "synthesize", "answer", "release"])
def test_no_run_begins_beside_another_that_works_alone(tmp_path: Path, flow: str) -> None:
    asked(tmp_path, PRICE)
    RunJournal.begin(tmp_path, "m", "watchful-owl", "monitor", alone=False)
    assert hindrance(tmp_path, RULES, runs(tmp_path)) == ""
    RunJournal.begin(tmp_path, "busy", "busy-bee", flow, alone=True)
    assert hindrance(tmp_path, RULES, runs(tmp_path)) == f"{flow} busy-bee works"


def test_no_run_begins_while_a_command_without_a_record_holds_the_workspace(tmp_path: Path) -> None:
    asked(tmp_path, PRICE)
    (tmp_path / LOCK).parent.mkdir(exist_ok=True)
    with (tmp_path / LOCK).open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert hindrance(tmp_path, RULES, []) == "another command works in this workspace"
    with locked(tmp_path):
        assert hindrance(tmp_path, RULES, []) == "", "the run that asks holds it itself"


def test_what_was_answered_or_dropped_does_not_ask_again(tmp_path: Path) -> None:
    asked(tmp_path, PRICE, DRIFT)
    drop(tmp_path, next(one for one in requests(tmp_path) if one.cause == "drift"))
    taken(tmp_path)
    assert sorted(states(tmp_path)) == ["answered", "dropped"]
    assert asked(tmp_path, PRICE, DRIFT) == []
    with pytest.raises(ConfigError, match="it is answered"):
        drop(tmp_path, next(one for one in requests(tmp_path) if one.cause == "price"))
    with pytest.raises(ConfigError, match="no request 'zz'"):
        find_request(tmp_path, "zz")


def test_drift_of_a_version_that_another_one_replaced_asks_for_nothing_until_it_serves_again(tmp_path: Path) -> None:
    first = replace(DRIFT, serving="f1")
    asked(tmp_path, first, PRICE)
    replaced(tmp_path, "f1", open_too=True)
    replaced(tmp_path, "f2")
    assert states(tmp_path) == ["open", "open"], "the same version, then the same weights under other settings"
    replaced(tmp_path, "f2", open_too=True)
    assert {one.cause: one.state for one in requests(tmp_path)} == {"drift": "settled", "price": "open"}
    assert asked(tmp_path, first, PRICE) == ["mix of tools: 0.2"]
    taken(tmp_path)
    replaced(tmp_path, "f2")
    assert {one.cause: one.state for one in requests(tmp_path)} == {"drift": "settled", "price": "answered"}


def test_an_empty_id_is_no_request_even_where_there_is_one(tmp_path: Path) -> None:
    asked(tmp_path, PRICE)
    with pytest.raises(ConfigError, match="no request ''"):
        find_request(tmp_path, "")


def test_a_run_that_failed_or_was_killed_leaves_the_request_open(tmp_path: Path) -> None:
    asked(tmp_path, PRICE)
    taken(tmp_path, answered=False)
    assert states(tmp_path) == ["open"]
    take(tmp_path, "r2", "r2", 1)
    living = RunJournal.begin(tmp_path, "r2", "r2", "retrain").record
    reopen_lost(tmp_path, [living], lambda record: Decimal(3))
    assert states(tmp_path) == ["taken"]
    killed = living.model_copy(update={"ended": datetime.now(UTC), "state": "Killed"})
    reopen_lost(tmp_path, [killed], lambda record: Decimal(3))
    (one,) = requests(tmp_path)
    assert one.state == "open"
    assert [(each.state, each.usd) for each in one.attempts] == [("Failed", Decimal(4)), ("Killed", Decimal(3))]


def test_one_at_a_time_a_cool_down_and_the_months_dollars(tmp_path: Path) -> None:
    def why(now: bool = False, records: list[RunRecord] | None = None, rules: Retraining = RULES) -> str:
        return hindrance(tmp_path, rules, records or [], now=now)

    assert why() == "nothing asks for a retraining"
    asked(tmp_path, RETIRED)
    assert why() == "1 requests wait for a person"
    asked(tmp_path, RETIRED, PRICE)
    assert why() == ""
    RunJournal.begin(tmp_path, "busy", "busy-bee", "retrain")
    assert why(records=runs(tmp_path)) == "retrain busy-bee works"

    taken(tmp_path, usd="4", answered=False)
    assert why().startswith("the cool-down of 24 hours lasts until ") and why(now=True) == ""
    assert why(rules=RULES.model_copy(update={"cooldown_hours": 0.0})) == ""
    assert month_left(tmp_path, RULES) == 6
    taken(tmp_path, "r2", usd="7", answered=False)
    assert why(now=True) == "this month's 10 USD for such runs are spent"
    assert month_left(tmp_path, Retraining()) is None


def test_a_run_of_a_container_that_is_gone_blocks_nothing(tmp_path: Path) -> None:
    asked(tmp_path, PRICE)
    take(tmp_path, "r1", "lost-lynx", 1)
    RunJournal.begin(tmp_path, "r1", "lost-lynx", "retrain").update(host="a-container")
    with (tmp_path / LOCK).open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        reopen_lost(tmp_path, runs(tmp_path), lambda record: Decimal(0))
        assert states(tmp_path) == ["taken"]
        asked(tmp_path, DRIFT)
        assert hindrance(tmp_path, RULES, runs(tmp_path)) == "retrain lost-lynx works"
    reopen_lost(tmp_path, runs(tmp_path), lambda record: Decimal(0))
    assert states(tmp_path) == ["open", "open"]
    assert hindrance(tmp_path, RULES, runs(tmp_path), now=True) == ""


def test_a_run_that_answers_several_is_paid_once_and_last_months_do_not_count(tmp_path: Path) -> None:
    asked(tmp_path, PRICE, DRIFT)
    for days_ago in (40, 365):  # The month before the last, and this month of last year.
        taken(tmp_path, f"{days_ago} days ago", usd="9", days_ago=days_ago, answered=False)
    taken(tmp_path, "new", usd="4", answered=False)
    assert month_left(tmp_path, RULES) == 6


def test_drift_takes_the_seed_of_the_run_that_takes_it_and_keeps_that_of_one_that_failed(tmp_path: Path) -> None:
    asked(tmp_path, replace(DRIFT, assignments=("grpo.seed=1",)), PRICE)
    assert assignments([one for one in take(tmp_path, "r1", "r1", 5) if one.cause == "drift"]) == ["grpo.seed=5"]
    close(tmp_path, requests(tmp_path), "Failed", Decimal(1), answered=False)
    later = take(tmp_path, "r2", "r2", 9)
    assert {one.cause: one.assignments for one in later} == {"drift": ("grpo.seed=5",), "price": PRICE.assignments}


def test_drift_takes_the_next_seed_only_where_nothing_else_makes_another_model() -> None:
    def request(reason: RetrainReason) -> RetrainRequest:
        more = {"what": reason.what, "assignments": reason.assignments, "asked_by": "m"}
        return RetrainRequest(id=reason.key[:8], cause=reason.cause, asked=datetime.now(UTC), **more)

    later = RetrainReason("price", "c/d", "c/d", assignments=('world.price_date="2026-02-01"',))
    assert assignments([request(DRIFT)]) == ["grpo.seed=1"]
    assert assignments([request(DRIFT), request(PRICE), request(later)]) == ['world.price_date="2026-02-01"']
    assert assignments([request(PRICE)], ['world.price_date="2026-03-01"']) == [], "a person has moved on"
    assert assignments([request(later)], ['world.price_date="2026-01-15"']) == ['world.price_date="2026-02-01"']
    tenth = RetrainReason("drift", "y", "y", assignments=("grpo.seed=10",))
    ninth = RetrainReason("drift", "z", "z", assignments=("grpo.seed=9",))
    assert assignments([request(tenth), request(ninth)]) == assignments([request(ninth), request(tenth)])
    assert assignments([request(ninth), request(tenth)]) == ["grpo.seed=10"]
    assert assignments([request(DRIFT), request(RetrainReason("data", "x", "data/extra modified"))]) == []


def test_the_list_says_who_asked_what_answered_and_why_none_begins(tmp_path: Path) -> None:
    asked(tmp_path, PRICE, RETIRED)
    taken(tmp_path, "calm-cat")
    (tmp_path / REQUESTS / "half.json").write_text("{")
    lines = list(listed(tmp_path, RULES, []))
    assert lines[0].endswith("model: a/b is retired") and "needs a person: name another model" in lines[1]
    assert " answered " in lines[2] and "calm-cat" in lines[3] and lines[3].endswith("Completed, 4.00 USD")
    assert lines[-1] == "no run begins: 1 requests wait for a person; 6.00 of 10.00 USD are left this month"
