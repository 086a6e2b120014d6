"""Dollars for each solved request, and what experts charge against the catalogue's prices of the day."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

import numpy as np
import pytest

from monitoring.drift import LEVEL, MIN_EPISODES
from monitoring.spending import JUDGED_WINDOW, Judged, charged, cost_per_solved, price_drift
from orchestra.accounting.ledger import cost_of
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook, PriceRow
from orchestra.types import Charge, Component, Episode, Price, StopReason, Turn, Usage
from tests.support.worlds import ROOT

FILE = read_catalogue(ROOT / "data/catalogue/tools.yaml")
EXPERT = "gpt-5"
KEY = FILE.tools[EXPERT].price
DAY = date(2026, 1, 1)
USAGE = Usage(input_tokens=1000, cached_input_tokens=200, output_tokens=500)


def requests(seed: int, count: int = JUDGED_WINDOW, usd: float = 1.0, solved: float = 0.8) -> Judged:
    draw = np.random.default_rng(seed)
    return Judged((0.01 * usd * draw.lognormal(0, 1, count)).tolist(), (draw.random(count) < solved).tolist())


USUAL = requests(0, 1024)


def test_the_figure_is_dollars_over_solved() -> None:
    assert Judged([0.1, 0.2, 0.3], [True, False, True]).usd_per_solved == pytest.approx(0.3)
    assert Judged([0.1], [False]).usd_per_solved == float("inf")


def test_steady_traffic_raises_no_alarm() -> None:
    assert [seed for seed in range(1, 301) if cost_per_solved(USUAL, requests(seed)) is not None] == []


@pytest.mark.parametrize(
    ("usd", "solved"), [(2.0, 0.8), (1.0, 0.4), (1.5, 0.65)], ids=["dollars", "solved", "a little of both"]
)
def test_a_rise_is_found_whichever_side_moved(usd: float, solved: float) -> None:
    found = [cost_per_solved(USUAL, requests(seed, usd=usd, solved=solved)) for seed in range(20)]
    assert sum(signal is not None for signal in found) >= 19
    assert all(signal.p_value < LEVEL and signal.current > signal.reference for signal in found if signal)


def test_what_says_nothing_is_no_alarm() -> None:
    assert cost_per_solved(USUAL, requests(1, MIN_EPISODES - 1, usd=9)) is None
    assert cost_per_solved(requests(0, MIN_EPISODES - 1), requests(1, usd=9)) is None
    assert cost_per_solved(USUAL, requests(1, usd=0.3)) is None, "cheaper is no harm"
    assert cost_per_solved(requests(0, 1024, solved=0.0), requests(1, usd=9)) is None
    found = cost_per_solved(USUAL, requests(1, solved=0.0))
    assert found is not None and found.current == float("inf"), "nothing is solved any more"


def test_a_rise_that_is_too_small_to_matter_is_no_alarm_however_sure() -> None:
    spread = [0.01 * (1 + number % 7) for number in range(5000)]

    def judged(usd: float, right: int) -> Judged:
        return Judged([usd * one for one in spread], [number % 100 < right for number in range(5000)])

    assert (
        cost_per_solved(judged(1.0, 80), judged(1.19, 80)) is None is cost_per_solved(judged(1.0, 80), judged(1.0, 68))
    )
    for served in (judged(1.21, 80), judged(1.0, 66)):
        found = cost_per_solved(judged(1.0, 80), served)
        assert found is not None and found.reference == pytest.approx(0.05, rel=1e-3)
        assert found.current == pytest.approx(served.usd_per_solved)
    assert cost_per_solved(judged(0.0, 80), judged(1.0, 80)) is None, "nothing was spent at the evaluation"


def asked(*charges: Charge) -> Episode:
    turn = Turn(ids=(1,), text="", charges=charges)
    return Episode(example_id="e", policy="p", prompt_ids=(1,), turns=(turn,), stop=StopReason.ANSWERED, answer="x")


def book(*rows: tuple[str, str]) -> PriceBook:
    """Prices of the expert by day: dollars per million tokens read."""
    provider, _, model = KEY.partition("/")
    return PriceBook(
        [
            PriceRow(
                provider=provider,
                model=model,
                effective_from=date.fromisoformat(day),
                input=Decimal(usd),
                source="test",
            )
            for day, usd in rows
        ]
    )


def expert(usd: str) -> Charge:
    price = Price(input_per_million=Decimal(usd), output_per_million=Decimal(0))
    return Charge(component=Component.EXPERT, name=EXPERT, usage=USAGE, cost_usd=cost_of(price, USAGE), latency_s=3.0)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([("2025-01-01", "1.25")], False),
        ([("2025-01-01", "1.25"), ("2026-06-01", "9")], False),
        ([("2025-01-01", "1.25"), ("2025-12-31", "2.50")], True),
        ([("2025-01-01", "1.25"), ("2025-12-31", "1.255")], False),
        ([("2025-01-01", "1.25"), ("2025-12-31", "0")], True),
    ],
    ids=["as listed", "a later price", "it doubled", "it was rounded", "it became free"],
)
def test_charges_are_held_against_the_price_of_the_day(rows: Sequence[tuple[str, str]], told: bool) -> None:
    found = charged([asked(expert("1.25"), expert("1.25")), asked(expert("1.25"))], FILE, book(*rows), DAY)
    assert found[EXPERT].calls == 3 and found[EXPERT].moved is told
    lines = price_drift(found)
    assert bool(lines) is told and all(line.startswith(f"{EXPERT} charged 0.00375") for line in lines)


def test_what_has_no_price_and_what_is_no_expert_is_left_out() -> None:
    policy = Charge(component=Component.POLICY, name="policy", usage=USAGE, cost_usd=Decimal(1))
    stranger = expert("1.25").model_copy(update={"name": "stranger"})
    assert charged([asked(policy, stranger)], FILE, book(("2025-01-01", "1")), DAY) == {}
    assert charged([asked(expert("1.25"))], FILE, book(("2026-06-01", "1")), DAY) == {}
