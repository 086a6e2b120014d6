"""Orders and questions about numbers, said as expressions: `take 20% off 85` as `(85) - 20%`.

A sentence of one pattern means one thing, whatever the numbers are: an expression that the grammar reads. Everything
else stays as it is, and is read or refused by the grammar.
"""

import re
from functools import lru_cache

from orchestra.tools.arithmetic.requests import ENDING, numbered
from orchestra.tools.arithmetic.units import NAMES, converted
from orchestra.tools.arithmetic.words import PARTS, SCALES, VOCABULARY, nearest

_LARGER = "bigger|larger|greater|more|higher|longer|older|heavier|taller|pricier|farther|further"
_SMALLER = "smaller|less|fewer|lower|shorter|younger|lighter|cheaper|nearer"
_CUT = "reduce|lower|decrease|cut|discount|drop"
_RISE = "increase|raise|grow|lift"
_SHARE = "split|share|distribute"
_PART = r"(?:a |one )?(half|third|quarter|fifth|tenth)"
_CHARGE = r"(?:sales |income )?(?:tip|tax|vat|interest|commission|fee|service|cashback|deposit|bonus)(?: charge)?"
_SHARE_OF = r"\d[\d.,]*(?: ?%| percent| per cent)"
_FACTORS = "|".join(sorted({*SCALES, *PARTS, "hundred", "dozen", "percent", "pct"}))
"""Words after a number that change it."""
_ONE = r"[\w.,%'$()/-]+"
"""A number or a bracket without a space in it."""
_PATTERNS: tuple[tuple[str, str], ...] = (
    # Orders of two steps come first: the patterns after them would take the second step for a part of the first.
    (rf"(?:{_CUT}) (.+?) by (.+?),? (?:and|then)(?: then)?(?: the (?:result|rest))?(?: again)? by (?:another )?(.+)",
     r"((\1) - \2) - \3"),
    (rf"(?:{_RISE}) (.+?) by (.+?),? (?:and|then)(?: then)?(?: the (?:result|rest))?(?: again)? by (?:another )?(.+)",
     r"((\1) + \2) + \3"),
    (rf"(?:{_CUT}) (.+?) by {_PART}", r"(\1) - \2 of (\1)"),
    (rf"(?:{_RISE}) (.+?) by {_PART}", r"(\1) + \2 of (\1)"),
    (rf"(.+?) (?:reduced|decreased|lowered|cut) by {_PART}", r"(\1) - \2 of (\1)"),
    (rf"(.+?) (?:increased|raised) by {_PART}", r"(\1) + \2 of (\1)"),
    (rf"(?:{_CUT}) (.+?) by (.+)", r"(\1) - \2"),
    (rf"(?:{_RISE}) (.+?) by (.+)", r"(\1) + \2"),
    (r"(?:take|knock|deduct|subtract) (.+?(?:%|percent|per cent)) (?:off|from|away from) (?:of )?(.+)",
     r"(\2) - \1"),
    (r"(.+?), (.+?(?:%|percent|per cent)) off(?:,? what do (?:i|we) pay)?", r"(\1) - \2"),
    (r"(?:cost )?(.+?), (?:put|add) (.+?(?:%|percent|per cent)) on top", r"(\1) + \2"),
    (r"(.+?(?:%|percent|per cent)) of (?:what|which) number is (.+)", r"(\2) / \1"),
    (r"(.+?(?:%|percent|per cent)) tax on (.+?),? (?:give me )?(?:the )?(?:price|total) (?:with|including) tax"
     r"(?: included)?", r"(\2) + \1"),
    (r"take (.+?(?:%|percent|per cent) of .+)", r"\1"),
    (r"minus (.+?) from (.+)", r"(\2) - (\1)"),
    (r"change from (?:a |an )?(.+?) (?:if|when|for) (?:its |it's |it is )?(.+)", r"(\1) - (\2)"),
    (r"(.+?) cut (?:in|into) (.+)", r"(\1) / (\2)"),
    (r"(?:going )?from (.+?) (?:up )?to (.+?),? (?:what is|what's|whats) the percent(?:age)? (?:rise|increase)",
     r"((\2) - (\1)) as percent of (\1)"),
    (r"(?:take|knock) (.+?) off (.+)", r"(\2) - \1"),
    (rf"add (.+?(?:%|percent|per cent))(?: {_CHARGE})? (?:on )?to (.+)", r"(\2) + \1"),
    (r"(?:the )?(?:percentage|percent|per cent|%) (?:increase|rise|gain|growth) (?:going )?from (.+?) to (.+)",
     r"((\2) - (\1)) as percent of (\1)"),
    (r"(?:the )?(?:percentage|percent|per cent|%) (?:decrease|fall|drop|loss) (?:going )?from (.+?) to (.+)",
     r"((\1) - (\2)) as percent of (\1)"),
    (r"(?:a |the )?(?:bill|price|cost) of (.+)", r"\1"),
    (rf"{_CHARGE} of ({_SHARE_OF}) on (.+)", r"\1 of (\2)"),
    (rf"(?:the )?total with (?:a )?(.+?(?:%|percent|per cent)) {_CHARGE} on (?:a )?(.+?)(?: bill)?", r"(\2) + \1"),
    (r"(.+?(?:%|percent|per cent)) discount on (.+?),? how much is the discount(?: itself)?", r"\1 of (\2)"),
    (r"(\d+ ?/ ?\d+|0?\.\d+) (?:as|in) (?:a )?(?:percent|per cent|percentage)", r"(\1) * 100"),
    (r"(.+?) (?:with|after|at) (?:a |an )?(.+?(?:%|percent|per cent)) (?:off|discount|reduction)", r"(\1) - \2"),
    (r"(.+?(?:%|percent|per cent)) off (.+)", r"(\2) - \1"),
    (rf"(.+?) (?:plus|with) (?:a |an )?({_SHARE_OF}) {_CHARGE}(?: added)?", r"(\1) + \2"),
    (rf"(.+?) (?:plus|with) (?:a |an )?{_CHARGE} (?:at|of) (.+?(?:%|percent|per cent))", r"(\1) + \2"),
    (rf"(.+?(?:%|percent|per cent)) {_CHARGE} (?:on|of|for) (.+)", r"\1 of (\2)"),
    (r"(?:is )?left (?:when|if) (?:you|i|we) (?:take|subtract)(?: away)? (.+?) (?:away )?from (.+)", r"(\2) - (\1)"),
    (r"(?:over|left|left over) (?:when|if) (?:you|i|we) (?:share|split|divide) (.+?) (?:equally |evenly )?"
     r"(?:between|among|amongst|by|into) (.+)", r"remainder of (\1) divided by (\2)"),
    (rf"(?:by )?how much (?:is (.+?) )?(?:{_LARGER})(?: is (.+?))? than (.+)", r"(\1\2) - (\3)"),
    (rf"(?:by )?how much (?:is (.+?) )?(?:{_SMALLER})(?: is (.+?))? than (.+)", r"(\3) - (\1\2)"),
    (r"(?:how far apart are|distance between) (.+?) and (.+)", r"difference between (\1) and (\2)"),
    (r"from (.+?),? (?:take|subtract|deduct)(?: away)? (.+)", r"(\1) - (\2)"),
    (rf"(?:{_SHARE}) (.+?) (?:equally |evenly )?(?:between|among|amongst|into|by|over) (.+)", r"(\1) / (\2)"),
    (r"(.+?) (?:split|shared|divided)(?: out)? (?:equally |evenly )?(?:between|among|amongst|into) (.+)",
     r"(\1) / (\2)"),
    (r"divide (.+?) (?:equally |evenly )?(?:between|among|amongst) (.+)", r"(\1) / (\2)"),
    (rf"(\d[\d.,]*|[a-z]+)(?: (?!(?:{_FACTORS})\b)[a-z]+)? (?:at|for) +({_ONE}) (?:each|apiece)",
     r"(\1) * (\2)"),
    (rf"(?:split|share|divide) ({_ONE}) ({_ONE})", r"(\1) / (\2)"),
    (rf"(.+?) split ({_ONE})", r"(\1) / (\2)"),
    (rf"(?:how many )?(\d+)'?s (?:go|fit) (?:in|into) ({_ONE})", r"(\2) / (\1)"),
    (r"how (?:often|many times) does (.+?) (?:go|fit) (?:in|into) (.+)", r"(\2) / (\1)"),
    (r"(.+?) is (?:what|how many|which) (?:percent|per cent|%|percentage) of (.+)", r"(\1) as percent of (\2)"),
    (r"(?:the )?percentage of (.+?) that (.+?)(?: is)?", r"(\2) as percent of (\1)"),
    (r"(?:how many )?(?:percent|per cent) of (.+?) (?:is|are) (.+)", r"(\2) as percent of (\1)"),
    (r"(?:percent|per cent|percentage) (?:is|are) (.+?) of (.+)", r"(\1) as percent of (\2)"),
    (r"percentage of (.+?) (?:is|are) (.+)", r"(\2) as percent of (\1)"),
    (r"(.+?) (?:out )?of (.+?) (?:in|as) (?:a )?(?:percent|per cent|percentage)", r"(\1) as percent of (\2)"),
    (r"(?:left over|over|left|remains?) (?:when|if) (.+?) is divided by (.+)", r"remainder of (\1) divided by (\2)"),
    (r"remains of (.+?) after division by (.+)", r"remainder of (\1) divided by (\2)"),
    (r"(?:the )?(?:rest|remainder) (?:of|when|if) (.+?)(?: is)? divided by (.+)", r"remainder of (\1) divided by (\2)"),
    (r"(?:which |the )?number,? (?:squared|times itself) (?:is|gives|makes) (.+)", r"sqrt (\1)"),
    (r"(?:which |the )?number,? cubed (?:is|gives|makes) (.+)", r"cbrt (\1)"),
    (r"(.+?) (?:times|multiplied by) itself", r"(\1) squared"),
    (r"(?:the )?(?:sum|total) of (?:all |the )*(?:whole |natural )?(?:numbers|integers) from (.+?) (?:up )?to (.+)",
     r"range (\1) to (\2)"),
    (r"(?:the )?sum from (.+?) (?:up )?to (.+)", r"range (\1) to (\2)"),
    (r"(?:add|sum|put together|total)(?: up)? (?:all |the )*(?:whole |natural )?(?:numbers|integers) from (.+?) "
     r"(?:up )?to (.+)", r"range (\1) to (\2)"),
    (r"(?:do you get |you get |results |happens )?(?:if|when) (?:you|i|we) (.+)", r"\1"),
    (r"(?!.* and )(.+) (?:altogether|in total|in all)", r"\1"),
    (r"(.+?),? (?:as|in) (?:a )?(?:decimal|decimals|decimal number|decimal form)", r"\1"),
    (rf"({_ONE}) to the (\d+)", r"(\1) ** \2"),
    (r"halve (.+)", r"half of (\1)"),
    (r"(?:the )?fraction (.+)", r"\1"),
    (r"half of (.+?) and (.+?) more", r"(half of (\1)) + (\2)"),
    (r"minus ([\w.]+), squared", r"(-\1) squared"),
)  # fmt: skip
"""What is said, whole, and the expression that it means."""
_LIST = re.compile(r"(?:the )?(sum|average|mean|product) of ([\d.]+(?: (?!\d{3}\b)[\d.]+)+)(?:,? and ([\d.]+))?")
"""Numbers with spaces between them; three digits after a space may be the thousands' rest of the number before."""
_ADDED = (
    r"(?:add|sum) (?:these|those|this|them|all)(?: numbers)?(?: up)?[^\d]*[ :]([\d., ]+(?:and [\d.]+)?)",
    r"(?:add|sum|total)(?: up| together)? (?!of\b)(?!.*\b(?:to|then)\b)(.+?)(?: together| altogether)?",
    r"do ((?:[\d.,$]+ )+and [\d.,$]+)(?: add(?: up)? to)?",
    r"put (.+) together",
    r"(.+ and .+?)(?: added)? (?:together|altogether|combined|in total|in all|in sum)",
)
"""Numbers that are to be added up, in any of these orders; group 1 lists them."""
_MULTIPLIED = (
    r"multiply (?!.*\bthen\b)(?!.*\b(?:hundred|thousand|million) and\b)(.+(?:,| and by | by .+ (?:and|by) ).+)"
)
"""Of numbers in words, `and` may join one or part two: those are left to the grammar."""
_STARTS = r"(?:start|begin) (?:with|from|at) |(?:take|think of|i have|you have) (?=[^,]+, (?:halve|double|add|then))"
_STEPS: tuple[tuple[str, str], ...] = (
    (r"(?:and )?(?:then )?halve(?: it| that| the result| what'?s left)?", "/ 2"),
    (r"(?:and )?(?:then )?double(?: it| that| the result| what'?s left)?", "* 2"),
    (r"(?:and )?(?:then )?triple(?: it| that| the result)?", "* 3"),
    (r"(?:and )?(?:then )?(?:square(?: it| that| the result)?|squared)", "** 2"),
    (r"(?:and )?(?:then )?(?:cube(?: it| that| the result)?|cubed)", "** 3"),
    (r"(?:and )?(?:then )?(?:add|plus) (.+?)(?: more)?(?: to (?:it|that|the result))?", r"+ (\1)"),
    (r"(?:and )?(?:then )?(?:subtract|take away|take|minus|deduct) (.+?)(?: away)?(?: from (?:it|that|the result))?",
     r"- (\1)"),
    (r"(?:and )?(?:then )?(?:multiply(?: it| that| the result)? by|times) (.+)", r"* (\1)"),
    (r"(?:and )?(?:then )?(?:divide(?: it| that| the result)? by|divided by) (.+)", r"/ (\1)"),
)  # fmt: skip
"""What is done to the number so far, and what that appends to its expression."""
_AND_VERB = re.compile(r" and (?=(?:then )?(?:halve|double|triple|square|cube|add|subtract|take|multiply|divide)\b)")
_PLURAL = re.compile(r"\b(twos|threes|fours|fives|sixes|sevens|eights|nines|tens|elevens|twelves)\b")
_WORD = re.compile(r"[a-z]{4,}")
_VOCABULARY = frozenset(
    word
    for text in (
        *VOCABULARY,
        _PLURAL.pattern,
        *(pattern for pattern, _ in (*_PATTERNS, *_STEPS)),
        *_ADDED,
    )
    for word in _WORD.findall(text)
)


