"""The ledger: exact dollars that add up whatever the parts."""

import asyncio
import random
import tempfile
import threading
from contextlib import AbstractContextManager
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import Spending, at_price, by_component, cost_of, parts, phase, total
from orchestra.errors import BudgetError
from orchestra.files.jsonl import read_jsonl
from orchestra.types import Charge, Component, Price, Usage, add_up
from tests.support.full_disk import no_larger_than

rates = st.decimals(min_value=0, max_value=1000, places=6)
prices = st.builds(
    Price,
    input_per_million=rates,
    cached_input_per_million=st.none() | rates,
    output_per_million=rates,
    per_call=rates,
    per_second=rates,
)
counts = st.integers(0, 10**7)
usages = st.builds(Usage, input_tokens=counts, cached_input_tokens=counts, output_tokens=counts)
dollars = st.decimals(min_value=0, max_value=10**15, allow_nan=False, allow_infinity=False, places=30) | rates
seconds = st.floats(0, 1e6)
charges = st.lists(
    st.builds(
        Charge, component=st.sampled_from(Component), name=st.just("x"), cost_usd=dollars, usage=usages,
        latency_s=seconds, simulated=st.booleans(),
    ),
    max_size=8,
)  # fmt: skip
phased = st.lists(st.tuples(st.sampled_from(["", "train", "watch"]), charges), max_size=3)


def test_a_worked_example() -> None:
    price = Price(
        input_per_million=Decimal("2"), cached_input_per_million=Decimal("0.5"), output_per_million=Decimal("10"),
        per_call=Decimal("0.01"), per_second=Decimal("0.001"),
    )  # fmt: skip
    usage = Usage(input_tokens=1000, cached_input_tokens=400, output_tokens=100)
    # 600 fresh at 2, 400 cached at 0.5, 100 written at 10, per million; one call; 2.5 s.
    assert cost_of(price, usage, seconds=2.5) == Decimal("0.0012") + Decimal("0.0002") + Decimal("0.001") + Decimal(
        "0.0125"
    )


def test_cached_tokens_cost_as_fresh_ones_without_a_price_of_their_own() -> None:
    price = Price(input_per_million=Decimal("3"))
    fresh, cached = Usage(input_tokens=10), Usage(input_tokens=10, cached_input_tokens=10)
    assert cost_of(price, fresh) == cost_of(price, cached)


def test_more_cached_than_input_tokens_cannot_make_a_refund() -> None:
    price = Price(input_per_million=Decimal("3"), cached_input_per_million=Decimal("1"))
    assert cost_of(price, Usage(input_tokens=5, cached_input_tokens=50)) == cost_of(
        price, Usage(input_tokens=5, cached_input_tokens=5)
    )


def test_under_another_price_a_call_that_the_tool_refused_costs_a_call_alone() -> None:
    """Its seconds are noted, and were charged to nobody."""
    drawn, other = (Price(per_call=Decimal(usd), per_second=Decimal(usd)) for usd in ("0.01", "0.02"))
    refused = Charge(component=Component.EXPERT, name="x", cost_usd=drawn.per_call, latency_s=3.0)
    assert at_price(refused, other, drawn) == Decimal("0.02")
    ran, wrote = {"cost_usd": Decimal("0.04")}, {"usage": Usage(output_tokens=1)}
    for worked in (refused.model_copy(update=ran), refused.model_copy(update=wrote)):
        assert at_price(worked, other, drawn) == Decimal("0.08")
    assert at_price(refused, other) == Decimal("0.08"), "at which price it was drawn is not known"


def test_under_a_first_price_per_second_a_call_that_worked_costs_its_seconds() -> None:
    """Its dollars are those of a refused one."""
    worked = Charge(component=Component.SANDBOX, name="python", cost_usd=Decimal("0.001"), latency_s=5.0)
    assert at_price(worked, Price(per_second=Decimal("0.01")), Price(per_call=Decimal("0.001"))) == Decimal("0.05")


@given(prices, usages, st.integers(0, 100), st.floats(0, 1e5))
def test_a_cost_is_never_negative(price: Price, usage: Usage, calls: int, seconds: float) -> None:
    assert cost_of(price, usage, calls=calls, seconds=seconds) >= 0


@given(prices, usages, st.integers(1, 100))
def test_calls_add_up(price: Price, usage: Usage, calls: int) -> None:
    one = cost_of(price, usage, calls=calls)
    assert one - cost_of(price, usage, calls=0) == price.per_call * calls
    assert cost_of(price, Usage()) == price.per_call


