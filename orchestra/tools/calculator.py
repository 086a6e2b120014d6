"""Exact arithmetic on what people write; nothing is ever evaluated as code."""

from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from pydantic import JsonValue

from orchestra.accounting.ledger import cost_of
from orchestra.errors import CallError
from orchestra.tools.arithmetic.bounded import NoResultError
from orchestra.tools.arithmetic.grammar import read
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.types import Component, Usage

MAX_CHARACTERS = 200
DECIMALS = 4


class Calculator:
    """The tool `calculator({"expression": "37*24"})`, which gives `888`.

    Without an expression, or with one that cannot be read, it works out the user's request. Copying a request word for
    word is what small models do worst, and a request that is no sum as a whole is refused.
    """

    component = Component.SANDBOX

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """Raises `CallError` when neither the expression nor the request can be worked out."""
        expression = arguments.get("expression", "")
        if not isinstance(expression, str):
            raise CallError('calculator needs {"expression": "…"} with a string, or no argument')
        text = printed(_value(expression, context.instruction))
        cost = cost_of(context.price, Usage(), seconds=context.latency_s)
        return ToolResult(text=text, cost_usd=cost, latency_s=context.latency_s)


def _value(expression: str, request: str) -> Fraction:
    """Of the expression, or of the request where no expression can be read; raises the expression's `CallError`."""
    if not expression:
        return evaluate(request)
    try:
        return evaluate(expression)
    except NoResultError:
        raise
    except CallError as error:
        with suppress(CallError):
            return evaluate(request)
        raise error from None


@lru_cache(maxsize=1000)
def evaluate(expression: str) -> Fraction:
    """The exact value of an expression in signs or words (`orchestra/tools/arithmetic`); raises `CallError`."""
    if len(expression) > MAX_CHARACTERS:
        raise CallError(f"the expression has more than {MAX_CHARACTERS} characters")
    return read(expression)


def printed(value: Fraction) -> str:
    """An integer as such; anything else to four decimals, half to even, without idle zeros."""
    rounded = round(value, DECIMALS)
    if rounded.denominator == 1:
        return str(rounded.numerator)
    whole, part = divmod(abs(rounded.numerator) * 10**DECIMALS // rounded.denominator, 10**DECIMALS)
    return f"{'-' if rounded < 0 else ''}{whole}.{part:0{DECIMALS}d}".rstrip("0")
