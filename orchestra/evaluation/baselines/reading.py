"""What routers that read can learn: a preference from its words, and an expert's chance from what its row says."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from orchestra.errors import ConfigError
from orchestra.evaluation.baselines.fixed import GENERAL, SPECIALIST, STRANGER, described_match, subject_of
from orchestra.evaluation.baselines.knowledge import Knowledge, Lesson
from orchestra.evaluation.baselines.routers import Neighbours, strongest_unit
from orchestra.evaluation.outcomes import Unit
from orchestra.types import Example, Preference, ToolSpec

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

NAMED = "xnamed"
"""Stands for an expert's name in a sentence: which expert it is, the toolbox says."""
NEUTRAL = "neutral"


class Chances(Protocol):
    """Predicts how often an expert is right."""

    def chance(self, question: str, spec: ToolSpec, offered: Sequence[ToolSpec]) -> float: ...


@dataclass(frozen=True)
class _Weights:
    """The mean weights that training's users of one kind have."""

    outcome: float
    compute: float
    latency: float
    named: float
    """Of an expert that the sentence names."""
    others: float


class PreferenceReader:
    """Reads the kind of a preference from its words, by a logistic regression over word and letter n-grams.

    It learns from the sentences of training alone, as the orchestrator does. The vector P of a kind is training's mean.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline, make_union

        stated = [example for example in examples if example.preference.words]
        self._weights = _mean_weights(examples)
        self._model: Any = None
        if len({example.preference.kind for example in stated}) > 1:
            words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
            letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
            self._model = make_pipeline(make_union(words, letters), LogisticRegression(C=30.0, max_iter=2000))
            texts = [named_in(example.preference.words, example.experts)[0] for example in stated]
            self._model.fit(texts, [example.preference.kind for example in stated])
        self._read: dict[tuple[str, tuple[str, ...]], Preference] = {}

    def read(self, words: str, offered: Sequence[ToolSpec]) -> Preference:
        """The preference that the words state, for these experts."""
        key = (words, tuple(spec.name for spec in offered))
        if key not in self._read:
            kind = str(self._model.predict([named_in(words, offered)[0]])[0]) if words and self._model else NEUTRAL
            self._read[key] = self._vector(kind, words, offered)
        return self._read[key]

    def _vector(self, kind: str, words: str, offered: Sequence[ToolSpec]) -> Preference:
        weights = self._weights.get(kind) or _Weights(1.0, 0.0, 0.0, 0.0, 0.0)
        _, named = named_in(words, offered)
        given = {spec.name: weights.named if spec.name in named else weights.others for spec in offered}
        return Preference(
            kind=kind,
            words=words,
            outcome=weights.outcome,
            compute=weights.compute,
            latency=weights.latency,
            tools={name: weight for name, weight in given.items() if weight > 0},
        )


class TableChances:
    """An expert's chance from what a policy can see of it: description, price and seconds beside the others'."""

    def __init__(self, lessons: Sequence[Lesson], model: Literal["logistic", "boosting"]) -> None:
        import numpy as np

        rows, labels = [], []
        for lesson in lessons:
            offered = lesson.example.experts
            for spec in offered:
                if spec.tool in lesson.right:
                    rows.append(features(lesson.example.instruction, spec, offered))
                    labels.append(int(lesson.right[spec.tool] > 0))
        self._constant = labels[0] if labels and len(set(labels)) == 1 else None
        self._model = _classifier(model)
        if self._constant is None:
            self._model.fit(np.asarray(rows), labels)
        self._known: dict[tuple[float, ...], float] = {}

    def chance(self, question: str, spec: ToolSpec, offered: Sequence[ToolSpec]) -> float:
        if self._constant is not None:
            return float(self._constant)
        row = features(question, spec, offered)
        if row not in self._known:
            self._known[row] = float(self._model.predict_proba([row])[0][1])
        return self._known[row]


class NeighbourChances:
    """The kNN router's: how often the expert was right on the nearest training questions."""

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        self._neighbours = Neighbours(lessons)

    def chance(self, question: str, spec: ToolSpec, offered: Sequence[ToolSpec]) -> float:
        return self._neighbours.chances(question).get(spec.tool, 0.0)


