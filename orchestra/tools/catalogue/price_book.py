"""The price book: what each provider's model costs, dated, so that any run can be priced again."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from orchestra.errors import ConfigError
from orchestra.files.yaml import load_yaml
from orchestra.types import Price, Record, Usd


class PriceRow(Record):
    """One dated row; dollars per million tokens, per call and per second."""

    provider: str
    model: str
    effective_from: date
    input: Usd = Decimal(0)
    cached_input: Usd | None = None
    output: Usd = Decimal(0)
    per_call: Usd = Decimal(0)
    per_second: Usd = Decimal(0)
    source: str
    checked: date | None = None
    """The last day on which the source was seen to say so."""

    def looked_at(self, day: date) -> date:
        """The last day up to `day` on which the row is known to have held."""
        known = [self.effective_from] + ([self.checked] if self.checked is not None else [])
        return max((one for one in known if one <= day), default=self.effective_from)

    @property
    def key(self) -> str:
        """`provider/model`, as the catalogue names it."""
        return f"{self.provider}/{self.model}"

    @property
    def price(self) -> Price:
        return Price(
            input_per_million=self.input,
            cached_input_per_million=self.cached_input,
            output_per_million=self.output,
            per_call=self.per_call,
            per_second=self.per_second,
        )


class PriceBook:
    """Dated rows by `provider/model`."""

    def __init__(self, rows: list[PriceRow], *, where: str = "the price book") -> None:
        self._where = where
        self._rows: dict[str, list[PriceRow]] = {}
        for row in sorted(rows, key=lambda r: r.effective_from):
            same = self._rows.setdefault(row.key, [])
            if same and same[-1].effective_from == row.effective_from:
                raise ConfigError(
                    f"two prices for {row.key} from {row.effective_from}", where=where, fix="remove one of them"
                )
            same.append(row)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a price book; raises `ConfigError` of one line."""
        rows = []
        listed = read_mapping(path).get("prices")
        if not isinstance(listed, list):
            raise ConfigError("prices is no list", where=str(path), fix="see the shipped file for the layout")
        for number, row in enumerate(listed, start=1):
            try:
                rows.append(PriceRow.model_validate(row))
            except ValidationError as error:
                name = f"{row.get('provider')}/{row.get('model')}" if isinstance(row, dict) else f"{row!r:.60}"
                what = f"row {number} ({name}): {first_problem(error)}"
                raise ConfigError(what, where=str(path), fix="fix that row") from None
        return cls(rows, where=str(path))

    def at(self, key: str, day: date) -> Price:
        """The price of `provider/model` that holds on `day`; raises `ConfigError` when there is none."""
        row = self.row(key, day)
        if row is None:
            later = self.rows(key)
            what, fix = f"no price for {key} on {day}", f"add a row for {key} effective on or before {day}"
            if later:
                first = later[0].effective_from
                what, fix = f"{what} (the first is from {first})", f"choose a day from {first} on: world.price_date"
            raise ConfigError(what, where=self._where, fix=fix)
        return row.price

    def row(self, key: str, day: date) -> PriceRow | None:
        """The row of `provider/model` that holds on `day`."""
        return next((row for row in reversed(self.rows(key)) if row.effective_from <= day), None)

    def rows(self, key: str) -> list[PriceRow]:
        """Every row of `provider/model`, oldest first."""
        return self._rows.get(key, [])

    def every(self) -> list[PriceRow]:
        """Every row of the book."""
        return [row for rows in self._rows.values() for row in rows]


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file whose top level is a mapping; raises `ConfigError`."""
    raw = load_yaml(path, if_missing="check `world` in params.yaml")
    if not isinstance(raw, dict):
        raise ConfigError("not a mapping", where=str(path), fix="see the shipped file for the layout")
    return raw


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation error in one line: where it is, what it is, what was there."""
    first = error.errors()[0]
    return f"{'.'.join(str(p) for p in first['loc']) or 'row'}: {first['msg']} (got {first['input']!r:.60})"
