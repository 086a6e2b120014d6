"""Real experts for tests: catalogue entries behind a local double."""

from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.tools.replay.cassette import Cassette
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, ToolKind, Usage
from tests.support.endpoint import Double
from tests.support.worlds import ROOT, catalogue

URL_ENV, KEY_ENV = "TEST_REAL_URL", "TEST_REAL_KEY"
KEY = "sk-real-0123456789"


def expert(**changes: Any) -> Entry:
    """An entry that needs the double's address and a key; its model is named like the entry when `real` adds it."""
    settings: dict[str, Any] = {
        "kind": ToolKind.EXPERT,
        "role": "generalist",
        "component": Component.EXPERT,
        "description": "a real one",
        "parameters": catalogue().entry("gpt-5").parameters,
        "price": "together/qwen3-32b",
        "latency_s": 1.0,
        "usage": Usage(input_tokens=100, output_tokens=50),
        "implementation": "openai",
        "base_url_env": URL_ENV,
        "api_key_env": KEY_ENV,
        "endpoint_model": "m",
        "max_output_tokens": 500,
        "deadline_s": 20.0,
        "source": "tests",
    }
    return Entry.model_validate(settings | changes)


def real(
    monkeypatch: pytest.MonkeyPatch,
    kit: Toolkit,
    double: Double | None,
    limits: ProviderLimits | None = None,
    cassette: Cassette | None = None,
    budget: Budget | None = None,
    /,
    **experts: Entry,
) -> Toolkit:
    """The toolkit with these experts besides, asked at the double; None: there is none, nor a key."""
    for name, value in ((URL_ENV, double.url if double is not None else None), (KEY_ENV, KEY if double else None)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    named = {name: entry.model_copy(update={"endpoint_model": name}) for name, entry in experts.items()}
    prices = {name: _book().at(entry.price, date(2025, 11, 15)) for name, entry in named.items()}
    shipped = kit.catalogue
    providers = {} if limits is None else {entry.vendor: limits for entry in named.values()}
    made = replace(shipped, entries=shipped.entries | named, prices=shipped.prices | prices, providers=providers)
    return Toolkit(made, kit.domain_folders, kit.data_dir, cassette=cassette, budget=budget)


@lru_cache
def _book() -> PriceBook:
    return PriceBook.load(ROOT / "data/catalogue/prices.yaml")
