"""The grammar of an expression, read from left to right by one method a level; what nests, nests within a bound.

From the loosest to the tightest: `then add …`, `5 less than …`, `+ -`, `* / // mod`, a sign, `15% of …` and functions,
`**`. `%` is a remainder where an operand follows it and a percentage elsewhere; `200 + 15%` adds 15 % of the 200."""

from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

from orchestra.errors import CallError
from orchestra.tools.arithmetic.bounded import (
    NoResultError,
    bounded,
    divide,
    factorial,
    floor_divide,
    power,
    remainder,
    root,
    series,
)
from orchestra.tools.arithmetic.numbers import NumberReader
from orchestra.tools.arithmetic.requests import cores
from orchestra.tools.arithmetic.sentences import said, spelt
from orchestra.tools.arithmetic.units import converted
from orchestra.tools.arithmetic.words import ORDINALS, PARTS, VULGAR, Token, plain, tokens

MAX_DEPTH = 30
"""Of brackets, functions and powers in each other."""

_PRODUCTS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "*": lambda left, right: left * right,
    "/": divide,
    "//": floor_divide,
    "mod": remainder,
    "%": remainder,
}
_REVERSED = {"added to": "+", "taken from": "-", "percentage of": "percentage of"}
_FUNCTIONS: dict[str, Callable[[Fraction], Fraction]] = {
    "sqrt": lambda value: root(value, 2),
    "cbrt": lambda value: root(value, 3),
    "square": lambda value: power(value, Fraction(2)),
    "cube": lambda value: power(value, Fraction(3)),
    "double": lambda value: 2 * value,
    "triple": lambda value: 3 * value,
    "negative": lambda value: -value,
    "factorial": factorial,
}
_PAIRS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "difference": lambda left, right: left - right,
    "gap": lambda left, right: abs(left - right),
    "quotient": divide,
    "remainder": remainder,
}
_LISTS = ("sum", "product", "average", *_PAIRS)
_STEPS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


class Value(NamedTuple):
    number: Fraction
    percent: bool = False
    """A percentage that stands alone: `15%`."""


def read(text: str) -> Fraction:
    """The exact value of an expression, or of the one within a request; raises `CallError`."""
    try:
        return _read(text)
    except NoResultError:
        raise
    except CallError as error:
        for core in cores(text):
            with suppress(CallError):
                return _read(core, least=2)
        raise error from None


def _read(text: str, least: int = 0) -> Fraction:
    """Of a whole text with at least so many tokens: a request with one number alone asks for no sum."""
    asked = plain(text)
    # A conversion is read as it stands: `mins` is nearly `minus`.
    reader = ExpressionReader(tokens(converted(asked) or said(spelt(asked))))
    if len(reader.tokens) < least:
        raise CallError("no sum is asked for")
    value = reader.statement()
    reader.expect("")
    return bounded(value.number)


