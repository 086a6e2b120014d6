"""A past run under other prices: exact, and the same where nothing changed."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.accounting.ledger import cost_of
from orchestra.errors import ConfigError, DataError
from orchestra.evaluation.repricing import Repriced, Repricer, lines
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook, PriceRow
from orchestra.types import (
    Charge,
    Component,
    Episode,
    Example,
    Price,
    StopReason,
    ToolKind,
    ToolSpec,
    Turn,
    Usage,
    add_up,
)  # fmt: skip
from tests.support.worlds import ROOT, catalogue, example

FILE = read_catalogue(ROOT / "data/catalogue/tools.yaml")
BOOK = PriceBook.load(ROOT / "data/catalogue/prices.yaml")
RUN, LATER = date(2025, 11, 15), date(2026, 3, 1)
CUT = PriceRow(
    provider="openai",
    model="gpt-5",
    effective_from=date(2026, 1, 1),
    input=Decimal("0.5"),
    output=Decimal(4),
    source="x",
)
DOMAIN = ToolSpec(
    name="pay", tool="domain:shop/pay", kind=ToolKind.DOMAIN, description="", parameters={},
    price=catalogue().domain_price, call_usd=Decimal(0), latency_s=0.2,
)  # fmt: skip
TOOLS = ("calculator", "search", "python", "gpt-5", "qwen3-32b")


def item(factor: float = 1.0) -> Example:
    """gpt-5 is called Nestor here, and every price is multiplied."""
    specs = [catalogue().spec(name, price_factor=factor) for name in TOOLS]
    specs = [spec.model_copy(update={"name": "Nestor"}) if spec.tool == "gpt-5" else spec for spec in specs]
    return example("e1", toolbox=[*specs, DOMAIN])


def charge(spec: ToolSpec, usage: Usage = Usage(), seconds: float = 0.0) -> Charge:  # noqa: B008
    if spec.kind is ToolKind.DOMAIN:
        return Charge(component=Component.DOMAIN, name=spec.name, cost_usd=spec.price.per_call, latency_s=seconds)
    entry = FILE.tools[spec.tool]
    cost = cost_of(spec.price, usage, seconds=seconds)
    return Charge(component=entry.component, name=spec.name, usage=usage, cost_usd=cost, latency_s=seconds)


def policy(usage: Usage, price: Price) -> Charge:
    return Charge(component=Component.POLICY, name="policy", usage=usage, cost_usd=cost_of(price, usage))


def episode(*charges: Charge, name: str = "grpo", simulated: bool = True) -> Episode:
    turns = tuple(Turn(ids=(1,), text="", charges=(one,)) for one in charges)
    return Episode(
        example_id="e1", policy=name, prompt_ids=(1,), turns=turns, stop=StopReason.ANSWERED, simulated=simulated
    )


def reprice(*episodes: Episode, to: date = LATER, of: Example | None = None) -> Repriced:
    book = PriceBook([*BOOK.every(), CUT])
    return Repricer(FILE, book, RUN, to).run(episodes, {"e1": of or item()})


tokens = st.builds(
    Usage, input_tokens=st.integers(0, 10**6), cached_input_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(1, 10**5),
)  # fmt: skip
calls = st.one_of(
    st.builds(lambda usage: policy(usage, catalogue().policy_price), tokens),
    st.builds(lambda usage: policy(usage, Price()), tokens),
    st.builds(lambda index, usage: charge(item().toolbox[index], usage), st.integers(3, 4), tokens),
    st.builds(lambda seconds: charge(item().toolbox[2], seconds=seconds), st.floats(0, 60)),
    st.builds(lambda index: charge(item().toolbox[index], seconds=0.5), st.sampled_from([0, 1, 5])),
)


@settings(max_examples=40)
@given(st.lists(st.lists(calls, max_size=6), max_size=4))
def test_the_same_day_costs_what_was_recorded_and_parts_add_up(runs: list[list[Charge]]) -> None:
    episodes = [episode(*spent, name=f"p{index % 2}") for index, spent in enumerate(runs)]
    same, later = reprice(*episodes, to=RUN), reprice(*episodes)
    recorded = add_up(one.cost_usd for one in episodes)
    assert same.total.recorded_usd == same.total.before_usd == same.total.after_usd == recorded
    assert same.unexplained == later.unexplained == 0 and not same.kept
    for done in (same, later):
        for group in (done.components, done.policies):
            for figure in ("recorded_usd", "before_usd", "after_usd"):
                assert add_up(getattr(costs, figure) for costs in group.values()) == getattr(done.total, figure)
            assert sum(costs.calls for costs in group.values()) == done.total.calls == sum(map(len, runs))


def test_only_what_changed_its_price_costs_otherwise_under_its_own_name_or_another() -> None:
    usage = Usage(input_tokens=400, cached_input_tokens=100, output_tokens=6000)
    done = reprice(episode(charge(item().toolbox[3], usage), charge(item().toolbox[4], usage)))
    expert = done.components[Component.EXPERT]
    gpt = (300 * Decimal("1.25") + 100 * Decimal("0.125") + 60000) / 10**6
    assert expert.before_usd - expert.after_usd == gpt - (400 * Decimal("0.5") + 24000) / 10**6
    assert "component" not in lines(done)[0] and "simulated experts" in lines(done)[0]
    assert any(line.startswith("expert ") and line.endswith("%") for line in lines(done))


def test_prices_that_an_example_drew_are_recorded_and_lists_stand_beside_them() -> None:
    drawn, usage = item(2.0), Usage(output_tokens=1000)
    done = reprice(episode(charge(drawn.toolbox[3], usage)), of=drawn)
    assert (done.total.recorded_usd, done.total.before_usd, done.total.after_usd) == (
        Decimal("0.02"), Decimal("0.01"), Decimal("0.004"),
    )  # fmt: skip


def test_a_prompted_policy_has_the_price_of_its_own_model() -> None:
    usage = Usage(input_tokens=10_000, output_tokens=2_000)
    done = reprice(episode(policy(usage, catalogue().prices["gpt-5"]), name="chat:gpt-5"))
    assert done.total.before_usd == done.total.recorded_usd == Decimal("0.0325")
    assert done.total.after_usd == Decimal("0.013") and not done.kept
    unknown = reprice(episode(policy(usage, catalogue().prices["gpt-5"]), name="chat:my-model"))
    assert unknown.total.after_usd == Decimal("0.0325") and unknown.kept == {"policy": 1}


def test_what_was_free_stays_free_and_what_has_no_price_is_kept_and_said() -> None:
    usage = Usage(input_tokens=10, output_tokens=10)
    user = Charge(component=Component.USER, name="some-model", usage=usage, cost_usd=Decimal("0.5"))
    replayed = charge(item().toolbox[3], usage).model_copy(update={"cost_usd": Decimal(0)})
    done = reprice(episode(policy(usage, Price()), replayed, user, name="always_cheapest"))
    assert done.total.before_usd == done.total.after_usd == Decimal("0.5") and done.kept == {"some-model": 1}
    assert any("some-model as recorded" in line for line in lines(done))


def test_another_run_s_examples_are_noticed() -> None:
    spent = charge(item().toolbox[3], Usage(output_tokens=1000))
    done = reprice(episode(spent), of=item(1.3))
    assert done.unexplained == 1 and "warning: 1 calls" in lines(done)[-1]
    with pytest.raises(DataError, match="no example e1"):
        Repricer(FILE, BOOK, RUN, LATER).run([episode(spent)], {})


def test_before_the_first_price_there_is_none() -> None:
    with pytest.raises(ConfigError, match="no price for openai/gpt-5 on 2025-01-02"):
        reprice(episode(charge(item().toolbox[3], Usage(output_tokens=1))), to=date(2025, 1, 2))
