"""The calculator is exact, bounded, and answers the model's faults with a message."""

import asyncio
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import CallError
from orchestra.tools.arithmetic.bounded import MAX_BITS
from orchestra.tools.base import Tool, ToolContext
from orchestra.tools.calculator import Calculator, evaluate, printed
from orchestra.types import Price

SMALL = st.integers(-9999, 9999)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("37*24", "888"),
        ("6/2", "3"),
        ("7/2", "3.5"),
        ("1/3", "0.3333"),
        ("-1/3", "-0.3333"),
        ("0.1+0.2", "0.3"),
        ("10//3", "3"),
        ("-7 % 3", "2"),
        ("2**10", "1024"),
        ("2**-2", "0.25"),
        ("2**0.5", "1.4142"),
        ("99999/100000", "1"),
        ("-0.00001", "0"),
        ("(1+2)*-(3)", "-9"),
        ("5×3", "15"),  # noqa: RUF001
        ("12 * 1_000", "12000"),
    ],
)
def test_results_are_short_and_exact(expression: str, text: str) -> None:
    assert printed(evaluate(expression)) == text


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1/0",
        "0**-1",
        "9**9**9",
        "(-8)**0.5",
        "1e400",
        "2**300 * 2**300",
        "x",
        "True+1",
        "'a'*3",
        "abs(3)",
        "__import__('os').system('id')",
        "().__class__",
        "[1][0]",
        "1 if 1 else 2",
        "1<2",
        "~1",
        "1<<9",
        "lambda: 1",
        "3j",
        "1;2",
        "1\0",
        "(" * 150 + "1" + ")" * 40,
        "-" * 190 + "1" + "+1" * 10,
        "9" * 199,
    ],
)
def test_what_is_not_small_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(CallError):
        evaluate(expression)


@given(SMALL, SMALL, SMALL.filter(bool))
def test_agrees_with_fractions(a: int, b: int, c: int) -> None:
    assert evaluate(f"({a}) + ({b}) * 3 / ({c})") == a + Fraction(b * 3, c)


@given(st.text(alphabet="0123456789+-*/%(). e", max_size=40))
def test_any_text_gives_a_bounded_number_or_a_call_error(text: str) -> None:
    try:
        value = evaluate(text)
    except CallError:
        return
    assert value.numerator.bit_length() <= MAX_BITS


@given(st.fractions(-(10**6), 10**6))
def test_printed_is_the_nearest_within_four_decimals(value: Fraction) -> None:
    text = printed(value)
    assert abs(Fraction(text) - value) <= Fraction(1, 20_000)
    assert text == "0" or not text.endswith((".", "-0"))


def test_a_call_is_priced_and_timed_by_its_example() -> None:
    calculator = Calculator()
    assert isinstance(calculator, Tool)
    context = ToolContext("what is 2+2?", Price(per_call=Decimal("0.001"), per_second=Decimal("0.01")), 0.1)
    result = asyncio.run(calculator.call({"expression": "2+2"}, context))
    assert (result.text, result.cost_usd, result.latency_s) == ("4", Decimal("0.0020"), 0.1)
    with pytest.raises(CallError, match="expression"):
        asyncio.run(calculator.call({"expression": 4}, context))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({}, "888"), ({"expression": "37 �ase 24"}, "888"), ({"expression": "37+24"}, "61")],
)
def test_the_request_counts_where_no_expression_can_be_read(arguments: dict[str, str], text: str) -> None:
    context = ToolContext("Hi there! What is 37 times 24, please?", Price(), 0.1)
    assert asyncio.run(Calculator().call(dict(arguments), context)).text == text


@pytest.mark.parametrize("expression", ["1/0", "9**9**9"])
def test_what_has_no_result_is_not_replaced_by_the_request(expression: str) -> None:
    with pytest.raises(CallError, match=r"zero|large|beyond"):
        asyncio.run(Calculator().call({"expression": expression}, ToolContext("37*24", Price(), 0.1)))


def test_the_error_is_the_expression_s_where_the_request_is_no_sum() -> None:
    with pytest.raises(CallError, match="pears"):
        asyncio.run(Calculator().call({"expression": "pears"}, ToolContext("How do you like apples?", Price(), 0.1)))


def test_an_expression_is_read_once_and_a_refused_one_is_refused_again() -> None:
    assert evaluate("81 / 9 + 1") == 10
    read = evaluate.cache_info().misses
    assert evaluate("81 / 9 + 1") == 10 and evaluate.cache_info().misses == read
    for _ in range(2):
        with pytest.raises(CallError, match="division by zero"):
            evaluate("81 / 0")
