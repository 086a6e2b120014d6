"""Amounts and days that commands are given, read from their options."""

from datetime import date
from decimal import Decimal, InvalidOperation

from orchestra.errors import ConfigError


def parse_usd(text: str, option: str) -> Decimal:
    """Dollars, zero or more; raises `ConfigError` for anything else."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not (amount.is_finite() and amount >= 0):
        raise ConfigError(f"{text!r} is no amount", where=option, fix="write dollars: 1.50")
    return amount


def parse_date(text: str, option: str = "--as-of") -> date:
    """Raises `ConfigError` for what is no ISO date."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no date", where=option, fix="write YYYY-MM-DD") from None
