"""A random expression, written in any mixture of spellings, has the value of its tree."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestra.errors import CallError
from orchestra.tools.arithmetic.bounded import MAX_BITS
from orchestra.tools.calculator import MAX_CHARACTERS, evaluate

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
ONES += ["seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SIGNS = {
    "+": ("+", " + ", " plus "),
    "-": ("-", " - ", " minus ", " − ", " take away "),  # noqa: RUF001
    "*": ("*", " * ", " x ", "x", " × ", " times ", " multiplied by "),  # noqa: RUF001
    "/": ("/", " / ", " ÷ ", " divided by ", " over "),
}
LOOSE, MIDDLE, TIGHT = 1, 2, 3
"""How tightly the written form holds together: a sum, a product, anything that needs no brackets."""


@dataclass(frozen=True)
class Written:
    """A subtree: its value, one of its spellings and how tightly that holds."""

    value: Fraction
    text: str
    hold: int = TIGHT

    def at(self, hold: int) -> str:
        return self.text if self.hold >= hold else f"({self.text})"


def in_words(value: int, joiner: str) -> str:
    """`two hundred and five`; `joiner` stands between tens and ones."""
    if value < 20:
        return ONES[value]
    if value < 100:
        return TENS[value // 10 - 2] + (joiner + ONES[value % 10] if value % 10 else "")
    for size, word in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= size:
            rest = value % size
            joined = f" {'and ' if rest < 100 else ''}{in_words(rest, joiner)}" if rest else ""
            return f"{in_words(value // size, joiner)} {word}{joined}"
    raise AssertionError(value)


@st.composite
def numbers(draw: st.DrawFn) -> Written:
    value = draw(st.integers(0, 40) | st.integers(0, 9_999_999))
    way = draw(st.sampled_from(["digits", "digits", "words", "marks", "decimal", "scale"]))
    if way == "words":
        return Written(Fraction(value), in_words(value, draw(st.sampled_from([" ", "-"]))))
    if way == "marks":
        mark = draw(st.sampled_from([",", "_", "'", "\u202f", "\u00a0"]))
        return Written(Fraction(value), f"{value:,}".replace(",", mark))
    if way == "decimal":
        return Written(Fraction(value, 100), f"{value // 100}.{value % 100:02d}")
    if way == "scale":
        few = value % 900 + 1
        return Written(Fraction(few * 1000), f"{few} thousand")
    return Written(Fraction(value), str(value))


def joined(draw: st.DrawFn, sign: Literal["+", "-", "*", "/"], left: Written, right: Written) -> Written:
    hold = LOOSE if sign in "+-" else MIDDLE
    first, second = left.at(hold), right.at(hold + 1)
    sign_text = draw(st.sampled_from(SIGNS[sign]))
    if first[-1].isalpha() or second[0].isalpha():  # "twenty-five" is no subtraction
        sign_text = f" {sign_text.strip()} "
    text = first + sign_text + second
    value = {
        "+": left.value + right.value,
        "-": left.value - right.value,
        "*": left.value * right.value,
        "/": left.value / (right.value or 1),
    }[sign]
    return Written(value, text, hold) if right.value or sign != "/" else left


def functions(draw: st.DrawFn, inner: Written) -> Written:
    """What is said of one operand."""
    tight = inner.at(TIGHT)
    value = inner.value
    percent = draw(st.integers(0, 300))
    choices = [
        (value / 2, f"half of {tight}"),
        (value / 2, f"a half of {tight}"),
        (value / 3, f"one third of {tight}"),
        (3 * value / 4, f"three quarters of {tight}"),
        (2 * value, f"twice {tight}"),
        (3 * value, f"triple {tight}"),
        (percent * value / 100, f"{percent}% of {tight}"),
        (percent * value / 100, f"{percent} percent of {tight}"),
        (-value, f"(-{tight})"),
        (value**2, f"(({inner.text})^2)"),
        (value**2, f"the square of ({inner.text})"),
        (value**3, f"(({inner.text}) cubed)"),
        (abs(value), f"sqrt(({inner.text})**2)"),
        (abs(value), f"the square root of (({inner.text})²)"),
        (value, f"the cube root of (({inner.text}) ** 3)"),
    ]
    return Written(*draw(st.sampled_from(choices)))


def lists(draw: st.DrawFn, items: list[Written]) -> Written:
    """What is said of several operands, each in brackets unless it is written in digits."""
    texts = [item.text if item.text.isdecimal() else f"({item.text})" for item in items]
    values = [item.value for item in items]
    last = draw(st.sampled_from([" and ", ", and "])) if len(items) > 2 else " and "
    text = ", ".join(texts[:-1]) + last + texts[-1]
    product = Fraction(1)
    for value in values:
        product *= value
    choices = [(sum(values, Fraction(0)), "the sum of "), (product, "the product of ")]
    choices.append((sum(values, Fraction(0)) / len(values), "the average of "))
    if len(items) == 2:
        choices += [
            (values[0] - values[1], "the difference of "),
            (abs(values[0] - values[1]), "the difference between "),
        ]
    result, name = draw(st.sampled_from(choices))
    return Written(result, f"({name}{text})")


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Written:
    kind = draw(st.sampled_from(["number", "sign", "sign", "function", "list"])) if depth else "number"
    if kind == "sign":
        sign = draw(st.sampled_from(["+", "-", "*", "/"]))
        return joined(draw, sign, draw(trees(depth - 1)), draw(trees(depth - 1)))  # type: ignore[arg-type]
    if kind == "function":
        return functions(draw, draw(trees(depth - 1)))
    if kind == "list":
        return lists(draw, draw(st.lists(trees(depth - 1), min_size=2, max_size=3)))
    return draw(numbers())


@settings(max_examples=400)
@given(
    trees(),
    st.sampled_from(["", "what is ", "What's ", "How much is ", "Calculate ", "please work out ", "= "]),
    st.sampled_from(["", "?", ".", " =", "=", " = ?", " equals", "!"]),
)
def test_a_tree_in_any_spelling_has_its_value(tree: Written, before: str, after: str) -> None:
    text = before + tree.text + after
    assume(not re.fullmatch(r"\d\d?!", text))  # a factorial
    small = len(text) <= MAX_CHARACTERS
    try:
        value = evaluate(text)
    except CallError as error:
        assert not small or "too large" in str(error)
        return
    assert value == tree.value


def test_the_trees_are_mostly_worked_out() -> None:
    """Most spellings are short and small enough, so that the property above speaks of values."""
    seen = {"value": 0, "refused": 0}

    @settings(max_examples=200, database=None)
    @given(trees())
    def count(tree: Written) -> None:
        try:
            evaluate(tree.text)
            seen["value"] += 1
        except CallError:
            seen["refused"] += 1

    count()
    assert seen["value"] > seen["refused"]


@given(st.integers(0, 10**9 - 1), st.sampled_from([" ", "-"]))
def test_every_number_is_read_in_words(value: int, joiner: str) -> None:
    assert evaluate(in_words(value, joiner)) == value
    assert evaluate(in_words(value, joiner).title()) == value


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-300, 300))
def test_a_percentage_is_one_of_what_it_is_added_to(a: int, b: int, percent: int) -> None:
    sign = "-" if percent < 0 else "+"
    assert evaluate(f"{a} {sign} {abs(percent)}%") == a + Fraction(a * percent, 100)
    assert evaluate(f"{a} + {b} {sign} {abs(percent)} percent") == (a + b) * (1 + Fraction(percent, 100))


WORDS = st.sampled_from(
    [
        "a",
        "and",
        "of",
        "the",
        "sum",
        "product",
        "difference",
        "between",
        "half",
        "third",
        "quarter",
        "percent",
        "%",
        "sqrt",
        "square",
        "root",
        "cube",
        "fourth",
        "4th",
        "twice",
        "then",
        "add",
        "subtract",
        "from",
        "to",
        "by",
        "multiply",
        "divide",
        "over",
        "x",
        "times",
        "plus",
        "minus",
        "(",
        ")",
        ",",
        ".",
        "=",
        "?",
        "hundred",
        "thousand",
        "point",
        "two",
        "twenty",
        "five",
        "3",
        "12",
        "1,000",
        "½",
        "²",
        "**",
        "^",
        "//",
        "dozen",
        "less",
        "than",
        "more",
        "remainder",
        "when",
        "is",
        "average",
        "power",
        "in",
        "as",
        "what",
    ]
)


@settings(max_examples=500)
@given(st.lists(WORDS, max_size=25), st.sampled_from(["", " "]))
def test_any_words_give_a_bounded_number_or_a_call_error(words: list[str], joiner: str) -> None:
    try:
        value = evaluate(joiner.join(words))
    except CallError:
        return
    assert max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS


@given(st.text(max_size=60))
def test_any_text_gives_a_number_or_a_call_error(text: str) -> None:
    try:
        evaluate(text)
    except CallError:
        return


@pytest.mark.parametrize(
    "piece", ["(", "-", "2**", "half of ", "sqrt ", "sum of 1 and ", "1 less than ", "2^(", "double "]
)
def test_what_nests_deeply_is_refused_or_worked_out_at_once(piece: str) -> None:
    text = (piece * MAX_CHARACTERS)[: MAX_CHARACTERS - 1] + "1"
    try:
        evaluate(text)
    except CallError:
        return
