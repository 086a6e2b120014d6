"""Facts that request a retraining: drift, changed or stale prices, retired models, new data."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date

from monitoring.drift import Signal
from orchestra.system.retraining import RetrainReason
from orchestra.tools.catalogue.catalogue import CatalogueFile
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.catalogue.price_check import PriceIssue, price_keys, retired, stale_prices
from orchestra.types import Price

CHANGED = re.compile(r"^(data/.+) (modified|new|deleted|not there)$")
"""How DVC says that a file of data differs from what a stage read last."""
UNDATED = re.compile(r"\d+ days before \d{4}-\d\d-\d\d")


def of_drift(signals: Sequence[Signal], serving: str) -> list[RetrainReason]:
    """One for each signal, while the version of fingerprint `serving` serves."""
    return [RetrainReason("drift", f"{one.name}\0{serving}", str(one), serving=serving) for one in signals]


def of_prices(file: CatalogueFile, book: PriceBook, trained: date, today: date, days: int) -> list[RetrainReason]:
    """Prices in use that changed since `trained`, the day whose prices hold; and those that nobody checked for long."""
    found = []
    rows = {key: row for key in sorted(set(price_keys(file).values())) if (row := book.row(key, today)) is not None}
    # From that day every price is today's. Not today itself: a retried run goes on under the same parameters.
    day = max((row.effective_from for row in rows.values()), default=today)
    for key, now in rows.items():
        then, since = book.row(key, trained), now.effective_from
        if then is not None and then.price != now.price:
            what = f"{key} since {since}: {_difference(then.price, now.price)} (prices in force: {trained})"
            found.append(RetrainReason("price", f"{key}@{since}", what, assignments=(f'world.price_date="{day}"',)))
    return [*found, *_stale(list(stale_prices(file, book, today, days)))]


def _stale(issues: Sequence[PriceIssue]) -> list[RetrainReason]:
    """One request for all stale prices: a person looks them up together."""
    if not issues:
        return []
    more = f", and so {len(issues) - 1} more" if len(issues) > 1 else ""
    # Without their ages, which are others each day.
    key = "\n".join(UNDATED.sub("", issue.what) for issue in issues)
    needs = "compare them with their sources (orchestra prices check); add rows, or set `checked`"
    return [RetrainReason("price", f"stale:{key}", issues[0].what + more, needs)]


def of_models(file: CatalogueFile, today: date) -> list[RetrainReason]:
    """Models that their provider serves no more; a person chooses what takes their place."""
    return [RetrainReason("model", issue.what, issue.what, issue.fix) for issue in retired(file, today)]


def of_data(
    stale: Mapping[str, Sequence[str]], made: Collection[str], digest: Callable[[str], str]
) -> list[RetrainReason]:
    """Files below data/ that differ from what the stages read last, but those that stages `made`.

    `stale`: DVC's reasons by stage; `digest`: tells one state of a path from another.
    """
    paths = {match[1]: match[2] for why in stale.values() for one in why if (match := CHANGED.match(one))}
    return [
        RetrainReason("data", f"{path}@{digest(path)}", f"{path} {how}")
        for path, how in sorted(paths.items())
        if path not in made
    ]


def _difference(then: Price, now: Price) -> str:
    """The fields that differ, in dollars."""
    return ", ".join(f"{name} {old} → {new} USD" for name, old, new in _fields(then, now))


def _fields(then: Price, now: Price) -> Iterator[tuple[str, object, object]]:
    for name in Price.model_fields:
        old, new = getattr(then, name), getattr(now, name)
        if old != new:
            yield name.replace("_", " "), old, new
