"""Numbers in words and digits: `two hundred and five`, `1.5 million`, `3 and a half`."""

from fractions import Fraction

from orchestra.errors import CallError
from orchestra.tools.arithmetic.words import BELOW_TWENTY, PARTS, SCALES, TENS, VULGAR, Token


class NumberReader:
    """Reads from `tokens`; `position` is that of the next one."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.listing = False
        """In a list, `and` parts items: it joins no number."""
        self.joinable = False
        """An `and` was met that might have joined the number before it."""

    def peek(self, ahead: int = 0) -> Token:
        """The token that comes, or nothing at the end."""
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else ""

    def take(self, *signs: str) -> bool:
        """Whether the next token is one of them; it is then read."""
        found = self.peek() in signs
        self.position += found
        return found

    def starts_number(self, ahead: int = 0) -> bool:
        token = self.peek(ahead)
        return isinstance(token, Fraction) or token in BELOW_TWENTY or token in TENS or token in ("hundred", "dozen")

    def number(self) -> Fraction:
        """Groups by falling scale: `two million three hundred thousand and five`."""
        total, last = Fraction(0), Fraction(10**15)
        while True:
            group = self._group()
            scale = Fraction(SCALES.get(str(self.peek()), 1))
            self.position += scale > 1
            if group * scale >= last and last < 10**15:
                raise CallError("the words of a number fall from large to small: write it in digits")
            total, last = total + group * scale, scale
            if scale == 1 or not self._goes_on():
                return self._mixed(total)

    def _goes_on(self) -> bool:
        """After a scale or `hundred`: whether a smaller part of the same number follows, past an `and`."""
        if self.peek() == "and" and self.starts_number(1):
            self.joinable = self.joinable or self.listing
            self.position += not self.listing
            return not self.listing
        return self.starts_number()

    def _group(self) -> Fraction:
        """Digits, or words below a thousand or so: `twenty five`, `fifteen hundred`, `3 hundred and two`."""
        value = self._small() if self.peek() not in ("hundred", "dozen") else Fraction(1)
        if self.take("dozen"):
            return 12 * value
        if not self.take("hundred"):
            return value
        return 100 * value + (self._small() if self._goes_on() else 0)

    def _small(self) -> Fraction:
        token = self.peek()
        self.position += 1
        if isinstance(token, Fraction):
            return token
        if token in TENS:
            one = BELOW_TWENTY.get(str(self.peek()), 0)
            self.position += 0 < one < 10
            return Fraction(TENS[token] + (one if one < 10 else 0))
        if token not in BELOW_TWENTY:
            raise CallError(f"a number is missing before {token!r}" if token else "the expression ends too early")
        return Fraction(BELOW_TWENTY[token]) + (self._decimals() if self.take("point") else 0)

    def _decimals(self) -> Fraction:
        """`one four` of `three point one four`."""
        digits = ""
        while BELOW_TWENTY.get(str(self.peek()), 10) < 10:
            digits += str(BELOW_TWENTY[str(self.peek())])
            self.position += 1
        if not digits:
            raise CallError("digits are missing after 'point'")
        return Fraction(f"0.{digits}")

    def _mixed(self, value: Fraction) -> Fraction:
        """With the fraction that may follow: `3½`, `two and a half`, `two and three quarters`."""
        if self.peek() in VULGAR:
            value += VULGAR[str(self.peek())]
            self.position += 1
        elif self.peek() == "and" and self.peek(1) in PARTS:
            value += Fraction(1, PARTS[str(self.peek(1))])
            self.position += 2
        elif self.peek() == "and" and self.starts_number(1) and self.peek(2) in PARTS:
            self.position += 1
            value += self._small() / PARTS[str(self.peek())]
            self.position += 1
        return value
