"""Which examples each round of GRPO plays."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from orchestra.config.schema import Grpo
from orchestra.errors import TrainingError
from orchestra.types import Category, Example


def training_rows(examples: Sequence[Example], settings: Grpo) -> list[dict[str, Any]]:
    """One epoch's rows: exactly as many examples as the rounds take, in a seeded order, repeated when there are few.

    Categories come in the shares of `settings.mix`, or as often as they are in `examples` when it is empty. Resuming
    replays the order only within the first epoch, so the whole training is one. An example that a round has already
    waits for the next where another one is left: its episodes would be copies, since their chances hang on its id.
    """
    need = settings.steps // settings.num_iterations * settings.examples_per_step
    by_category: defaultdict[Category, list[Example]] = defaultdict(list)
    for example in examples:
        by_category[example.category].append(example)
    shares = {c: settings.mix.get(c, 0.0) if settings.mix else len(each) for c, each in by_category.items()}
    if not any(shares.values()):
        fix = f"give one of these a share: {', '.join(by_category)}"
        raise TrainingError("no training example is of a category in it", where="params.yaml grpo.mix", fix=fix)
    streams = {c: _shuffled_for_ever(each, random.Random(f"{settings.seed}/{c}")) for c, each in by_category.items()}
    order = random.Random(settings.seed).choices(list(shares), list(shares.values()), k=need)
    waiting: dict[Category, list[str]] = {category: [] for category in streams}
    names: list[str] = []
    for start in range(0, need, settings.examples_per_step):
        taken: list[str] = []
        counts = Counter[Category]()
        for category in order[start : start + settings.examples_per_step]:
            others = taken if counts[category] < len(by_category[category]) else []
            taken.append(_next(waiting[category], streams[category], others))
            counts[category] += 1
        names += taken
    return [{"prompt": [{"role": "user", "content": "", "example_id": name}]} for name in names]


def _next(waiting: list[str], stream: Iterator[Example], taken: Sequence[str]) -> str:
    """The next id that is not taken; those that are wait."""
    for place, name in enumerate(waiting):
        if name not in taken:
            return waiting.pop(place)
    while (name := next(stream).id) in taken:
        waiting.append(name)
    return name


def _shuffled_for_ever(examples: Sequence[Example], rng: random.Random) -> Iterator[Example]:
    """Each example once, in a new order every time round."""
    while True:
        yield from rng.sample(examples, len(examples))
