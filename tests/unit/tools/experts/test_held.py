"""While an expert's call waits before its first attempt, its worst case is not held from the run's cap."""

import asyncio
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.errors import BudgetError, ToolError
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.rate_limits import ProviderLimits, RateLimiter
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Charge, Component, Message, Price, ToolCall
from tests.support.endpoint import answer, serving
from tests.support.experts import expert, real
from tests.support.worlds import example, toolkit

CALLS = 6
SENT = 0.1
"""Seconds that a reply takes."""


def opened(kit: Toolkit) -> Any:
    return kit.tool("down")._chat._breaker  # type: ignore[attr-defined]


def session_of(kit: Toolkit) -> ToolSession:
    return ToolSession(kit, example(toolbox=[kit.catalogue.spec(name) for name in ("down", "up")]))


async def passes(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("fits", [True, False])
def test_what_waits_leaves_the_cap_to_others_and_never_crosses_it(
    fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cap has room for one call at a time. It is held again before an attempt, or the call is refused."""
    down = threading.Event()
    down.set()

    def reply(request: dict[str, Any]) -> Any:
        return (529, {}, 0) if request["model"] == "down" and down.is_set() else (200, answer(), SENT)

    async def whole(kit: Toolkit, budget: Budget, cap: Decimal) -> list[ToolOutcome | BaseException]:
        session = session_of(kit)
        with pytest.raises(ToolError):
            await session.call(ToolCall(name="down", arguments={}))
        tasks = [asyncio.ensure_future(session.call(ToolCall(name="down", arguments={}))) for _ in range(CALLS)]
        await passes(lambda: len(opened(kit)._waiting) == CALLS)
        assert budget._held == 0
        began = time.monotonic()
        assert (await session.call(ToolCall(name="up", arguments={}))).text == "Kelmar"
        assert time.monotonic() - began < 5
        if not fits:
            budget.book(Charge(component=Component.JUDGE, name="another", cost_usd=cap))
        down.clear()
        opened(kit)._until = 0.0
        opened(kit)._tell()
        try:
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await kit.aclose()

    with serving(reply) as double:
        limits = ProviderLimits(failures=1, attempts=1, open_s=60)
        entries = {"down": expert(deadline_s=3600), "up": expert(deadline_s=3600)}
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, **entries)
        cap = session_of(kit).worst_usd(ToolCall(name="down")) + Decimal("0.001")
        budget = Budget(tmp_path / "ledger.jsonl", cap)
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, None, budget, **entries)
        ended = asyncio.run(asyncio.wait_for(whole(kit, budget, cap), 30))
        asked = [request["model"] for request in double.asked]
    assert budget._held == 0 and double.most_at_once == 1, "no two attempts at once are held for"
    if fits:
        assert [one.text for one in ended if isinstance(one, ToolOutcome)] == ["Kelmar"] * CALLS
        assert asked == ["down", "up"] + ["down"] * CALLS and budget.spent_usd < cap
    else:
        assert [type(one) for one in ended] == [BudgetError] * CALLS and asked == ["down", "up"]


def test_what_was_sent_stays_held_while_the_call_waits_for_its_next_attempt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its lost attempt is not booked yet."""
    gone = threading.Event()

    def reply(request: dict[str, Any]) -> Any:
        gone.wait(10)
        return 0, None, 0

    async def whole(kit: Toolkit, budget: Budget) -> None:
        session = session_of(kit)
        worst = session.worst_usd(ToolCall(name="down", arguments={}))
        task = asyncio.ensure_future(session.call(ToolCall(name="down", arguments={})))
        await passes(lambda: double.asked)
        opened(kit).failed(False, "another's")
        gone.set()
        await passes(lambda: opened(kit)._waiting)
        assert budget._held == worst
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kit.aclose()

    with serving(reply) as double:
        budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
        limits = ProviderLimits(failures=1, attempts=2, open_s=60)
        entries = {"down": expert(deadline_s=3600), "up": expert()}
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, None, budget, **entries)
        asyncio.run(asyncio.wait_for(whole(kit, budget), 30))
    assert budget._held == 0


def test_calls_in_a_provider_s_queue_are_not_refused_for_what_others_hold(tmp_path: Path) -> None:
    """Two have a place. Three worst cases fit under the cap at first, and one at the end."""
    asked = Message(role="user", content="?")

    async def whole() -> list[Any]:
        provider = RateLimiter(ProviderLimits(concurrency=2))
        chat = Chat("judge", model="m", url=double.url, provider=provider)
        paid = PaidChat(chat, Price(output_per_million=Decimal(10)), budget, Component.JUDGE)
        try:
            return await asyncio.gather(*(paid.ask([asked], max_tokens=100) for _ in range(24)), return_exceptions=True)
        finally:
            await chat.aclose()

    with serving(lambda _: (200, answer(), 0.005)) as double:
        budget = Budget(tmp_path / "ledger.jsonl", Decimal("0.0031"))
        ended = asyncio.run(asyncio.wait_for(whole(), 30))
    assert [one for one in ended if isinstance(one, BaseException)] == []
    assert isinstance(ended[0][0], ChatReply) and budget._held == 0 and len(double.asked) == 24
