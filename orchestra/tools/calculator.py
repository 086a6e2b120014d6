"""Exact arithmetic: numbers, + - * / // % **, parentheses; nothing is ever executed."""

import ast
from fractions import Fraction

from pydantic import JsonValue

from orchestra.errors import CallError
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.types import Component

MAX_BITS = 256
"""Larger numbers are refused."""


def evaluate(expression: str) -> str:
    """The value as text: an integer, or a decimal of at most ten significant digits. Raises `CallError`."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CallError("not an arithmetic expression") from None
    value = _value(tree.body, 0)
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _value(node: ast.expr, depth: int) -> Fraction:
    if depth > 50:
        raise CallError("the expression is too deep")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            try:
                result = Fraction(str(number))
            except (ValueError, OverflowError):
                raise CallError("the number is too large") from None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            result = _value(operand, depth + 1)
        case ast.BinOp(left=left, op=operator, right=right):
            result = _apply(operator, _value(left, depth + 1), _value(right, depth + 1))
        case _:
            raise CallError("only numbers and + - * / // % ** are allowed")
    if max(result.numerator.bit_length(), result.denominator.bit_length()) > MAX_BITS:
        raise CallError("the number is too large")
    return result


def _apply(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() | ast.FloorDiv() | ast.Mod() if right == 0:
            raise CallError("division by zero")
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow():
            return _power(left, right)
        case _:
            raise CallError("only + - * / // % ** are allowed")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_BITS:
        raise CallError("powers must be whole numbers up to 256")
    if base == 0 and exponent < 0:
        raise CallError("division by zero")
    # Bounded before it is computed: no power may cost more than the limit it is refused by.
    if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent) > 2 * MAX_BITS:
        raise CallError("the number is too large")
    return base ** int(exponent)


class Calculator:
    """`evaluate` as a tool, at the listed time."""

    component = Component.SANDBOX

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        return ToolResult(
            text=evaluate(str(arguments["expression"])),
            cost_usd=context.price.per_call,
            latency_s=context.latency_s,
        )
