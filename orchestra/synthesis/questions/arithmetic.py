"""Arithmetic examples: sums in many wordings, each with the calculator's expression."""

import random
from collections.abc import Iterator

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.partition import WHOLE, SetPart
from orchestra.synthesis.questions.surface import typed
from orchestra.tools.calculator import evaluate, printed
from orchestra.types import Category, ToolCall

ASK = (
    "What is {e}?", "What does {e} make?", "What is the result of {e}?", "What do you get for {e}?", "How much is {e}?",
    "How much does {e} make?", "How much would {e} be?", "Compute {e}.", "Calculate {e}.", "Work out {e}.",
    "Please calculate {e}.", "Please work out {e}.", "Give me the value of {e}.", "Give me {e}.", "I need {e}.",
    "I need the result of {e}.", "Tell me {e}.", "Tell me what {e} is.",
    "Can you work out {e}?", "Could you compute {e}?",
    "Do you know what {e} is?", "Solve {e}.", "Evaluate {e}.", "Find {e}.", "{e} = ?", "{e} =", "{e}=", "{e}?",
    "{e}", "{e}",
    "{e} is how much?", "{e} equals what?", "{e}, what is that?", "I would like to know {e}.",
)  # fmt: skip
FORMS = (
    ("{a}*{b}", ("{a} times {b}", "{a} multiplied by {b}", "{a} x {b}", "{a}*{b}", "{a} * {b}", "{a}x{b}", "{a} × {b}",  # noqa: RUF001
                 "the product of {a} and {b}", "{a} lots of {b}")),
    ("{a}+{b}", ("{a} plus {b}", "{a} + {b}", "{a}+{b}", "the sum of {a} and {b}", "{a} and {b} together",
                 "{a} added to {b}", "the total of {a} and {b}")),
    ("{a}-{b}", ("{a} minus {b}", "{a} - {b}", "{a}-{b}", "{b} taken from {a}", "{b} less than {a}",
                 "the difference between {a} and {b}", "{a} take away {b}", "{b} subtracted from {a}",
                 "{a} less {b}", "{a} − {b}",  # noqa: RUF001
                 "{a} reduced by {b}")),
    ("{m}/{b}", ("{m} divided by {b}", "{m} / {b}", "{m}/{b}", "{m} ÷ {b}", "{m}÷{b}", "{m} over {b}",
                 "the quotient of {m} and {b}", "{m} split {b} ways", "{m} shared by {b}")),
    ("{p}/100*{a}", ("{p}% of {a}", "{p} percent of {a}", "{p} per cent of {a}", "{p} % of {a}")),
    ("{a}/2", ("half of {a}", "a half of {a}", "one half of {a}")),
    ("2*{a}", ("double {a}", "twice {a}", "the double of {a}")),
    ("{a}/4", ("a quarter of {a}", "one quarter of {a}")),
    ("{a}/3", ("a third of {a}", "one third of {a}")),
    ("{s}**2", ("{s} squared", "the square of {s}", "{s}^2", "{s} to the power of 2")),
    ("{s}**3", ("{s} cubed", "the cube of {s}", "{s}^3", "{s} to the power of 3")),
    ("{s}**{n}", ("{s} to the power of {n}", "{s}^{n}", "{s}**{n}")),
    ("{r}**0.5", ("the square root of {r}", "the root of {r}", "sqrt({r})", "sqrt {r}")),
    ("({a}+{b})/2", ("the average of {a} and {b}", "the mean of {a} and {b}")),
    ("{a}%{b}", ("the remainder of {a} divided by {b}", "{a} mod {b}", "{a} modulo {b}")),
    ("{a}*{b}+{c}", ("{a} times {b} plus {c}", "{a} x {b} + {c}", "{c} more than {a} times {b}", "{a}*{b}+{c}")),
    ("{a}*{b}-{c}", ("{a} times {b} minus {c}", "{a} x {b} - {c}", "{c} less than {a} times {b}", "{a}*{b} - {c}")),
    ("{a}+{b}*{c}", ("{a} plus {b} times {c}", "{a} + {b} x {c}", "{a}+{b}*{c}")),
    ("{a}*({b}+{c})", ("{a} times the sum of {b} and {c}", "{a} x ({b} + {c})", "{a}*({b}+{c})")),
    ("({a}+{b})*{c}", ("({a} + {b}) * {c}", "({a}+{b})*{c}", "({a} plus {b}) times {c}")),
    ("({a}+{b})*({c}+{d})", ("({a} + {b}) * ({c} + {d})", "({a}+{b})*({c}+{d})")),
    ("({a}+{b})*({c}-{d})", ("({a} + {b}) * ({c} - {d})", "({a}+{b}) x ({c}-{d})")),
    ("{a}+{b}+{c}", ("{a} plus {b} plus {c}", "{a} + {b} + {c}", "the sum of {a}, {b} and {c}", "{a}+{b}+{c}")),
    ("{a}+{b}-{c}", ("{a} plus {b} minus {c}", "{a} + {b} - {c}", "{a}+{b}-{c}")),
    ("{a}-{b}+{c}", ("{a} minus {b} plus {c}", "{a} - {b} + {c}")),
    ("{a}-{b}-{c}", ("{a} minus {b} minus {c}", "{a} - {b} - {c}")),
    ("{a}*{b}*{c}", ("{a} times {b} times {c}", "{a} x {b} x {c}", "{a}*{b}*{c}")),
    ("{m}/{b}+{c}", ("{m} divided by {b} plus {c}", "{m} / {b} + {c}", "{m} ÷ {b} + {c}")),
    ("{a}-{b}*{c}", ("{a} minus {b} times {c}", "{a} - {b} * {c}", "{a} − {b} × {c}")),  # noqa: RUF001
    ("{a}/{b}", ("{a} divided by {b}", "{a} / {b}", "{a} ÷ {b}", "{a}/{b}")),
    ("2*{a}-{b}", ("double {a}, then subtract {b}", "twice {a} minus {b}", "{b} less than twice {a}")),
    ("2*{a}+{b}", ("double {a}, then add {b}", "twice {a} plus {b}", "{b} more than twice {a}")),
    ("{a}/2+{b}", ("half of {a}, plus {b}", "half of {a} and {b} more")),
    ("({a}+{b})/{s}", ("({a} + {b}) / {s}", "({a}+{b})/{s}", "the sum of {a} and {b}, divided by {s}")),
    ("({a}-{b})*{s}", ("({a} - {b}) * {s}", "({a}-{b})*{s}", "the difference of {a} and {b}, times {s}")),
    ("(({a}+{b})*{s}-{c})/{n}", ("(({a} + {b}) * {s} - {c}) / {n}", "(({a}+{b})*{s}-{c})/{n}")),
    ("{s}**2+{n}**2", ("{s} squared plus {n} squared", "the square of {s} plus the square of {n}", "{s}^2 + {n}^2")),
    ("{r}**0.5+{a}", ("the square root of {r} plus {a}", "sqrt({r}) + {a}")),
    ("{s}**(1/3)", ("the cube root of {s}", "the third root of {s}")),
    ("100*{a}/{b}", ("the percentage of {b} that {a} is", "{a} as a percentage of {b}", "{a} in percent of {b}")),
    ("{p}/100*{q}/100*{a}", ("{p}% of {q}% of {a}", "{p} percent of {q} percent of {a}")),
    ("({a}+{b}+{c})/3", ("the average of {a}, {b} and {c}", "the mean of {a}, {b} and {c}",
                          "the average of {a} {b} {c}")),
    ("{a}*{b}*{c}", ("the product of {a}, {b} and {c}", "{a} * {b} * {c}")),
    ("{a}+{b}+{c}+{d}", ("{a} + {b} + {c} + {d}", "{a} plus {b} plus {c} plus {d}",
                         "the sum of {a}, {b}, {c} and {d}")),
)  # fmt: skip
PLAIN = 15
"""The first forms, of one operation each, are asked in half of the questions."""
STORIES = (
    ("{a}*{b}", "A box holds {a} jars. How many jars are in {b} boxes?"),
    ("{a}*{b}", "{b} tickets cost {a} each. What is the total?"),
    ("{a}*{b}", "I work {b} hours at {a} an hour. What do I earn?"),
    ("{a}*{b}", "If one pen costs {a}, what do {b} pens cost?"),
    ("{a}*{b}", "How many eggs are in {a} boxes of {b}?"),
    ("{a}*{b}", "A train goes {a} km an hour for {b} hours. How far does it go?"),
    ("{a}*60", "How many minutes are {a} hours?"),
    ("{a}*60", "How many seconds are in {a} minutes?"),
    ("{a}*24", "How many hours are {a} days?"),
    ("{a}*7", "How many days are {a} weeks?"),
    ("{a}*12", "How many months are {a} years?"),
    ("{a}*12", "How many eggs are {a} dozen?"),
    ("{a}-{b}", "There were {a} coins and {b} were spent. How many are left?"),
    ("{a}-{b}", "I had {a} apples and ate {b}. How many are left?"),
    ("{a}-{b}", "Something costs {b} and I pay with {a}. How much change do I get?"),
    ("{a}-{b}", "How old was I {b} years ago if I am {a} now?"),
    ("{a}+{b}", "A shelf has {a} books and gets {b} more. How many now?"),
    ("{a}+{b}", "I spent {a} on food and {b} on rent. How much is that together?"),
    ("{m}/{b}", "{m} sweets are shared by {b} children. How many does each get?"),
    ("{m}/{b}", "We split a bill of {m} between {b} people. What does each pay?"),
    ("{m}/{b}", "How many times does {b} fit into {m}?"),
    ("{a}*{p}/100", "What is a tip of {p}% on {a}?"),
    ("{a}-{a}*{p}/100", "A coat costs {a}. What does it cost with {p}% off?"),
    ("{a}+{a}*{p}/100", "What is {a} plus {p}%?"),
    ("{a}*{b}+{c}", "A hall has {b} rows of {a} seats and {c} extra seats. How many seats?"),
    ("{a}*{b}-{c}", "{b} crates of {a} eggs arrive and {c} eggs break. How many are whole?"),
    ("{a}*{b}+{c}*{d}", "I buy {a} pens for {b} each and {c} books for {d} each. What do I pay?"),
    ("{a}*{b}", "{a} boxes weigh {b} kg each. How heavy are they all?"),
    ("{a}+{b}", "One bag weighs {a} kg and one weighs {b} kg. What do they weigh?"),
    ("{a}-{b}", "A rope of {a} m is cut by {b} m. How long is it now?"),
    ("{a}*{p}/100", "My bill is {a} and I tip {p} percent. How much is the tip?"),
    ("{a}+{a}*{p}/100", "My bill is {a} and I tip {p} percent. What do I pay?"),
    ("12*{a}-{b}", "{a} dozen eggs arrive and {b} break. How many are left?"),
)
ORDERS = (
    ("{a}*{b}", ("Multiply {a} by {b}.", "Multiply {a} and {b}.", "{a} of them at {b} each?", "Take {a} times {b}.")),
    ("{m}/{b}", ("Divide {m} by {b}.", "Split {m} between {b} people.", "Split {m} by {b}.", "Share {m} among {b}.")),
    (
        "{a}+{b}",
        (
            "Add {a} and {b}.",
            "Add {b} to {a}.",
            "Add up {a} and {b}.",
            "Sum {a} and {b}.",
            "${a} + ${b}",
            "If you add {a} and {b}, what do you get?",
            "Put {a} and {b} together.",
        ),
    ),
    (
        "{a}-{b}",
        (
            "Subtract {b} from {a}.",
            "Take {b} from {a}.",
            "Take {b} away from {a}.",
            "Deduct {b} from {a}.",
            "By how much is {a} bigger than {b}?",
            "How much more is {a} than {b}?",
            "From {a} take {b}.",
            "How much less is {b} than {a}?",
            "The gap between {a} and {b}?",
            "${a} - ${b}",
        ),
    ),
    (
        "{a}+{b}+{c}",
        (
            "Add {a}, {b} and {c}.",
            "Add up {a}, {b} and {c}.",
            "Add {a} {b} {c}.",
            "What do you get if you add {a}, {b} and {c}?",
        ),
    ),
    ("{a}*{b}*{c}", ("Multiply {a}, {b} and {c}.", "Multiply {a} by {b} and by {c}.")),
    (
        "{a}-{p}/100*{a}",
        (
            "Take {p} percent off {a}.",
            "Take {p}% off {a}.",
            "Reduce {a} by {p} percent.",
            "{a} with {p}% off?",
            "Lower {a} by {p}%.",
            "{a} minus {p} percent",
        ),
    ),
    (
        "{a}+{p}/100*{a}",
        ("Increase {a} by {p} percent.", "Add {p} percent to {a}.", "Raise {a} by {p}%.", "{a} plus {p} percent"),
    ),
    (
        "100*{a}/{b}",
        (
            "{a} is what percent of {b}?",
            "What percentage of {b} is {a}?",
            "{a} of {b} in percent?",
            "How many percent of {b} is {a}?",
        ),
    ),
    (
        "{a}%{b}",
        (
            "What is left over when {a} is divided by {b}?",
            "What remains of {a} after division by {b}?",
            "The rest of {a} divided by {b}?",
        ),
    ),
    ("2*{a}-{b}", ("Double {a}, then take away {b}.", "Double {a} and subtract {b}.")),
    ("{a}/2+{b}", ("Halve {a} and add {b}.", "Halve {a}, then add {b}.")),
    ("({a}/2+{b})/{s}", ("Halve {a}, add {b}, divide by {s}.", "Start with {a}, halve it, add {b}, divide by {s}.")),
    ("({a}+{b})*{s}", ("Add {a} and {b}, then multiply by {s}.", "Start with {a}, add {b}, multiply by {s}.")),
    ("({a}-{b})/{s}", ("Subtract {b} from {a}, then divide by {s}.", "Start with {a}, take {b}, divide by {s}.")),
    ("({a}/3)**2", ("A third of {a}, then squared", "Divide {a} by three and square it.")),
    ("{s}**2", ("Square {s}.", "{s} times itself")),
    ("{r}**0.5", ("Which number squared is {r}?", "Which number times itself is {r}?")),
    ("{s}**2-{n}**2", ("{s}^2 - {n}^2", "{s} squared minus {n} squared")),
    ("{s}**3-{s}**2", ("{s}^3 - {s}^2", "{s} cubed minus {s} squared")),
    ("2**{n}", ("2 to the power of {n}", "2^{n}", "2 to the {n}", "two to the power of {n}")),
    ("10**{n}", ("10 to the power of {n}", "10^{n}", "ten to the power of {n}")),
    ("-{a}+{b}", ("Minus {a} plus {b}", "-{a} + {b}", "-{a}+{b}")),
    ("-{a}*-{b}", ("-{a} * -{b}", "minus {a} times minus {b}")),
    ("-{a}-{b}", ("-{a} - {b}", "minus {a} minus {b}")),
    ("{a}*-{b}", ("{a} * -{b}", "{a} times minus {b}")),
    ("(-{s})**2", ("(-{s})^2", "(-{s})**2", "minus {s}, squared")),
    ("{a}**0.5+{b}**0.5", ("sqrt({a}) + sqrt({b})",)),
    ("({a}-{b})/{s}+{r}**0.5", ("({a} - {b}) / {s} + sqrt({r})",)),
    ("2**{s}/2**{n}", ("2**{s} / 2**{n}", "2^{s} / 2^{n}")),
    ("{a}*60+30", ("How many minutes are {a} and a half hours?",)),
    ("{a}*1000000/({b}*1000)", ("{a} million divided by {b} thousand",)),
    ("{a}*1000+{b}", ("{a} thousand plus {b}",)),
)
BELOW_ZERO = 0.2
"""Share of the results below zero that are kept."""
STORY, ORDER, SPELT, DECIMAL = 0.2, 0.25, 0.15, 0.15
"""Shares of stories, of orders, of small numbers in words, and of questions with a decimal fraction."""
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
RANGES = ((1, 12), (1, 20), (13, 99), (13, 99), (100, 999), (100, 999), (1000, 9999), (10_000, 999_999_999))
"""Numbers of each length are about as common as people ask for them."""
PERCENT = (1, 2, 3, 5, 7, 8, 10, 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 75, 80, 90)


