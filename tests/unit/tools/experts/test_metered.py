"""Endpoint calls that cost: recorded without secrets, replayed without a connection, refused before the cap."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import total
from orchestra.errors import BudgetError, ConfigError, ToolError
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.failures import RequestError
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.types import Charge, Component, Message, Price
from tests.support.endpoint import Double, answer, serving, taking_no

PRICE = Price(input_per_million=Decimal(2), cached_input_per_million=Decimal(1), output_per_million=Decimal(10))
COST = Decimal("0.00023")
"""Of one `answer`."""
KEY = "sk-secret-1"


def paid(
    folder: Path, url: str, *, cap: str = "1", mode: Mode = "auto", attempts: int = 3, deadline_s: float = 5
) -> PaidChat:
    tape = Cassette(folder / "tape.jsonl", mode)
    chat = Chat(
        "writer", model="m-1", url=url, key=KEY, cassette=tape, attempts=attempts, backoff_s=0.01, deadline_s=deadline_s
    )
    return PaidChat(chat, PRICE, Budget(folder / "ledger.jsonl", Decimal(cap)), Component.GENERATOR)


def ask(chat: PaidChat, *texts: str, max_tokens: int = 50) -> list[tuple[ChatReply, Charge]]:
    async def run() -> list[tuple[ChatReply, Charge]]:
        try:
            return [await chat.ask([Message(role="user", content=t)], max_tokens=max_tokens) for t in texts]
        finally:
            await chat.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("usage", [51, 50])
def test_a_reply_above_its_limit_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, usage: int) -> None:
    counts = {"usage": {"prompt_tokens": 9, "completion_tokens": usage}}
    with serving([(200, answer() | counts, 0), (200, answer(None) | counts, 0)]) as double:
        made = paid(tmp_path, double.url)
        chat = PaidChat(made.chat, made.price, made.budget, Component.USER, "max_tokens")
        ask(chat, "one?")
        with pytest.raises(ToolError, match="empty answer"):
            ask(chat.of(Component.GENERATOR), "two?")
    assert [one.get("max_tokens") for one in double.asked] == [50, 50] and "max_completion_tokens" not in double.asked[
        0
    ]
    assert sum("a reply has 51 tokens, and its limit was 50" in one for one in caplog.messages) == 2 * (usage == 51)


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("world.judge.settings", "leave it out by world.judge.settings: {seed: null}"),
        ("", "name a model that takes seed"),
    ],
)
def test_a_refused_parameter_is_told_with_a_setting_that_the_caller_has(
    tmp_path: Path, setting: str, advice: str
) -> None:
    with serving(taking_no("seed")) as double:
        made = paid(tmp_path, double.url)
        chat = PaidChat(made.chat, PRICE, made.budget, Component.JUDGE, settings={"seed": 1}, setting=setting)
        with pytest.raises(RequestError) as error:
            ask(chat.of(Component.USER), "one?")
    assert error.value.fix == advice


def ledger(folder: Path) -> list[Charge]:
    return read_jsonl(folder / "ledger.jsonl", Charge)


def test_what_was_recorded_is_replayed_in_order_without_a_connection_or_a_dollar(tmp_path: Path) -> None:
    script = [(200, answer(text), 0.0) for text in ("one", "two", "three")]
    with serving(script) as double:
        first = ask(paid(tmp_path, double.url), "again?", "again?", "other?")
        assert [reply.text for reply, _ in first] == ["one", "two", "three"]
        assert [charge.cost_usd for _, charge in first] == [COST] * 3 and double.keys == [f"Bearer {KEY}"] * 3
        again = ask(paid(tmp_path, double.url), "other?", "again?", "again?")
        assert [reply.text for reply, _ in again] == ["three", "one", "two"] and len(double.asked) == 3
    nobody = paid(tmp_path, "http://127.0.0.1:9", mode="replay")
    assert [charge.cost_usd for _, charge in ask(nobody, "again?")] == [Decimal(0)]
    with pytest.raises(ConfigError, match=r"no recorded reply to request [0-9a-f]{12}"):
        ask(nobody, "new?")
    assert total(ledger(tmp_path)) == 3 * COST


def test_record_takes_the_place_of_what_was_there_and_auto_asks_what_is_missing(tmp_path: Path) -> None:
    with serving([(200, answer("one"), 0), (200, answer("two"), 0)]) as double:
        ask(paid(tmp_path, double.url), "a?")
        assert ask(paid(tmp_path, double.url, mode="record"), "a?")[0][0].text == "two"
        assert [reply.text for reply, _ in ask(paid(tmp_path, double.url), "a?", "b?")] == ["two", "two"]
        assert len(double.asked) == 3


def test_no_secret_and_no_address_is_recorded(tmp_path: Path) -> None:
    with serving([(200, answer(f"your key is {KEY}"), 0)]) as double:
        ask(paid(tmp_path, double.url), f"my key is {KEY}, {double.url[:7]}")
        text = (tmp_path / "tape.jsonl").read_text() + (tmp_path / "ledger.jsonl").read_text()
        assert KEY not in text and str(double.server_port) not in text and text.count("[secret]") == 2


def test_the_cap_refuses_the_next_call_before_it_is_made(tmp_path: Path) -> None:
    """The worst case of a call: its bytes and 200 tokens read, all it may write written."""
    with serving([(200, answer(), 0)]) as double:
        chat = paid(tmp_path, double.url, cap="0.0013")
        with pytest.raises(BudgetError, match=r"0\.00023 of 0\.0013 USD are spent, and the next call could cost 0\.00"):
            ask(chat, "a?", "b?", "c?", max_tokens=60)
        assert len(double.asked) == 1
        with pytest.raises(BudgetError, match=r"0\.00023 of 0\.0013"):  # a later run goes on with the ledger
            ask(paid(tmp_path, double.url, cap="0.0013"), "b?", max_tokens=60)
        assert ask(paid(tmp_path, double.url, cap="0"), "a?", max_tokens=60)[0][0].replayed  # a replay needs no money
        assert len(double.asked) == 1 and total(ledger(tmp_path)) == COST


@pytest.mark.parametrize(
    ("script", "lost"),
    [
        ([(200, b"<html>", 0.0), (200, answer(), 0.0)], 1),
        ([(503, {}, 0.0), (200, answer(), 0.0)], 0),
        ([(200, {**answer(), "usage": None}, 0.0)], 1),
        ([(0, None, 0.0), (200, answer(), 0.0)], 1),
    ],
)
def test_what_may_have_been_billed_is_booked_at_its_worst(tmp_path: Path, script: Any, lost: int) -> None:
    with serving(script) as double:
        chat = paid(tmp_path, double.url)
        ask(chat, "a?")
        dear = [charge for charge in ledger(tmp_path) if charge.cost_usd > COST]
        assert len(dear) == lost and chat.budget.spent_usd == total(ledger(tmp_path))
        assert all(charge.usage.output_tokens == 50 for charge in dear)


def test_a_lost_reply_counts_although_the_call_failed(tmp_path: Path) -> None:
    def failing(double: Double, deadline_s: float) -> None:
        with pytest.raises(ToolError):
            ask(paid(tmp_path, double.url, attempts=1, deadline_s=deadline_s), "a?")

    with serving([(200, answer(), 1.0)]) as double:
        failing(double, 0.4)
    with serving([(401, {}, 0)]) as double:
        failing(double, 20)
    with serving([(200, answer(None), 0)]) as double:
        failing(double, 20)
    costlier = [charge.cost_usd > COST for charge in ledger(tmp_path)]
    assert costlier == [True, False], (
        "the lost reply at its worst, the refused request at nothing, the empty one at cost"
    )
    assert total(ledger(tmp_path)[1:]) == COST