@dataclass(frozen=True)
class Reading:
    """What a router that reads has learned from the training questions, each part at its first use."""

    knowledge: Knowledge

    @cached_property
    def lessons(self) -> Sequence[Lesson]:
        """Raises `ConfigError` when there are none."""
        if not self.knowledge.lessons:
            fix = "hand in training examples (take_lessons)"
            raise ConfigError("a router that reads has no training questions", where="evaluate.baselines", fix=fix)
        return self.knowledge.lessons

    @cached_property
    def preferences(self) -> PreferenceReader:
        return PreferenceReader([lesson.example for lesson in self.lessons])

    @cached_property
    def unit(self) -> Unit:
        """What utility counts dollars and seconds in; raises as `lessons` does."""
        assert self.lessons, "it raises where there are none"
        return strongest_unit(self.knowledge)

    def worth(self, spec: ToolSpec, chance: float, preference: Preference, dollar_weight: float = 1.0) -> float:
        """Expected utility of asking the expert; `dollar_weight` multiplies what dollars cost."""
        earned = chance * (preference.outcome + preference.tools.get(spec.name, 0.0))
        dollars = preference.compute * float(spec.call_usd) / self.unit.cost_usd
        seconds = preference.latency * spec.latency_s / self.unit.latency_s
        return earned - dollar_weight * dollars - seconds


def features(question: str, spec: ToolSpec, offered: Sequence[ToolSpec]) -> tuple[float, ...]:
    """Columns of the table for one expert: match, sort of description, price and seconds, their ranks, counts."""
    subject = subject_of(question)
    match = described_match(subject, spec.description)
    text = spec.description.lower()
    prices = sorted(float(one.call_usd) for one in offered)
    seconds = sorted(one.latency_s for one in offered)
    most = max(len(offered) - 1, 1)
    return (
        match,
        float(match == SPECIALIST),
        float(match == STRANGER),
        *(float(word in text) for word in GENERAL),
        math.log(max(float(spec.call_usd), 1e-6)),
        math.log(max(spec.latency_s, 1e-3)),
        prices.index(float(spec.call_usd)) / most,
        seconds.index(spec.latency_s) / most,
        float(len(offered)),
        float(subject is None),
    )


def _classifier(model: Literal["logistic", "boosting"]) -> Any:
    if model == "boosting":
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(max_iter=150, learning_rate=0.06, max_leaf_nodes=12, random_state=0)
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    return make_pipeline(StandardScaler(), PolynomialFeatures(2), LogisticRegression(C=1.0, max_iter=5000))


def _mean_weights(examples: Sequence[Example]) -> dict[str, _Weights]:
    """By kind. An expert is named when its name stands in the words."""
    found: dict[str, list[tuple[NDArray[float64], float, float]]] = defaultdict(list)
    import numpy as np

    for example in examples:
        wanted, offered = example.preference, example.experts
        _, names = named_in(wanted.words, offered)
        named = [wanted.tools.get(one.name, 0.0) for one in offered if one.name in names]
        others = [wanted.tools.get(one.name, 0.0) for one in offered if one.name not in names]
        base = np.asarray([wanted.outcome, wanted.compute, wanted.latency])
        found[wanted.kind].append((base, _mean(named), _mean(others)))
    weights = {}
    for kind, rows in found.items():
        outcome, compute, latency = (float(value) for value in np.mean([row[0] for row in rows], axis=0))
        by_name = _mean([row[1] for row in rows]), _mean([row[2] for row in rows])
        weights[kind] = _Weights(outcome, compute, latency, *by_name)
    return weights


def named_in(words: str, offered: Sequence[ToolSpec]) -> tuple[str, set[str]]:
    """The words with `NAMED` for each expert's name, and the experts named; `gpt-5` is not named by `gpt-5-mini`."""
    found = set()
    for spec in sorted(offered, key=lambda one: -len(one.name)):
        if spec.name in words:
            words = words.replace(spec.name, NAMED)
            found.add(spec.name)
    return words.lower(), found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