FRACTIONS = ("1", "2", "25", "3", "4", "5", "5", "6", "75", "8", "85", "9", "99", "125", "01")


def arithmetic(rng: random.Random, seen: set[str], share: SetPart = WHOLE) -> Iterator[Draft]:
    """Endless examples; `seen` holds the expressions given so far. None is given again, nor by another share."""
    while True:
        numbers = _numbers(rng)
        sort = rng.random()
        if sort < STORY:
            form, text = rng.choice(STORIES)
        elif sort < STORY + ORDER:
            form, orders = rng.choice(ORDERS)
            text = rng.choice(orders)
        else:
            form, wordings = rng.choice(FORMS[:PLAIN] if rng.random() < 0.5 else FORMS)
            text = rng.choice(ASK).format(e=rng.choice(wordings))
        expression = form.format(**numbers)
        if expression in seen or not share.owns(expression):
            continue
        answer = printed(evaluate(expression))
        if answer.startswith("-") and rng.random() > BELOW_ZERO:
            continue
        seen.add(expression)
        value = evaluate(expression)
        yield Draft(
            category=Category.ARITHMETIC,
            instruction=typed(rng, _capital(text.format(**_spelt(rng, numbers))), letters=True),
            answer=answer,
            verifier="numeric",
            entities=(f"sum:{expression}",),
            golden_calls=(ToolCall(name="calculator", arguments={"expression": expression}),),
            tools_needed=("calculator",),
            topic="arithmetic",
            wrong=tuple(printed(value + step) for step in (10, -1, 2)),
        )


