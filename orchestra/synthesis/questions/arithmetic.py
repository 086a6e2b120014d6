"""Arithmetic examples: sums in many wordings, each with what the calculator is to be asked.

The calculator reads most wordings of a request by itself, so it is called without an argument. Where a story has to be
turned into a sum, the numbers stay as they were written.
"""

import random
import re
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from orchestra.errors import CallError
from orchestra.synthesis.draft import Draft
from orchestra.synthesis.partition import WHOLE, SetPart
from orchestra.synthesis.questions.arithmetic_words import ASK, FORMS, ORDERS, PLAIN
from orchestra.synthesis.questions.stories import STORIES
from orchestra.synthesis.questions.surface import SLIPS, misspelt, typed
from orchestra.tools.calculator import evaluate, printed
from orchestra.types import Category, ToolCall

BELOW_ZERO = 0.2
"""Share of the results below zero that are kept."""
STORY, ORDER, DECIMAL = 0.3, 0.3, 0.2
"""Shares of stories, of orders, and of questions with a decimal fraction; the rest are expressions."""
SPELT, MARKED, MONEY = 0.2, 0.5, 0.04
"""Shares of questions with numbers in words, of numbers above 999 with commas, of questions in dollars."""
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
WORDS = {number: word for number, word in enumerate(ONES.split()) if number} | {
    ten * 10 + one: f"{word} {ONES.split()[one]}" if one else word
    for ten, word in enumerate(TENS, start=2)
    for one in range(10)
}
SPOKEN = ((1, 12), (1, 12), (1, 20), (13, 99), (13, 99), (100, 999))
"""Numbers that are written in words."""
RANGES = ((1, 12), (1, 20), (13, 99), (13, 99), (100, 999), (100, 999), (1000, 9999), (10_000, 999_999_999))
"""Numbers of each length are about as common as people ask for them."""
PERCENT = (
    "1",
    "2",
    "3",
    "5",
    "7",
    "8",
    "10",
    "12",
    "15",
    "18",
    "20",
    "25",
    "30",
    "35",
    "40",
    "50",
    "60",
    "75",
    "80",
    "90",
)
HALF_PERCENT = ("0.5", "1.5", "2.5", "4.5", "7.5", "12.5", "17.5", "37.5", "62.5")
FRACTIONS = ("1", "2", "25", "3", "4", "5", "5", "6", "75", "8", "85", "9", "99", "125", "01")
PLURALS = ("twos", "threes", "fours", "fives", "sixes", "sevens", "eights", "nines", "tens", "elevens", "twelves")


def arithmetic(rng: random.Random, seen: set[str], share: SetPart = WHOLE) -> Iterator[Draft]:
    """Endless examples; `seen` holds the expressions given so far. None is given again, nor by another share."""
    while True:
        spoken = rng.random() < SPELT
        numbers = _numbers(rng, spoken)
        sort = rng.random()
        frame = "{e}"
        if sort < STORY:
            form, wordings = rng.choice(STORIES)
        elif sort < STORY + ORDER:
            form, wordings = rng.choice(ORDERS)
        else:
            form, wordings = rng.choice(FORMS[:PLAIN] if rng.random() < 0.5 else FORMS)
            frame = rng.choice(ASK)
        expression = form.format(**numbers)
        if expression in seen or not share.owns(expression):
            continue
        value = evaluate(expression)
        answer = printed(value)
        if answer.startswith("-") and rng.random() > BELOW_ZERO:
            continue
        seen.add(expression)
        written = _written(rng, numbers, spoken)
        wording = rng.choice(wordings)
        said = (wording.replace("%", " percent") if spoken else wording).format(**written)
        question = typed(rng, _capital(frame.format(e=said)), letters=True)
        if rng.random() < SLIPS:
            question, said = misspelt(rng, question, said)
        asked = _asked(question, expression, form.format(**written), answer)
        yield Draft(
            category=Category.ARITHMETIC,
            instruction=question,
            answer=answer,
            verifier="numeric",
            entities=(f"sum:{expression}",),
            golden_calls=(ToolCall(name="calculator", arguments=asked),),
            tools_needed=("calculator",),
            topic="arithmetic",
            wrong=tuple(printed(value + step) for step in (10, -1, 2)),
        )


def _asked(question: str, expression: str, form: str, answer: str) -> dict[str, JsonValue]:
    """Nothing where the calculator reads the question as it is meant, else the sum, with the question's own numbers."""
    if _gives(question, answer):
        return {}
    own = form.upper() if question.isupper() else form
    return {"expression": own if _gives(own, answer) else expression}


def _gives(text: str, answer: str) -> bool:
    try:
        return printed(evaluate(text)) == answer
    except CallError:
        return False


def _numbers(rng: random.Random, spoken: bool) -> dict[str, str]:
    """Numbers by the letters that `stories` and `arithmetic_words` explain."""
    ranges = SPOKEN if spoken else RANGES
    whole = {letter: rng.randint(*rng.choice(ranges)) for letter in "abcd"}
    small = rng.randint(2, 30)
    found = {letter: str(number) for letter, number in whole.items()}
    if rng.random() < DECIMAL:
        for letter in rng.choice(("a", "b", "ab", "abc", "abcd")):
            size = rng.choice((0, 1, whole[letter] % 20, whole[letter] % 1000))
            found[letter] = f"{size}.{rng.choice(FRACTIONS)}"
    low, high = sorted((found["a"], found["b"]), key=float)
    times = rng.randint(2, 12)
    return found | {
        "m": str(whole["b"] * rng.randint(2, 60)) if "." not in found["b"] else found["a"],
        "h": high,
        "l": low,
        "q": rng.choice(PERCENT),
        "p": rng.choice(PERCENT if rng.random() < 0.8 else HALF_PERCENT),
        "s": str(times if rng.random() < 0.3 else small),
        "n": str(rng.randint(2, 6)),
        "k": str(rng.randint(2, 12)),
        "t": str(rng.randint(2, 12)),
        "f": str(rng.randint(3, 12)),
        "r": str(rng.randint(2, 60) ** 2),
        "x": str(rng.randint(10, 199)),
        "y": str(rng.randint(10, 199)),
        "u": str(times),
        "plural": PLURALS[times - 2],
    }


def _written(rng: random.Random, numbers: Mapping[str, str], spoken: bool) -> dict[str, str]:
    """The numbers as somebody writes them: in words, with commas, in dollars, or plainly."""
    marked = rng.random() < MARKED
    money = not spoken and rng.random() < MONEY
    joiner = rng.choice(" -")
    found = {}
    for letter, number in numbers.items():
        if spoken and re.fullmatch(r"\d+(\.\d+)?", number):
            found[letter] = in_words(number, joiner)
        elif marked and number.isdigit() and len(number) > 3:
            found[letter] = f"{int(number):,}"
        else:
            found[letter] = f"${number}" if money and letter in "abcdhlm" else number
    return found


def in_words(number: str, joiner: str = " ") -> str:
    """A number below a million: `three hundred and five`, `one point five`."""
    whole, _, part = number.partition(".")
    value = int(whole)
    if part:
        return f"{in_words(whole, joiner)} point {' '.join(ONES.split()[int(digit)] for digit in part)}"
    if value < 100:
        return WORDS.get(value, "zero").replace(" ", joiner)
    size, word = (1000, "thousand") if value >= 1000 else (100, "hundred")
    if value >= 10**6:
        return number
    rest = value % size
    joined = f" {'and ' if rest < 100 else ''}{in_words(str(rest), joiner)}" if rest else ""
    return f"{in_words(str(value // size), joiner)} {word}{joined}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
