"""Arithmetic examples: sums in many wordings, each with the calculator's expression."""

import random
from collections.abc import Iterator

from orchestra.synthesis.draft import Draft
from orchestra.synthesis.partition import WHOLE, SetPart
from orchestra.tools.calculator import evaluate, printed
from orchestra.types import Category, ToolCall

ASK = (
    "what is {e}?",
    "compute {e}",
    "how much is {e}?",
    "work out {e}.",
    "{e} = ?",
    "give me the value of {e}",
    "please calculate {e}",
    "I need the result of {e}.",
)
FORMS = (
    ("{a}*{b}", ("{a} times {b}", "{a} multiplied by {b}", "{a} x {b}", "the product of {a} and {b}")),
    ("{a}+{b}", ("{a} plus {b}", "{a} + {b}", "the sum of {a} and {b}")),
    ("{a}-{b}", ("{a} minus {b}", "{a} - {b}", "{b} taken from {a}")),
    ("{a}*{b}+{c}", ("{a} times {b} plus {c}", "{a} x {b} + {c}", "{c} more than {a} times {b}")),
    ("{a}*{b}-{c}", ("{a} times {b} minus {c}", "{a} x {b} - {c}", "{c} less than {a} times {b}")),
    ("{a}*({b}+{c})", ("{a} times the sum of {b} and {c}", "{a} x ({b} + {c})")),
    ("{a}+{b}+{c}", ("{a} plus {b} plus {c}", "{a} + {b} + {c}", "the sum of {a}, {b} and {c}")),
)
STORIES = (
    ("{a}*{b}", "a box holds {a} jars. how many jars are in {b} boxes?"),
    ("{a}*{b}", "{b} tickets cost {a} each. what is the total?"),
    ("{a}-{b}", "there were {a} coins and {b} were spent. how many are left?"),
    ("{a}+{b}", "a shelf has {a} books and gets {b} more. how many now?"),
    ("{a}*{b}+{c}", "a hall has {b} rows of {a} seats and {c} extra seats. how many seats?"),
    ("{a}*{b}-{c}", "{b} crates of {a} eggs arrive and {c} eggs break. how many are whole?"),
)


def arithmetic(rng: random.Random, seen: set[str], share: SetPart = WHOLE) -> Iterator[Draft]:
    """Endless examples; `seen` holds the expressions given so far. None is given again, nor by another share."""
    while True:
        numbers = {name: rng.randint(12, 99) for name in "bc"} | {"a": rng.randint(100, 400)}
        if rng.random() < 0.5:
            numbers["a"] = rng.randint(12, 99)
        if not share.owns(f"{numbers['a']} {numbers['b']}"):
            continue
        if rng.random() < 0.3:
            expression, story = rng.choice(STORIES)
            text = story.format(**numbers)
        else:
            expression, wordings = rng.choice(FORMS)
            text = rng.choice(ASK).format(e=rng.choice(wordings).format(**numbers))
        expression = expression.format(**numbers)
        answer = printed(evaluate(expression))
        if expression in seen or answer.startswith("-"):
            continue
        seen.add(expression)
        value = int(answer)
        yield Draft(
            category=Category.ARITHMETIC,
            instruction=text,
            answer=answer,
            verifier="numeric",
            entities=(f"sum:{expression}",),
            golden_calls=(ToolCall(name="calculator", arguments={"expression": expression}),),
            tools_needed=("calculator",),
            topic="arithmetic",
            wrong=tuple(str(value + step) for step in (10, -1, 2)),
        )
