"""The ledger: exact dollars that add up whatever the parts."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from orchestra.ledger import by_component, cost_of, total
from orchestra.types import Charge, Component, Price, Usage

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
charges = st.lists(st.builds(Charge, component=st.sampled_from(Component), name=st.just("x"), cost_usd=rates))


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


@given(prices, usages, st.integers(0, 100), st.floats(0, 1e5))
def test_a_cost_is_never_negative(price: Price, usage: Usage, calls: int, seconds: float) -> None:
    assert cost_of(price, usage, calls=calls, seconds=seconds) >= 0


@given(prices, usages, st.integers(1, 100))
def test_calls_add_up(price: Price, usage: Usage, calls: int) -> None:
    one = cost_of(price, usage, calls=calls)
    assert one - cost_of(price, usage, calls=0) == price.per_call * calls


@given(charges)
def test_the_parts_add_up_to_the_total_exactly(spent: list[Charge]) -> None:
    assert sum(by_component(spent).values(), Decimal(0)) == total(spent)
    assert set(by_component(spent)) == {charge.component for charge in spent}
