"""Operations on fractions whose results stay small: a step that would grow is refused before it is done."""

import math
from fractions import Fraction

from orchestra.errors import CallError


class NoResultError(CallError):
    """An expression that is read and has no result, or none that is small enough."""


MAX_BITS = 256
"""Of any numerator or denominator on the way."""
MAX_EXPONENT = 256
MAX_FACTORIAL = 57


def bounded(value: Fraction) -> Fraction:
    """The value itself; raises `NoResultError` where it is too large."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise NoResultError("the result is too large")
    return value


def divide(left: Fraction, right: Fraction) -> Fraction:
    if not right:
        raise NoResultError("division by zero")
    return left / right


def floor_divide(left: Fraction, right: Fraction) -> Fraction:
    return Fraction(math.floor(divide(left, right)))


def remainder(left: Fraction, right: Fraction) -> Fraction:
    """With the sign of `right`."""
    return left - right * floor_divide(left, right)


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Exact where the result is a fraction, else the nearest float."""
    if abs(exponent) > MAX_EXPONENT:
        raise NoResultError(f"the exponent is beyond {MAX_EXPONENT}")
    if not base and exponent < 0:
        raise NoResultError("division by zero")
    if exponent.denominator > 1 and exponent.denominator <= MAX_EXPONENT:
        return power(root(base, exponent.denominator), Fraction(exponent.numerator))
    if exponent.denominator > 1:
        if base < 0:
            raise NoResultError("the root of a negative number is not real")
        return _from_float(float(base) ** float(exponent))
    size = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(int(exponent))
    if size > 2 * MAX_BITS:  # before the work is done, not after
        raise NoResultError("the result is too large")
    return bounded(base ** int(exponent))


def root(value: Fraction, degree: int) -> Fraction:
    """The real root (of a negative number for an odd degree): exact where it is a fraction, else the nearest float."""
    if not 1 <= degree <= MAX_EXPONENT:
        raise NoResultError(f"the degree of a root lies between 1 and {MAX_EXPONENT}")
    if value < 0:
        if degree % 2 == 0:
            raise NoResultError("the root of a negative number is not real")
        return -root(-value, degree)
    parts = [_whole_root(part, degree) for part in (value.numerator, value.denominator)]
    if parts[0] is not None and parts[1] is not None:
        return Fraction(parts[0], parts[1])
    return _from_float(float(value) ** (1 / degree))


def factorial(value: Fraction) -> Fraction:
    """Of a whole number from 0 to 57, the last whose factorial is small enough."""
    if value.denominator > 1 or not 0 <= value <= MAX_FACTORIAL:
        raise NoResultError(f"a factorial is of a whole number from 0 to {MAX_FACTORIAL}")
    return bounded(Fraction(math.factorial(int(value))))


def series(first: Fraction, last: Fraction) -> Fraction:
    """The sum of the whole numbers from the first to the last."""
    if first.denominator > 1 or last.denominator > 1 or last < first:
        raise NoResultError("a sum of numbers goes from a whole number to a larger one")
    return bounded((first + last) * (last - first + 1) / 2)


def _whole_root(value: int, degree: int) -> int | None:
    """The whole number whose power is `value`, if there is one, by halving an interval."""
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low if low**degree == value else None


def _from_float(value: float) -> Fraction:
    return bounded(Fraction(repr(value)))
