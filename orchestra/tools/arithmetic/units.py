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
     "pound": "453592.37"},
    {"millilitre": "1", "centilitre": "10", "litre": "1000"},
    {"cent": "1", "dollar": "100"},
    {"piece": "1", "dozen": "12"},
)  # fmt: skip
"""Units of one kind, each in the smallest."""
_OTHER_NAMES = {
    "second": "sec secs s", "minute": "min mins", "hour": "hr hrs h", "day": "", "week": "wk wks", "month": "",
    "year": "yr yrs", "century": "centuries", "millimetre": "mm millimeter millimeters",
    "centimetre": "cm centimeter centimeters", "metre": "m meter meters", "kilometre": "km kms kilometer kilometers",
    "inch": "inches", "foot": "feet ft", "yard": "yd", "mile": "", "milligram": "mg", "gram": "g",
    "kilogram": "kg kgs kilo kilos", "tonne": "ton tons", "ounce": "oz", "pound": "lb lbs",
    "millilitre": "ml milliliter milliliters", "centilitre": "cl", "litre": "l liter liters",
    "piece": "eggs things items rolls",
}  # fmt: skip
_NAMES = {
    name: (kind, unit)
    for kind, sizes in enumerate(_SIZES)
    for unit in sizes
    for name in (unit, f"{unit}s", *_OTHER_NAMES.get(unit, "").split())
}
_UNIT = "|".join(sorted(_NAMES, key=len, reverse=True))
_HAS = r"(?:are there in|are in|are|is|in|there in|does|do|make up|make|fit in)"
_FORMS = (
    re.compile(rf"(?:how many )?(?P<into>{_UNIT}) {_HAS} (?P<count>.+?) ?(?P<unit>{_UNIT})(?: have| make)?"),
    re.compile(rf"(?:convert )?(?P<count>.+?) ?(?P<unit>{_UNIT}) (?:in|into|to|as) (?P<into>{_UNIT})"),
    re.compile(rf"(?P<count>.+?) ?(?P<unit>{_UNIT}),? how many (?P<into>{_UNIT})(?: is (?:it|that))?"),
)


def converted(text: str) -> str | None:
    """The expression that a lower-case conversion means; None where it is none, or between units of two kinds."""
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is None:
            continue
        kind, unit = _NAMES[found["unit"]]
        other, into = _NAMES[found["into"]]
        if kind != other:
            return None
        factor = Fraction(_SIZES[kind][unit]) / Fraction(_SIZES[kind][into])
        count = {"a": "1", "an": "1", "one": "1"}.get(found["count"], found["count"])
        return f"({count}) * {factor.numerator} / {factor.denominator}"
    return None
