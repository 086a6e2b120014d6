"""What counting costs: booking a call, pricing it, and re-pricing a past run. `python -m benchmarks.tools_prices`."""

import tempfile
import time
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path

from benchmarks.command import Row, run_benchmark, show
from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import cost_of
from orchestra.evaluation.repricing import Repricer
from orchestra.tools.catalogue.catalogue import Catalogue, read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.types import (
    Category,
    Charge,
    Component,
    Episode,
    Example,
    Preference,
    Provenance,
    StopReason,
    Turn,
    Usage,
    Verifier,
)

ROOT = Path(__file__).parents[1]
TOOLS, PRICES, DAY = ROOT / "data/catalogue/tools.yaml", ROOT / "data/catalogue/prices.yaml", "2025-11-15"


def each_us(work: Callable[[int], object], count: int) -> float:
    """Microseconds of one of `count` calls, in processor time: other work on the machine does not count."""
    began = time.process_time()
    for number in range(count):
        work(number)
    return (time.process_time() - began) / count * 1e6


def rows() -> list[Row]:
    """The three of them, each with its bar."""
    spec = Catalogue.load(TOOLS, PRICES, DAY).spec("gpt-5")
    usage = Usage(input_tokens=400, cached_input_tokens=100, output_tokens=6150)
    cost = cost_of(spec.price, usage)
    charge = Charge(component=Component.EXPERT, name="gpt-5", usage=usage, cost_usd=cost, latency_s=96.0)
    priced = each_us(lambda number: cost_of(spec.price, usage, seconds=number / 7), 20_000)
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(Path(folder) / "ledger.jsonl", Decimal(10**9))

        def booked(_: int) -> None:
            with budget.hold(cost):
                budget.book(charge)

        booking = each_us(booked, 20_000)
        budget.close()
    item = Example(
        id="e",
        kind="question",
        category=Category.TOPIC,
        instruction="?",
        toolbox=(spec,),
        preference=Preference(kind="neutral", words="", outcome=1, compute=0.3, latency=0.1),
        verifier=Verifier(kind="exact", answer="x"),
        provenance=Provenance(source="benchmark", licence="Apache-2.0", generator="benchmarks", seed=0),
    )
    turn = Turn(ids=(1,), text="", charges=(charge,))
    run = Episode(example_id="e", policy="p", prompt_ids=(1,), turns=(turn,) * 4, stop=StopReason.ANSWERED)
    repricer = Repricer(read_catalogue(TOOLS), PriceBook.load(PRICES), date.fromisoformat(DAY), date(2026, 1, 1))
    began = time.process_time()
    repricer.run([run] * 2000, {"e": item})
    repriced = 2000 / (time.process_time() - began)
    return [
        Row("ledger: hold, book and write one call", f"{booking:.0f} µs of processor time", "≤ 100 µs", booking <= 100),
        Row("ledger: price one call exactly", f"{priced:.1f} µs of processor time", "≤ 20 µs", priced <= 20),
        Row("reprice: episodes of four calls a second", f"{repriced:,.0f}", "≥ 1,000", repriced >= 1000),
    ]


if __name__ == "__main__":
    run_benchmark(partial(show, __doc__, rows))