class ExpressionReader(NumberReader):
    depth = 0

    def expect(self, *signs: str) -> None:
        token = self.peek()
        if token not in signs:
            raise CallError(f"cannot read {str(token)!r} here" if token != "" else "the expression ends too early")
        self.position += 1

    def statement(self) -> Value:
        """An expression with what is to be done to it afterwards: `double 17, then add 5`."""
        if self.peek() in ("percent", "percentage") and self.peek(1) == "of":
            return Value(self._share())
        value = Value(self._order()) if self.peek() in _STEPS else self._reversed()
        while self.peek() == "then" or (self.peek() in (",", "and") and self.peek(1) == "then"):
            self.position += 1 if self.peek() == "then" else 2
            sign = str(self.peek())
            self.position += 1
            if sign in ("multiply", "divide"):
                self.expect("by")
            value = Value(self._joined(value, _STEPS.get(sign, sign), self._factor()))
        return value

    def _share(self) -> Fraction:
        """`percent of 80 is 20`, after `what`."""
        self.position += 2
        whole = self._sum().number
        self.expect("is")
        return 100 * divide(self._sum().number, whole)

    def _order(self) -> Fraction:
        """`add 3, 4 and 5`, `add 3 to 4`, `subtract 3 from 10`, `multiply 3 by 4`, `divide 12 by 4`."""
        verb, outer, self.listing = str(self.peek()), self.listing, True
        self.position += 1
        value = self._sum().number
        if verb == "add":
            self.expect("and", "to", ",")
            value += self._sum().number
            while self.take(",", "and"):
                self.take("and")
                value += self._sum().number
        else:
            self.expect(*{"subtract": ("from",), "multiply": ("by", "and", "with")}.get(verb, ("by",)))
            other = self._sum().number
            value = other - value if verb == "subtract" else _PRODUCTS[_STEPS[verb]](value, other)
        self.listing = outer
        return bounded(value)

    def _reversed(self) -> Value:
        """`5 less than 20`, `10% more than 20`, `20 as a percentage of 80`."""
        value = self._sum()
        sign = _REVERSED.get(str(self.peek()))
        if sign is None:
            return value
        self.position += 1
        other = self._reversed()
        if sign in ("+", "-"):
            return Value(self._joined(other, sign, value))
        return Value(bounded(100 * divide(value.number, other.number)))

    def _sum(self) -> Value:
        value = self._product()
        while self.peek() in ("+", "-"):
            sign = str(self.peek())
            self.position += 1
            value = Value(self._joined(value, sign, self._product()))
        return value

    def _joined(self, left: Value, sign: str, right: Value) -> Fraction:
        """Of one sign; a percentage that is added to a plain number is one of that number."""
        number = right.number
        if sign in _PRODUCTS:
            return bounded(_PRODUCTS[sign](left.number, number))
        if sign not in ("+", "-"):
            raise CallError(f"cannot read {sign!r} here")
        if right.percent and not left.percent:
            number *= left.number
        return bounded(left.number + number if sign == "+" else left.number - number)

    def _product(self) -> Value:
        value, divided = self._factor(), False
        while True:
            sign = str(self.peek())
            if sign == "of" and divided:  # 3/4 of 80
                sign = "*"
            elif sign == "(":  # 2(3+4)
                if divided:
                    raise CallError("write * before the bracket: after a division its place is unclear")
                sign, self.position = "*", self.position - 1
            if sign not in _PRODUCTS:
                return value
            self.position += 1
            value, divided = Value(self._joined(value, sign, self._factor())), sign == "/"

    def _factor(self) -> Value:
        """With its signs."""
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.peek() == "-"
            self.position += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CallError(f"the expression nests deeper than {MAX_DEPTH}")
        value = self._power()
        self.depth -= 1
        return Value(-value.number, value.percent) if negative else value

    def _power(self) -> Value:
        """With what follows it: a power, or a percentage and what it is of."""
        number, percent = self._bracket() if self.peek() == "(" else Value(self._operand())
        while True:
            if self.take("factorial"):
                number = factorial(number)
            elif self.take("squared"):
                number = power(number, Fraction(2))
            elif self.take("cubed"):
                number = power(number, Fraction(3))
            elif self.peek() == "to" and self._ordinal(1):
                self.position += 1
                number = power(number, self._degree())
            elif self.take("**"):
                number = power(number, self._degree() if self._ordinal(0) else self._factor().number)
            elif self.peek() == "percent" or (self.peek() == "%" and not self._starts_operand(1)):
                self.position += 1
                number /= 100
                return self._part(number) if self.peek() == "of" else Value(number, percent=True)
            else:
                return Value(number, percent)
            percent = False

    def _part(self, number: Fraction) -> Value:
        """That share of what follows, if anything does: `half of 17`, `half 17`."""
        if self.take("of") or self._starts_operand():
            number = bounded(number * self._factor().number)
        return Value(number)

    def _ordinal(self, ahead: int) -> bool:
        token = self.peek(ahead)
        return token in ORDINALS or (isinstance(token, str) and token.endswith("th") and token[:-2].isdecimal())

    def _degree(self) -> Fraction:
        """Of `fourth power` or `4th root`."""
        token = str(self.peek())
        self.position += 1
        self.take("power")
        return Fraction(ORDINALS[token] if token in ORDINALS else int(token[:-2]))

    def _starts_operand(self, ahead: int = 0) -> bool:
        token: Token = self.peek(ahead)
        words = ("(", *_FUNCTIONS, *_LISTS, *PARTS, *VULGAR)
        return self.starts_number(ahead) or self._ordinal(ahead) or token in words

    def _operand(self) -> Fraction:
        token = str(self.peek())
        if token in _FUNCTIONS:
            self.position += 1
            value = self._bracket() if self.peek() == "(" else self._factor()
            return bounded(_FUNCTIONS[token](value.number))
        if token in _LISTS:
            return self._list(token)
        if token == "range":
            self.position += 1
            first = self._factor().number
            self.expect("to")
            return series(first, self._factor().number)
        if self._ordinal(0) and self.peek(1) in ("root", "sqrt"):
            degree = self._degree()
            self.position += 1
            self.take("of")
            return root(self._factor().number, int(degree))
        number = Fraction(1) if token in PARTS else VULGAR[token] if token in VULGAR else self.number()
        self.position += token in VULGAR
        part = PARTS.get(str(self.peek()))
        if part is not None:
            self.position += 1
            number /= part
        return self._part(number).number if part or token in VULGAR else number

    def _bracket(self) -> Value:
        """A percentage that it holds alone stays one: `200 + (15%)`."""
        outer, self.listing = self.listing, False
        self.expect("(")
        value = self.statement()
        self.expect(")")
        self.listing = outer
        return value

    def _list(self, name: str) -> Fraction:
        """`sum of 3, 4 and 5`, `difference between 9 and 4`, `remainder of 17 divided by 5`."""
        outer, self.listing, self.joinable = self.listing, True, False
        self.position += 1
        items, closed = [self._factor().number], False
        while not closed and (self.peek() in (",", "and") or (name == "remainder" and self.peek() == "/")):
            comma = self.peek() == ","
            closed = comma and self.peek(1) in (*_PRODUCTS, "+", "-", "**", "squared", "cubed", "then")
            self.position += not closed or self.peek(1) != "then"
            if not closed:
                self.position += comma and self.peek() == "and"
                items.append(self._factor().number)
        if not closed and (self.peek() in _PRODUCTS or self.peek() == "("):
            raise CallError(f"write brackets: it is unclear what {str(self.peek())!r} belongs to")
        if self.joinable and len(items) > 2 and name != "sum":
            raise CallError("write the numbers in digits: it is unclear what 'and' belongs to")
        self.listing = outer
        return _of_items(name, items)


def _of_items(name: str, items: list[Fraction]) -> Fraction:
    if len(items) < 2 or (name in _PAIRS and len(items) > 2):
        raise CallError(f"{name}: {'two numbers are' if name in _PAIRS else 'more than one number is'} needed")
    if name in _PAIRS:
        return bounded(_PAIRS[name](*items))
    value = items[0]
    for item in items[1:]:
        value = bounded(value * item if name == "product" else value + item)
    return value / len(items) if name == "average" else value
