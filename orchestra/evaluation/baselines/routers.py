"""Routers to measure the orchestrator against: nearest neighbours over training questions, and a cascade by price."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from orchestra.errors import ConfigError
from orchestra.evaluation.baselines.base import tuned_baseline
from orchestra.evaluation.baselines.knowledge import Knowledge, Lesson
from orchestra.evaluation.outcomes import Outcome, Unit, utility
from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.policies.scripted import ChooseExpert
from orchestra.types import ToolKind, ToolSpec

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

NEIGHBOURS = 40
LAMBDAS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0)
"""Accuracy a dollar that λ is chosen among; 5 would give up 30 points to save 6 cents."""
PRICE_WEIGHTS = (0.0, 0.5, 2.0, 5.0, 10.0, 20.0, 50.0, 200.0)
"""λ along the router's frontier, accuracy a dollar."""
ASIDE = 5
"""Every fifth training question is set aside to choose λ on."""
ESCALATIONS = 3
"""With five turns an episode, no more experts can be asked and still be quoted."""


@tuned_baseline("knn_router", knobs=PRICE_WEIGHTS, rival="the kNN router", needs="lessons")
def knn_router(knowledge: Knowledge, price_weight: float | None = None) -> ChooseExpert:
    """Asks the expert of greatest predicted accuracy less λ · price (RouterBench, arXiv 2403.12031, kNN router).

    Predicted accuracy is how often an expert was right on the nearest training questions. λ (`price_weight`, accuracy
    per dollar) is chosen on training questions for the greatest utility. Unlike the published router this one asks on
    while replies are unsure and somebody left is worth the price; that makes it the stronger rival.
    Raises `ConfigError` at its first question when there were no lessons.
    """
    router = _Router(knowledge)

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        chance = router.neighbours.chances(conversation.example.instruction)
        first = not conversation.turns
        return pick(chance, left, router.price_weight if price_weight is None else price_weight, first=first)

    return choose


@tuned_baseline("cascade", knobs=(0, 1, 2, 3), rival="the cascade")
def cascade(knowledge: Knowledge, escalations: float = ESCALATIONS) -> ChooseExpert:
    """Asks the cheapest expert of the example; as long as the reply is unsure, the next more expensive one."""

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        experts = sum(spec.kind is ToolKind.EXPERT for spec in conversation.example.toolbox)
        if experts - len(left) > escalations:
            return None
        return min(left, key=lambda spec: (spec.call_usd, spec.name))

    return choose


def pick(chance: Mapping[str, float], left: Sequence[ToolSpec], price_weight: float, *, first: bool) -> ToolSpec | None:
    """The expert of greatest chance (by catalogue entry) less λ · price; None where asking on is not worth it."""
    if not left:
        return None

    def score(spec: ToolSpec) -> float:
        return chance.get(spec.tool, 0.0) - price_weight * float(spec.call_usd)

    best = max(left, key=lambda spec: (score(spec), -spec.call_usd, spec.name))
    return best if first or score(best) > 0 else None


class Neighbours:
    """Predicted accuracy of every expert from the nearest training questions, by cosine of TF-IDF words."""

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        import numpy as np
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._words = TfidfVectorizer(sublinear_tf=True)
        self._questions = self._words.fit_transform([lesson.example.instruction for lesson in lessons])
        self._experts = sorted({name for lesson in lessons for name in lesson.right})
        rows = [[lesson.right.get(name, np.nan) for name in self._experts] for lesson in lessons]
        self._right: NDArray[float64] = np.asarray(rows, dtype=np.float64)
        self._known: dict[str, dict[str, float]] = {}

    def chances(self, question: str) -> dict[str, float]:
        """By catalogue entry; 0 for an expert that no neighbour's outcome tells of."""
        import numpy as np

        if question not in self._known:
            near = (self._questions @ self._words.transform([question]).T).toarray()[:, 0]
            # Stable, so that ties break the same way on every machine.
            found = self._right[np.argsort(-near, kind="stable")[:NEIGHBOURS]]
            told = ~np.isnan(found)
            mean = np.where(told, found, 0.0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
            self._known[question] = dict(zip(self._experts, mean.tolist(), strict=True))
        return self._known[question]


class _Router:
    """What the kNN router learns, once, at its first question."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    @cached_property
    def neighbours(self) -> Neighbours:
        if not self._knowledge.lessons:
            fix = "hand in training examples (take_lessons)"
            raise ConfigError("the kNN router has no training questions", where="evaluate.baselines", fix=fix)
        return Neighbours(self._knowledge.lessons)

    @cached_property
    def price_weight(self) -> float:
        """λ of the greatest mean utility on questions set aside, with the neighbours among the others."""
        lessons = self._knowledge.lessons
        aside = lessons[::ASIDE]
        others = [lesson for index, lesson in enumerate(lessons) if index % ASIDE] or aside
        neighbours, measure = Neighbours(others), strongest_unit(self._knowledge)
        chances = [neighbours.chances(lesson.example.instruction) for lesson in aside]

        def worth(price_weight: float) -> float:
            played = [
                utility(
                    play(lesson, chance, price_weight, self._knowledge.max_turns), lesson.example.preference, measure
                )
                for lesson, chance in zip(aside, chances, strict=True)
            ]
            return sum(played)

        return max(LAMBDAS, key=lambda price_weight: (worth(price_weight), -price_weight))


def strongest_unit(knowledge: Knowledge) -> Unit:
    """Dollars and seconds of always-strongest a training example; what needs no expert counts as free."""
    strength = knowledge.catalogue.strength
    asked = [max(lesson.example.experts, key=lambda spec: strength(spec.tool)) for lesson in knowledge.lessons]
    share = knowledge.expert_share / len(asked)
    return Unit(
        cost_usd=max(sum(float(spec.call_usd) for spec in asked) * share, 1e-9),
        latency_s=max(sum(spec.latency_s for spec in asked) * share, 1e-9),
    )


def play(lesson: Lesson, chance: Mapping[str, float], price_weight: float, max_turns: int) -> Outcome:
    """What the router would reach on a training question, at expected price and seconds."""
    left, asked = lesson.example.experts, list[ToolSpec]()
    sure = False
    while not sure and len(asked) < max_turns - 1:
        spec = pick(chance, left, price_weight, first=not asked)
        if spec is None:
            break
        left.remove(spec)
        asked.append(spec)
        sure = spec.tool not in lesson.unsure
    weights = lesson.example.preference.tools
    return Outcome(
        example_id=lesson.example.id,
        solved=sure and lesson.right.get(asked[-1].tool) == 1.0,
        cost_usd=sum(float(spec.call_usd) for spec in asked),
        latency_s=sum(spec.latency_s for spec in asked),
        calls={spec.tool: 1 for spec in asked},
        preferred=sum(weights.get(spec.name, 0.0) for spec in asked) / len(asked) if asked else 0.0,
    )