_TARGETS = _VOCABULARY - {word for word in PARTS if word.endswith(("th", "s"))} - {*_PLURAL.pattern[3:-3].split("|")}
"""What a misspelt word may be: `files` and `tents` are no fives and no tenths."""


def spelt(text: str) -> str:
    """Every word that is nearly one of arithmetic as that word: `avergae` as `average`, where a number is as it is."""
    return _WORD.sub(lambda found: _meant(found[0]), text) if numbered(text) else text


@lru_cache(maxsize=1000)
def _meant(word: str) -> str:
    known = word in _VOCABULARY or word in NAMES or word in ENDING or word.removesuffix("s") in ENDING
    return word if known else nearest(word, _TARGETS, 0.75) or word


def said(text: str) -> str:
    """The expression that a lower-case sentence means; the sentence itself where no pattern is its."""
    text = _PLURAL.sub(lambda word: f"times {word[1][:-2] if word[1] == 'sixes' else word[1][:-1]}", text)
    return converted(text) or _chain(text) or _of_pattern(text)


def _of_pattern(text: str) -> str:
    for pattern, meant in _PATTERNS:
        found = re.fullmatch(pattern, text)
        if found:
            return _of_pattern(found.expand(meant)) if meant == r"\1" else found.expand(meant)
    listed = _LIST.fullmatch(text)
    if listed:
        items = [*listed[2].split(), *([listed[3]] if listed[3] else [])]
        return f"{listed[1]} of {', '.join(items)}"
    for pattern in _ADDED:
        found = re.fullmatch(pattern, text)
        if found and (" and " in found[1] or "," in found[1] or " " in found[1].strip()):
            return _joined(found[1], " + ")
    found = re.fullmatch(_MULTIPLIED, text)
    return _joined(found[1], " * ") if found else text