def _numbers(rng: random.Random) -> dict[str, str]:
    """Numbers by the letters that forms use: `a` to `d` any, `m` a multiple of `b`, `p` a percentage, `r` a square."""
    whole = {letter: rng.randint(*rng.choice(RANGES)) for letter in "abcd"}
    small = rng.randint(2, 30)
    found = {letter: str(number) for letter, number in whole.items()}
    for letter in "ab" if rng.random() < DECIMAL else "":
        size = rng.choice((0, 1, whole[letter] % 20, whole[letter] % 1000))
        found[letter] = f"{size}.{rng.choice(FRACTIONS)}"
    if "." not in found["b"]:
        found["m"] = str(whole["b"] * rng.randint(2, 60))
    else:
        found["m"] = found["a"]
    return found | {
        "q": str(rng.choice(PERCENT)),
        "p": str(rng.choice(PERCENT)),
        "s": str(small),
        "n": str(rng.randint(2, 6)),
        "r": str(rng.randint(2, 60) ** 2),
    }


def _spelt(rng: random.Random, numbers: dict[str, str]) -> dict[str, str]:
    """Sometimes with its round or small numbers in words."""
    if rng.random() >= SPELT:
        return numbers
    return {k: WORDS.get(int(v), v) if v.isdigit() else v for k, v in numbers.items()}


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
