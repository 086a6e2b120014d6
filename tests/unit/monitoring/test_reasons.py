"""What asks for a retraining: a changed or stale price, a retired model, new data, drift."""

from datetime import date, timedelta
from decimal import Decimal
from random import Random

import pytest

from monitoring.drift import Signal
from monitoring.reasons import of_data, of_drift, of_models, of_prices
from orchestra.config.overrides import effective
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.catalogue.price_check import price_keys
from tests.support.generated import seeds
from tests.support.worlds import ROOT

FILE = read_catalogue(ROOT / "data/catalogue/tools.yaml")
BOOK = PriceBook.load(ROOT / "data/catalogue/prices.yaml")
TRAINED, TODAY = date(2025, 11, 15), date(2025, 12, 1)
NEVER = 100_000


def book(usd: str, since: date) -> PriceBook:
    row = BOOK.row("openai/gpt-5", TRAINED)
    assert row is not None
    raised = row.model_copy(update={"output": Decimal(usd), "effective_from": since, "checked": None})
    return PriceBook([*BOOK.every(), raised])


def test_a_price_that_changed_asks_with_the_day_from_which_it_holds() -> None:
    assert of_prices(FILE, BOOK, TRAINED, TODAY, NEVER) == []
    (found,) = of_prices(FILE, book("20", date(2025, 11, 20)), TRAINED, TODAY, NEVER)
    assert "openai/gpt-5 since 2025-11-20: output per million 10 → 20 USD" in found.what and not found.needs
    # The assignment is one that params.yaml takes.
    assert effective(ROOT / "params.yaml", found.assignments).world.price_date == "2025-11-20"


def test_a_price_that_is_the_same_or_comes_later_does_not_ask() -> None:
    assert of_prices(FILE, book("10", date(2025, 11, 20)), TRAINED, TODAY, NEVER) == []
    assert of_prices(FILE, book("20", date(2025, 12, 2)), TRAINED, TODAY, NEVER) == []


def test_a_price_that_the_training_did_not_have_does_not_ask() -> None:
    later = PriceBook([one for one in BOOK.every() if (one.provider, one.model) != ("openai", "gpt-5")])
    row = BOOK.row("openai/gpt-5", TRAINED)
    assert row is not None
    later = PriceBook([*later.every(), row.model_copy(update={"effective_from": date(2025, 11, 20)})])
    assert of_prices(FILE, later, TRAINED, TODAY, NEVER) == []


@pytest.mark.parametrize("seed", seeds(200, quick=20))
def test_changed_prices_ask_for_a_day_whose_prices_are_todays(seed: int) -> None:
    random = Random(seed)
    keys = random.sample(sorted(set(price_keys(FILE).values())), 3)
    # One price changes and comes back; two others change.
    changes = zip((keys[0], *keys), (1, 0, 2, 3), random.sample(range(1, 40), 4), strict=True)
    rows = []
    for key, more, days in changes:
        before = BOOK.row(key, TRAINED)
        assert before is not None
        since = TRAINED + timedelta(days=days)
        rows.append(before.model_copy(update={"output": before.output + more, "effective_from": since}))
    moved = PriceBook([*(one for one in BOOK.every() if one.effective_from <= TRAINED), *rows])
    today = TRAINED + timedelta(days=random.randint(1, 40))
    for one in of_prices(FILE, moved, TRAINED, today, NEVER):
        day = date.fromisoformat(one.assignments[0].partition("=")[2].strip('"'))
        assert day <= today and of_prices(FILE, moved, day, today, NEVER) == []


def test_stale_prices_wait_for_a_person_as_one_fact_on_every_day() -> None:
    (found,) = of_prices(FILE, BOOK, TRAINED, TODAY, 200)
    assert "days before 2025-12-01" in found.what and " more" in found.what and "orchestra prices check" in found.needs
    (later,) = of_prices(FILE, BOOK, TRAINED, date(2025, 12, 2), 200)
    assert later.key == found.key and later.what != found.what
    (others,) = of_prices(FILE, BOOK, TRAINED, TODAY, 300)
    assert others.key != found.key


def test_a_retired_model_waits_for_a_person_who_names_another() -> None:
    tools = {**FILE.tools, "gpt-5": FILE.tools["gpt-5"].model_copy(update={"retires": TODAY})}
    file = FILE.model_copy(update={"tools": tools})
    assert of_models(FILE, TODAY) == [] and of_models(file, date(2025, 11, 30)) == []
    (found,) = of_models(file, TODAY)
    assert found.what == "gpt-5 is retired since 2025-12-01" and "another model" in found.needs


def test_new_data_ask_but_not_what_stages_made_nor_code() -> None:
    stale = {
        "synthesize": ["data/extra modified", "orchestra/synthesis modified", "params.yaml: synthesize.seed modified"],
        "sft": ["data/validated/train.jsonl modified", "data/extra modified", "output data/generated not there"],
    }
    found = of_data(stale, {"data/validated/train.jsonl"}, lambda path: "now")
    assert [(one.cause, one.what) for one in found] == [("data", "data/extra modified")]
    assert of_data(stale, {"data/validated/train.jsonl"}, lambda path: "later")[0].key != found[0].key


def test_new_data_ask_though_their_name_has_a_space() -> None:
    found = of_data({"synthesize": ["data/extra/my file.jsonl modified"]}, set(), lambda path: "1")
    assert [one.what for one in found] == ["data/extra/my file.jsonl modified"]


def test_drift_asks_once_for_each_version_that_serves() -> None:
    signal = Signal("mix of tools", 0.0, 0.2, 1e-9)
    (found,) = of_drift([signal], "f1")
    assert found.what == str(signal) and found.assignments == ()
    (again,) = of_drift([Signal("mix of tools", 0.0, 0.3, 1e-9)], "f1")
    (other,) = of_drift([signal], "f2")
    assert again.key == found.key != other.key
