"""Budgets that training examples are told, drawn between what their cheapest and most expensive expert cost."""

import math
import random
from collections.abc import Sequence
from decimal import Decimal

from orchestra.accounting.ledger import cost_of
from orchestra.config.schema import Rollout
from orchestra.types import EXACT, Example, Price, ToolKind, Usage

ROOM = 1.5
"""A call's worst case over its expected dollars, with which the loop compares a budget: at least 1.25."""
CENT = Decimal("0.0001")
"""Prompts show so many places: what is told is what is kept to."""


def with_budgets(examples: Sequence[Example], share: float, seed: int, limits: Rollout, price: Price) -> list[Example]:
    """`share` of the examples told a budget, by a draw of seed and id; the others, and those with one, as they are.

    The budget is log-uniform between one call of the cheapest and one of the most expensive expert, times `ROOM`; what
    the policy's own tokens of two turns cost at most is added.
    """
    usage = Usage(input_tokens=limits.max_tokens, output_tokens=limits.max_turn_tokens)
    own_usd = EXACT.multiply(cost_of(price.model_copy(update={"cached_input_per_million": None}), usage), Decimal(2))
    return [_told(example, share, random.Random(f"budget/{seed}/{example.id}"), own_usd) for example in examples]


def _told(example: Example, share: float, rng: random.Random, own_usd: Decimal) -> Example:
    costs = sorted(float(spec.call_usd) for spec in example.toolbox if spec.kind is ToolKind.EXPERT)
    if example.budget_usd is not None or rng.random() >= share or not costs or costs[0] <= 0:
        return example
    drawn = math.exp(rng.uniform(math.log(costs[0]), math.log(costs[-1])))
    budget = (own_usd + Decimal(str(ROOM * drawn))).quantize(CENT)
    return example.model_copy(update={"budget_usd": max(CENT, budget)})