@given(charges)
def test_the_parts_add_up_to_the_total_exactly(spent: list[Charge]) -> None:
    """In rational arithmetic, where nothing is ever rounded; Python's own 28 digits would not do."""
    exact = sum((Fraction(charge.cost_usd) for charge in spent), Fraction(0))
    assert Fraction(total(spent)) == exact
    assert Fraction(add_up(by_component(spent).values())) == exact
    assert set(by_component(spent)) == {charge.component for charge in spent}
    shuffled = random.Random(len(spent)).sample(spent, len(spent))
    assert total(shuffled) == total(spent)


@given(prices, usages, st.floats(0, 1e5))
def test_a_cost_is_exact(price: Price, usage: Usage, ran_s: float) -> None:
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    rate = price.input_per_million if price.cached_input_per_million is None else price.cached_input_per_million
    tokens = Fraction(price.input_per_million) * (usage.input_tokens - cached) + Fraction(rate) * cached
    tokens += Fraction(price.output_per_million) * usage.output_tokens
    exact = tokens / 10**6 + Fraction(price.per_call) + Fraction(price.per_second) * Fraction(str(round(ran_s, 6)))
    assert Fraction(cost_of(price, usage, seconds=ran_s)) == exact


def microseconds(charge: Charge) -> Fraction:
    return Fraction(str(round(charge.latency_s, 6)))


