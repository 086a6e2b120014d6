"""Exact arithmetic on a parsed expression; nothing is ever evaluated as code."""

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from pydantic import JsonValue

from orchestra.accounting.ledger import cost_of
from orchestra.errors import CallError
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.types import Component, Usage

MAX_CHARACTERS = 200
MAX_BITS = 256
"""Of any numerator or denominator on the way."""
MAX_EXPONENT = 256
DECIMALS = 4

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_SPELLINGS = str.maketrans({"×": "*", "÷": "/", "−": "-", "·": "*"})  # noqa: RUF001


class Calculator:
    """The tool `calculator({"expression": "37*24"})`, which gives `888`."""

    component = Component.SANDBOX

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """Raises `CallError` when the expression cannot be worked out."""
        expression = arguments.get("expression")
        if not isinstance(expression, str):
            raise CallError('calculator needs {"expression": "…"} with a string')
        text = printed(evaluate(expression))
        cost = cost_of(context.price, Usage(), seconds=context.latency_s)
        return ToolResult(text=text, cost_usd=cost, latency_s=context.latency_s)


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression of numbers, + - * / // % ** and brackets; raises `CallError` for the model."""
    if len(expression) > MAX_CHARACTERS:
        raise CallError(f"the expression has more than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.translate(_SPELLINGS).strip(), mode="eval")
        return _value(tree.body)
    except ZeroDivisionError:
        raise CallError("division by zero") from None
    except CallError:
        raise
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        raise CallError(f"{expression!r} is no arithmetic expression") from None


def printed(value: Fraction) -> str:
    """An integer as such; anything else to four decimals, half to even, without idle zeros."""
    rounded = round(value, DECIMALS)
    if rounded.denominator == 1:
        return str(rounded.numerator)
    whole, part = divmod(abs(rounded.numerator) * 10**DECIMALS // rounded.denominator, 10**DECIMALS)
    return f"{'-' if rounded < 0 else ''}{whole}.{part:0{DECIMALS}d}".rstrip("0")


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(repr(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        apply = _BINARY.get(type(node.op))
        if apply is not None:
            return _bounded(apply(left, right))
    raise CallError("only numbers, + - * / // % ** and brackets are allowed")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > MAX_EXPONENT:
        raise CallError(f"the exponent is beyond {MAX_EXPONENT}")
    if exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(int(exponent))
        if size > 2 * MAX_BITS:  # before the work is done, not after
            raise CallError("the result is too large")
        return _bounded(base ** int(exponent))
    root = float(base) ** float(exponent)
    if isinstance(root, complex):
        raise CallError("the root of a negative number is not real")
    return _bounded(Fraction(repr(root)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CallError("the result is too large")
    return value