def _joined(numbers: str, sign: str) -> str:
    """`3, 4 and minus 5`, each in brackets; numbers with nothing but spaces between them are listed too."""
    items = re.split(r", and by |, and |, by |, | and by | and | by ", numbers)
    if len(items) == 1:
        items = numbers.split()
    return sign.join(f"({item})" for item in items)


def _chain(text: str) -> str | None:
    """`start with 200, halve it, add 15`: each step in brackets around those before it; None where it is no chain."""
    started = re.match(_STARTS, text)
    parts = re.split(r",(?: and)?(?: then)? | then ", _AND_VERB.sub(", ", text[started.end() if started else 0 :]))
    if len(parts) < 2:
        return None
    first = parts[0] if started else _first(parts[0])
    if first is None:
        return None
    value = f"({first})"
    for part in parts[1:]:
        for pattern, step in _STEPS:
            found = re.fullmatch(pattern, part)
            if found:
                value = f"({value} {found.expand(step)})"
                break
        else:
            return None
    return value


def _first(text: str) -> str | None:
    """The first step of a chain of orders, such as `double 37` or `add 3 and 4`."""
    found = re.fullmatch(r"(halve|double|triple|square|cube) (.+)", text)
    if found:
        word = {"halve": "half of"}.get(found[1], found[1])
        return f"{word} ({found[2]})"
    return _of_pattern(text)