@settings(max_examples=40)
@given(phased, st.sampled_from(["", "grpo"]))
def test_every_way_to_group_a_ledger_makes_the_same_total_and_so_does_the_file(
    spent: list[tuple[str, list[Charge]]], root: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        budget = Budget(path, None, root)
        for name, some in spent:
            with phase(name):
                for charge in some:
                    budget.book(charge)
        budget.close()
        every = [charge for _, some in spent for charge in some]
        whole = sum((Spending.of(charge) for charge in every), Spending())
        assert sum(budget.by_component().values(), Spending()) == sum(budget.by_phase().values(), Spending()) == whole
        assert whole.cost_usd == budget.spent_usd == total(every)
        assert Fraction(whole.seconds) == sum(map(microseconds, every), Fraction(0))
        names = {"/".join(filter(None, (root, name))) for name, some in spent if some}
        assert set(budget.by_phase()) == names
        assert whole.simulated == sum(c.simulated for c in every)
        assert whole.cache_hits == sum(c.usage.cached_input_tokens > 0 for c in every)
        assert whole.calls == len(every) and whole.input_tokens == sum(c.usage.input_tokens for c in every)
        again = Budget(path, None)
        assert (again.by_component(), again.by_phase()) == (budget.by_component(), budget.by_phase())
        if path.exists():
            booked = read_jsonl(path, Charge)
            assert [c.model_copy(update={"phase": ""}) for c in booked] == every
            assert parts(booked, lambda c: c.phase) == budget.by_phase()


@settings(max_examples=40)
@given(st.lists(st.tuples(rates, st.booleans()), max_size=12), rates)
def test_what_is_booked_never_crosses_the_cap_though_calls_overlap(
    calls: list[tuple[Decimal, bool]], cap: Decimal
) -> None:
    """Every call costs at most what was held for it; those that are still under way count at their worst."""
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(Path(folder) / "ledger.jsonl", cap)
        under_way: list[tuple[AbstractContextManager[None], Decimal]] = []
        for worst, ends in calls:
            hold = budget.hold(worst)
            try:
                hold.__enter__()
            except BudgetError:
                assert add_up([budget.spent_usd, *(held for _, held in under_way), worst]) > cap
                continue
            under_way.append((hold, worst))
            if ends:
                first, held = under_way.pop(0)
                budget.book(Charge(component=Component.EXPERT, name="x", cost_usd=held))
                first.__exit__(None, None, None)
        for last, held in under_way:
            budget.book(Charge(component=Component.EXPERT, name="x", cost_usd=held))
            last.__exit__(None, None, None)
        assert budget.spent_usd <= cap
        budget.check(cap - budget.spent_usd)
        budget.close()


def test_phases_nest_under_the_root_and_end_with_their_block(tmp_path: Path) -> None:
    budget, charge = Budget(tmp_path / "l.jsonl", None, "grpo"), Charge(component=Component.POLICY, name="policy")
    budget.book(charge)
    with phase("watch"), phase("tiny"):
        budget.book(charge)
    budget.book(charge)
    assert {name: part.calls for name, part in budget.by_phase().items()} == {"grpo": 2, "grpo/watch/tiny": 1}
    assert budget.summary() == "0.0000 USD (policy 0.0000 in 3 calls)"


def test_a_refusal_says_what_is_spent_held_and_asked_for(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "l.jsonl", Decimal("1"))
    budget.book(Charge(component=Component.EXPERT, name="x", cost_usd=Decimal("0.5")))
    with budget.hold(Decimal("0.4")), pytest.raises(BudgetError, match=r"0\.5 of 1 USD are spent, 0\.4 held .* 0\.2"):
        budget.check(Decimal("0.2"))
    budget.check(Decimal("0.5"))


def test_a_call_waits_while_only_what_is_held_stands_in_its_way(tmp_path: Path) -> None:
    async def call(budget: Budget, cost: str) -> None:
        await budget.room(Decimal("0.5"))
        with budget.hold(Decimal("0.5")):
            await asyncio.sleep(0.001)
            budget.book(Charge(component=Component.EXPERT, name="x", cost_usd=Decimal(cost)))

    async def together(budget: Budget, cost: str, count: int) -> list[BaseException | None]:
        return await asyncio.gather(*(call(budget, cost) for _ in range(count)), return_exceptions=True)

    cheap = Budget(tmp_path / "cheap.jsonl", Decimal("1.2"))
    assert asyncio.run(together(cheap, "0.1", 8)) == [None] * 8  # two at a time
    assert cheap.spent_usd == Decimal("0.8")
    dear = Budget(tmp_path / "dear.jsonl", Decimal("1.2"))
    refused = asyncio.run(together(dear, "0.5", 8))
    assert refused.count(None) == 2 and sum(isinstance(one, BudgetError) for one in refused) == 6


def test_threads_keep_to_one_cap_and_wake_each_other(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "l.jsonl", Decimal("1"))
    charge = Charge(component=Component.USER, name="u", cost_usd=Decimal("0.001"))
    held, woken = threading.Event(), threading.Event()

    def wait() -> None:
        held.wait(5)
        asyncio.run(asyncio.wait_for(budget.room(Decimal("0.5")), 5))
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    with budget.hold(Decimal("0.9")):
        held.set()
        assert not woken.wait(0.2)
    assert woken.wait(2), "nothing else wakes its loop"
    waiting.join()

    def book() -> None:
        for _ in range(50):
            with budget.hold(charge.cost_usd):
                budget.book(charge)

    threads = [threading.Thread(target=book) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    budget.close()
    assert budget.spent_usd == total(read_jsonl(tmp_path / "l.jsonl", Charge)) == Decimal("0.4")
    with budget.hold(Decimal("0.6")):
        pass


def test_a_budget_within_another_keeps_both_caps_and_is_booked_in_both(tmp_path: Path) -> None:
    run = Budget(tmp_path / "run.jsonl", Decimal("1.2"), "synthesize")
    version = Budget(tmp_path / "version.jsonl", Decimal(2), within=run)

    async def call(budget: Budget) -> None:
        await budget.room(Decimal("0.5"))
        with budget.hold(Decimal("0.5")):
            await asyncio.sleep(0.001)
            budget.book(Charge(component=Component.EXPERT, name="x", cost_usd=Decimal("0.1")))

    async def together() -> list[BaseException | None]:
        return await asyncio.gather(*(call(version) for _ in range(12)), return_exceptions=True)

    ended = asyncio.run(together())
    assert ended.count(None) == 8 and sum(isinstance(one, BudgetError) for one in ended) == 4
    assert run.spent_usd == version.spent_usd == Decimal("0.8") and run.by_phase().keys() == {"synthesize"}
    with pytest.raises(BudgetError, match=r"run\.jsonl: 0\.8 of 1\.2 USD"), version.hold(Decimal("0.5")):
        pass
    version.check(Decimal("1.2"))  # A refusal leaves nothing held.


def test_a_full_disk_leaves_a_ledger_that_goes_on(tmp_path: Path) -> None:
    file, other = tmp_path / "ledger.jsonl", tmp_path / "other.jsonl"
    charge = Charge(component=Component.EXPERT, name="x", cost_usd=Decimal("0.5"))
    budget = Budget(file, None)
    budget.book(charge)
    with no_larger_than(file.stat().st_size + 50):
        with pytest.raises(OSError, match="File too large"):
            budget.book(charge)
        with pytest.raises(OSError, match="File too large"):
            budget.close()
    assert not file.read_text().endswith("\n"), "half a line"
    other.write_text(file.read_text())
    again = Budget(file, None, others=[other])
    assert again.spent_usd == 1
    again.book(charge)
    again.close()
    assert Budget(file, None).spent_usd == 1 and len(read_jsonl(file, Charge)) == 2
