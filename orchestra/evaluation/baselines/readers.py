"""Rivals that read: routers that take the user's preference from its words, as the orchestrator does."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property

from orchestra.evaluation.baselines.base import baseline, tuned_baseline
from orchestra.evaluation.baselines.fixed import STRANGER, described_match, subject_of
from orchestra.evaluation.baselines.knowledge import Knowledge
from orchestra.evaluation.baselines.reading import Chances, NeighbourChances, Reading, TableChances
from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.policies.scripted import ChooseExpert, expert_answers
from orchestra.types import ToolSpec

DOLLAR_WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
"""How much more or less than the user's own weight a dollar counts: the frontier of a router that reads."""
AGREE = 2
"""Experts of one answer that settle a question."""

Plan = Callable[[list[ToolSpec], str | None], ToolSpec]
"""The expert to ask of those given, for a question of a subject."""


@tuned_baseline("logistic_reader", knobs=DOLLAR_WEIGHTS, rival="a logistic regression that reads", needs="lessons")
def logistic_reader(knowledge: Knowledge, dollar_weight: float = 1.0) -> ChooseExpert:
    """Asks the expert of greatest expected utility, by a logistic regression over what the table of tools shows."""
    return _reader(knowledge, lambda reading: TableChances(reading.lessons, "logistic"), dollar_weight)


@tuned_baseline("boosting_reader", knobs=DOLLAR_WEIGHTS, rival="gradient boosting that reads", needs="lessons")
def boosting_reader(knowledge: Knowledge, dollar_weight: float = 1.0) -> ChooseExpert:
    """The same, by gradient-boosted trees."""
    return _reader(knowledge, lambda reading: TableChances(reading.lessons, "boosting"), dollar_weight)


@tuned_baseline("knn_reader", knobs=DOLLAR_WEIGHTS, rival="a kNN router that reads", needs="lessons")
def knn_reader(knowledge: Knowledge, dollar_weight: float = 1.0) -> ChooseExpert:
    """The same, by the outcomes of the nearest training questions."""
    return _reader(knowledge, lambda reading: NeighbourChances(reading.lessons), dollar_weight)


@baseline("best_plan", needs="lessons")
def best_plan(knowledge: Knowledge) -> ChooseExpert:
    """For each kind of preference, the one simple plan that earned most on the training questions of that kind."""
    learned = _Plans(Reading(knowledge))

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        example = conversation.example
        kind = learned.reading.preferences.read(example.preference.words, conversation.example.experts).kind
        return PLANS[learned.by_kind.get(kind, "cheapest")](left, subject_of(example.instruction))

    return choose


def agreed(conversation: Conversation) -> bool:
    """Whether two experts gave the same answer, or nobody is left to ask but those who did."""
    answers = Counter(_plain(answer) for answer in expert_answers(conversation))
    return bool(answers) and max(answers.values()) >= AGREE


@tuned_baseline("consensus", knobs=(1, 2, 3), rival="the consensus cascade", enough=agreed)
def consensus(knowledge: Knowledge, cheap_ones: float = 2) -> ChooseExpert:
    """Asks so many cheap suited experts, and the strongest where no two of them agree."""
    strength = knowledge.catalogue.strength

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        offered = conversation.example.experts
        asked = len(offered) - len(left)
        strongest = max(offered, key=lambda spec: (strength(spec.tool), -spec.call_usd))
        if asked >= cheap_ones:
            return strongest if strongest in left else None
        suited = _suited([spec for spec in left if spec is not strongest], subject_of(conversation.example.instruction))
        return min(suited, key=_price) if suited else (strongest if strongest in left else None)

    return choose


def _reader(knowledge: Knowledge, fit: Callable[[Reading], Chances], dollar_weight: float) -> ChooseExpert:
    reading, fitted = Reading(knowledge), list[Chances]()

    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        if not fitted:
            fitted.append(fit(reading))
        example, offered = conversation.example, conversation.example.experts
        preference = reading.preferences.read(example.preference.words, offered)

        def worth(spec: ToolSpec) -> float:
            chance = fitted[0].chance(example.instruction, spec, offered)
            return reading.worth(spec, chance, preference, dollar_weight)

        best = max(left, key=lambda spec: (worth(spec), -spec.call_usd, spec.name))
        # Whoever said that it is unsure costs nothing more; the next one must be worth its price.
        return best if len(left) == len(offered) or worth(best) > 0 else None

    return choose


def _cheapest(left: list[ToolSpec], subject: str | None) -> ToolSpec:
    return min(_suited(left, subject), key=_price)


def _fastest(left: list[ToolSpec], subject: str | None) -> ToolSpec:
    return min(_suited(left, subject), key=lambda spec: (spec.latency_s, spec.name))


def _matched(left: list[ToolSpec], subject: str | None) -> ToolSpec:
    return max(left, key=lambda spec: (described_match(subject, spec.description), -spec.call_usd, spec.name))


def _priciest(left: list[ToolSpec], subject: str | None) -> ToolSpec:
    return max(left, key=_price)


PLANS: dict[str, Plan] = {"cheapest": _cheapest, "fastest": _fastest, "matched": _matched, "priciest": _priciest}
"""Simple plans over the suited experts, by name."""


class _Plans:
    """The best plan of each kind of preference, learned at the first question."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    @cached_property
    def by_kind(self) -> Mapping[str, str]:
        earned: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for lesson in self.reading.lessons:
            offered = lesson.example.experts
            subject = subject_of(lesson.example.instruction)
            for name, plan in PLANS.items():
                spec = plan(offered, subject)
                worth = self.reading.worth(spec, lesson.right.get(spec.tool, 0.0), lesson.example.preference)
                earned[lesson.example.preference.kind][name].append(worth)
        return {
            kind: max(plans, key=lambda name: (sum(plans[name]) / len(plans[name]), name))
            for kind, plans in earned.items()
        }


def _suited(specs: list[ToolSpec], subject: str | None) -> list[ToolSpec]:
    """Those whose description names the subject or claims every one; all of them where none does."""
    return [spec for spec in specs if described_match(subject, spec.description) > STRANGER] or specs


def _price(spec: ToolSpec) -> tuple[float, str]:
    return float(spec.call_usd), spec.name


def _plain(answer: str) -> str:
    return " ".join(answer.lower().split()).rstrip(" .")
