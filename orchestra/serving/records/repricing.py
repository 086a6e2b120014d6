"""What served requests would have cost on another day, by tool and model: `orchestra reprice .state/traces`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from orchestra.accounting.ledger import at_price
from orchestra.config.schema import load_params
from orchestra.errors import DataError
from orchestra.evaluation.repricing import Costs
from orchestra.serving.records.traces import records, trace_files
from orchestra.text import aligned
from orchestra.tools.catalogue.catalogue import CatalogueFile, read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.types import Charge, Component, Episode, Price, Record


class RepricedTraces(Record):
    """The costs of served requests; `tools` add up to `total` exactly."""

    price_date: date
    as_of: date
    requests: int = 0
    failed: int = 0
    """Requests whose traces hold no charges: they ended with an error."""
    simulated: bool = False
    total: Costs = Costs()
    tools: dict[str, Costs] = Field(default_factory=dict)
    """By tool, expert and `policy`, the served model."""
    kept: dict[str, int] = Field(default_factory=dict)
    """Calls whose cost stands as charged, by whom: the catalogue knows no price of theirs."""

    @property
    def lines(self) -> list[str]:
        """A table for a person."""
        simulated = ", simulated experts" if self.simulated else ""
        rows: list[tuple[str, ...]] = [
            ("", "calls", "charged", f"list {self.price_date}", f"list {self.as_of}", "change")
        ]
        rows += [_row(name, costs) for name, costs in sorted(self.tools.items())]
        rows.append(_row("total", self.total))
        text = [f"{self.requests} served requests{simulated}; US dollars", *aligned(rows, numbers=True)]
        text += [f"{n} calls of {name} as charged: the catalogue knows no price of it" for name, n in self.kept.items()]
        if self.failed:
            text.append(f"{self.failed} requests that ended with an error are left out: their traces hold no charges")
        return text


def are_traces(path: Path) -> bool:
    """Whether a path is the gateway's folder of traces, or a file of it."""
    if path.is_dir():
        return not (path / "episodes.jsonl").exists() and any(map(are_traces, trace_files(path)))
    return "trace_id" in next(records(path), {})


def repriced_traces(
    root: Path, path: Path, day: date, version: str | None, *, as_json: bool, say: Callable[[str], object] = str
) -> str:
    """The costs of the requests in that folder or file, judged or not, as a table or as JSON.

    `version`: only what this one answered; `say` is told how far it is. Raises `DataError` where there is none.
    """
    world = load_params(root / "params.yaml").world
    file, book = read_catalogue(root / world.catalogue), PriceBook.load(root / world.prices)
    then, versions = date.fromisoformat(world.price_date), set[str]()
    requests, failed, simulated, total = 0, 0, False, Costs()
    tools, kept = dict[str, Costs](), dict[str, int]()
    for record in _told(trace_files(path) if path.is_dir() else [path], say):
        versions.add(str(record.get("version")))
        if version not in (None, record.get("version")):
            continue
        episode = _episode(record)
        if episode is None:
            failed += 1
            continue
        requests, simulated = requests + 1, simulated or episode.simulated
        for charge in episode.charges:
            key = _price_key(file, charge)
            if key is None:
                kept[charge.name] = kept.get(charge.name, 0) + 1
            costs = _costs(charge, None if key is None else (book.at(key, then), book.at(key, day)))
            total += costs
            tools[charge.name] = tools.get(charge.name, Costs()) + costs
    if version is not None and version not in versions:
        fix = f"one of: {', '.join(sorted(versions))}"
        raise DataError(f"version {version} answered nothing", where=str(path), fix=fix)
    done = RepricedTraces(
        price_date=then,
        as_of=day,
        requests=requests,
        failed=failed,
        simulated=simulated,
        total=total,
        tools=tools,
        kept=kept,
    )
    return done.model_dump_json(indent=2) if as_json else "\n".join(done.lines)


def _told(files: Sequence[Path], say: Callable[[str], object]) -> Iterator[dict[str, Any]]:
    """Every record of the files, with a word before each file."""
    for number, file in enumerate(files):
        say(f"reprice: {number}/{len(files)} files ({100 * number // len(files)}%)")
        yield from records(file)


def _episode(record: dict[str, Any]) -> Episode | None:
    try:
        return Episode.model_validate(record.get("episode"))
    except ValidationError:
        return None


def _price_key(file: CatalogueFile, charge: Charge) -> str | None:
    if charge.component is Component.POLICY:
        return file.policy_price
    if charge.component is Component.DOMAIN:
        return file.domain_tool.price
    entry = file.tools.get(charge.name)
    return None if entry is None else entry.price


def _costs(charge: Charge, prices: tuple[Price, Price] | None) -> Costs:
    """`prices`: those of the price date and of the day asked for; None: as charged."""
    cost = charge.cost_usd
    if prices is None:
        return Costs(calls=1, recorded_usd=cost, before_usd=cost, after_usd=cost)
    before, after = prices
    if not cost and at_price(charge, before):
        # Free in spite of its price, as a replayed reply is: free on any day.
        return Costs(calls=1)
    then, now = (at_price(charge, price, before) for price in (before, after))
    return Costs(calls=1, recorded_usd=cost, before_usd=then, after_usd=now)


def _row(name: str, costs: Costs) -> tuple[str, ...]:
    dollars = (f"{value:.4f}" for value in (costs.recorded_usd, costs.before_usd, costs.after_usd))
    change = costs.after_usd / costs.before_usd - 1 if costs.before_usd else None
    return (name, str(costs.calls), *dollars, "" if change is None else f"{change:+.1%}")
