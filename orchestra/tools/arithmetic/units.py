"""Conversions as people ask for them: `how many minutes are 2 hours`, said as `(2) * 60`.

The factors are exact by definition. A library of units would bring floats and a grammar of its own for untrusted text.
"""

import re
from fractions import Fraction

_SIZES: tuple[dict[str, str], ...] = (
    {"second": "1", "minute": "60", "hour": "3600", "day": "86400", "week": "604800"},
    {"month": "1", "year": "12", "decade": "120", "century": "1200"},
    {"millimetre": "1", "centimetre": "10", "metre": "1000", "kilometre": "1000000", "inch": "25.4", "foot": "304.8",
     "yard": "914.4", "mile": "1609344"},
    {"milligram": "1", "gram": "1000", "kilogram": "1000000", "tonne": "1000000000", "ounce": "28349.523125",
     "pound": "453592.37", "stone": "6350293.18"},
    {"millilitre": "1", "centilitre": "10", "litre": "1000"},
    # A gallon is another one in America; of each, as many pints.
    {"pint": "1", "quart": "2", "gallon": "8"},
    {"cent": "1", "dollar": "100"},
    {"piece": "1", "dozen": "12"},
)  # fmt: skip
"""Units of one kind, each in the smallest."""
_OTHER_NAMES = {
    "second": "sec secs s", "minute": "min mins", "hour": "hr hrs h", "day": "", "week": "wk wks", "month": "",
    "year": "yr yrs", "century": "centuries", "millimetre": "mm millimeter millimeters",
    "centimetre": "cm centimeter centimeters", "metre": "m meter meters", "kilometre": "km kms kilometer kilometers",
    "inch": "inches", "foot": "feet ft", "yard": "yd", "mile": "", "milligram": "mg", "gram": "g",
    "kilogram": "kg kgs kilo kilos", "tonne": "ton tons", "stone": "", "ounce": "oz", "pound": "lb lbs",
    "millilitre": "ml milliliter milliliters", "centilitre": "cl", "litre": "l liter liters",
    "piece": "eggs things items rolls",
}  # fmt: skip
NAMES = {
    name: (kind, unit)
    for kind, sizes in enumerate(_SIZES)
    for unit in sizes
    for name in (unit, f"{unit}s", *_OTHER_NAMES.get(unit, "").split())
}
_UNIT = "|".join(sorted(NAMES, key=len, reverse=True))
_NUMBER = r"\d[\d.,]*"
_TWO = rf"(?P<count>{_NUMBER}) ?(?P<unit>{_UNIT})(?:,? and| n|,| plus|) (?P<more>{_NUMBER}) ?(?P<other>{_UNIT})"
"""Such as `2 hours and 15 minutes`."""
_HAS = r"(?:are there in|are in|are|r in|r|it is|is|in|there in|does|do|make up|make|fit in)"
_ASKED = rf"(?:,| is| are| =|) (?:how many|_+|\?) ?(?P<into>{_UNIT})(?: is (?:it|that))?"
_FORMS = tuple(
    re.compile(form)
    for what in (_TWO, rf"(?P<count>.+?) ?(?P<unit>{_UNIT})")
    for form in (
        rf"(?:how many )?(?P<into>{_UNIT}) {_HAS} {what}(?: have| make)?",
        rf"(?:(?:convert|turn|change) )?{what},? (?:in|into|to|as) (?:just )?(?P<into>{_UNIT})",
        rf"{what}{_ASKED}",
    )
)
_OF_ONE = re.compile(r"(?: of)?(?: an?)?$")
"""What is left of `half a kilo` before its unit."""


def converted(text: str) -> str | None:
    """The expression that a lower-case conversion means; None where it is none, or between units of two kinds."""
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is None:
            continue
        into, held = NAMES[found["into"]], found.groupdict()
        parts = [(held["count"], held["unit"])] + ([(held["more"], held["other"])] if "more" in held else [])
        if any(NAMES[unit][0] != into[0] for _, unit in parts):
            return None
        return " + ".join(f"({_count(count)}) * {_factor(unit, into)}" for count, unit in parts)
    return None


def _count(text: str) -> str:
    return {"a": "1", "an": "1", "one": "1"}.get(text) or _OF_ONE.sub("", text)


def _factor(name: str, into: tuple[int, str]) -> str:
    kind, unit = NAMES[name]
    factor = Fraction(_SIZES[kind][unit]) / Fraction(_SIZES[kind][into[1]])
    return f"{factor.numerator} / {factor.denominator}"
