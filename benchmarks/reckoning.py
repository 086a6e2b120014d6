"""What the world pays for: scripted strategies on topic questions, without a model; `python -m benchmarks.reckoning`.

The experts' real replies to the questions of a seed, with the toolboxes and prices that training would see.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.command import run_benchmark, usage
from orchestra.config.schema import Params, load_params
from orchestra.evaluation.outcomes import Outcome, Unit, utility
from orchestra.synthesis.dataset.generate import generate
from orchestra.synthesis.preferences.sentences import WEIGHTS, weighed
from orchestra.tools.base import UNSURE
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.toolkit import Toolkit
from orchestra.training.choices import ORDER, POOR
from orchestra.training.teacher import candidates
from orchestra.types import Category, Example, ToolKind, ToolSpec

KINDS = ("neutral", "cheap", "fast", "accurate")


@dataclass
class Asked:
    """One question, and the experts and replies so far."""

    example: Example
    catalogue: Catalogue
    replies: dict[str, str]
    """What every expert of the toolbox would say."""
    record: str | None
    """What a search would find; None: nothing."""
    said: list[str] = field(default_factory=list)
    asked: list[ToolSpec] = field(default_factory=list)

    @property
    def experts(self) -> list[ToolSpec]:
        """Those described as suited, cheapest first."""
        return [one.spec for one in candidates(self.catalogue, self.example)]

    def grade(self, spec: ToolSpec) -> int:
        found = {one.spec.name: one.grade for one in candidates(self.catalogue, self.example)}
        return ORDER.index(found.get(spec.name, POOR))

    def chance(self, spec: ToolSpec, *, knows_hard: bool) -> float:
        """How often such an expert is right in the subject, or on hard and other questions of it."""
        behaviour, topic = self.catalogue.entry(spec.tool).simulated, self.example.topic or ""
        assert behaviour is not None
        if not knows_hard:
            return behaviour.skills[topic]
        return behaviour.chance(topic, self.catalogue.hard_share, hard=self.example.hard)

    def ask(self, spec: ToolSpec) -> str:
        self.asked.append(spec)
        self.said.append(self.replies[spec.name])
        return self.said[-1]

    @property
    def left(self) -> list[ToolSpec]:
        names = {spec.name for spec in self.asked}
        return [spec for spec in self.experts if spec.name not in names]

    @property
    def strongest(self) -> ToolSpec:
        every = [spec for spec in self.example.toolbox if spec.kind is ToolKind.EXPERT]
        return max(every, key=lambda spec: self.catalogue.strength(spec.tool))

    def agreed(self) -> bool:
        sure = Counter(text for text in self.said if text != UNSURE)
        return any(count > 1 for count in sure.values())

    def answer(self) -> str:
        """The most frequent reply, the last of equals."""
        sure = [text for text in self.said if text != UNSURE]
        return max(reversed(sure), key=sure.count) if sure else UNSURE


Strategy = Callable[[Asked], str]


def always_strongest(one: Asked) -> str:
    return one.ask(one.strongest)


def always_cheapest(one: Asked) -> str:
    every = [spec for spec in one.example.toolbox if spec.kind is ToolKind.EXPERT]
    return one.ask(min(every, key=lambda spec: spec.call_usd))


def cheapest_suited(one: Asked) -> str:
    return one.ask(one.experts[0])


def fastest_suited(one: Asked) -> str:
    return one.ask(min(one.experts, key=lambda spec: spec.latency_s))


def single_shot(usd_worth: float, second_worth: float, *, knows_hard: bool) -> Strategy:
    """The one expert of greatest chance less its dollars and seconds."""

    def play(one: Asked) -> str:
        def worth(spec: ToolSpec) -> float:
            chance = one.chance(spec, knows_hard=knows_hard)
            return chance - usd_worth * float(spec.call_usd) - second_worth * spec.latency_s

        every = [spec for spec in one.example.toolbox if spec.kind is ToolKind.EXPERT]
        return one.ask(max(every, key=worth))

    return play


def ask_on(one: Asked) -> str:
    """The cheapest suited; while the reply is unsure, the next."""
    for spec in one.experts:
        if one.ask(spec) != UNSURE:
            break
    return one.answer()


def two_then_strongest(one: Asked) -> str:
    return _until_agreed(one, one.experts[:2])


def three_then_strongest(one: Asked) -> str:
    return _until_agreed(one, one.experts[:3])


def two_then_third(one: Asked) -> str:
    """Like asking two, and a third where they differ; the strongest only if it is that third."""
    for spec in one.experts[:3]:
        one.ask(spec)
        if one.agreed():
            break
    return one.answer()


def agreed_below(cents: float) -> Strategy:
    """The cheapest first, and others until two agree; only the first may cost more than that."""

    def play(one: Asked) -> str:
        for spec in one.experts:
            if one.asked and 100 * float(spec.call_usd) > cents:
                break
            one.ask(spec)
            if one.agreed():
                break
        return one.answer()

    return play


def two_fastest(one: Asked) -> str:
    for spec in sorted(one.experts, key=lambda spec: spec.latency_s)[:2]:
        if one.ask(spec) != UNSURE:
            break
    return one.answer()


def searched(then: Strategy) -> Strategy:
    """First a search; where it finds nothing, the strategy."""

    def play(one: Asked) -> str:
        tool = next((spec for spec in one.example.toolbox if spec.tool == "search"), None)
        if tool is None:
            return then(one)
        one.asked.append(tool)
        return one.record if one.record is not None else then(one)

    return play


def everybody(one: Asked) -> str:
    for spec in one.experts:
        one.ask(spec)
    return one.answer()


def oracle(one: Asked) -> str:
    every = [spec for spec in one.example.toolbox if spec.kind is ToolKind.EXPERT]
    right = [spec for spec in every if one.replies[spec.name] == one.example.verifier.answer]
    return one.ask(min(right, key=lambda spec: spec.call_usd)) if right else UNSURE


def _until_agreed(one: Asked, few: Iterable[ToolSpec]) -> str:
    for spec in few:
        one.ask(spec)
        if one.agreed():
            return one.answer()
    if one.strongest not in one.asked:
        strongest = one.ask(one.strongest)
        return strongest if strongest != UNSURE else one.answer()
    return one.answer()


STRATEGIES: dict[str, Strategy] = {
    "always strongest": always_strongest,
    "always cheapest": always_cheapest,
    "cheapest suited": cheapest_suited,
    "fastest suited": fastest_suited,
    "ask on after unsure": ask_on,
    "two fastest, if unsure": two_fastest,
    "two cheap, third if they differ": two_then_third,
    "two cheap, strongest if they differ": two_then_strongest,
    "three cheap, strongest if all differ": three_then_strongest,
    "cheap ones until two agree, below 2 cents": agreed_below(2),
    "cheap ones until two agree, below 8 cents": agreed_below(8),
    "everybody suited, majority": everybody,
    "search, then two cheap and strongest": searched(two_then_strongest),
    "search, then until two agree, below 2 cents": searched(agreed_below(2)),
    "search, then until two agree, below 8 cents": searched(agreed_below(8)),
    "oracle": oracle,
}


def questions(params: Params, root: Path, count: int, seed: int) -> list[Asked]:
    """Topic questions of a seed with every expert's reply."""
    changes = {"seed": seed, "train_examples": count, "heldout_examples": 1, "renamed_share": 0.0}
    mix = {Category.TOPIC: 1.0}
    synthesize = params.synthesize.model_copy(update=changes | {"mix": mix, "preference_share": 0.0})
    toolkit = Toolkit.from_params(params, root)
    made = generate(params.model_copy(update={"synthesize": synthesize}), toolkit)
    toolkit, found = made.known_to(toolkit), {document.id for document in made.documents}
    rows = []
    for example in made.examples["train"]:
        experts = [spec for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
        replies = {spec.name: toolkit.expert(spec.tool).reply(example.instruction) for spec in experts}
        record = example.verifier.answer if f"topic-{example.entities[0]}" in found else None
        rows.append(Asked(example, toolkit.catalogue, replies, record))
    return rows


def played(strategy: Strategy, rows: Sequence[Asked]) -> list[Outcome]:
    """What the strategy reaches, at the prices and seconds that the toolbox shows."""
    found = []
    for row in rows:
        one = Asked(row.example, row.catalogue, row.replies, row.record)
        answer = strategy(one)
        found.append(
            Outcome(
                example_id=row.example.id,
                solved=answer == row.example.verifier.answer,
                cost_usd=sum(float(spec.call_usd) for spec in one.asked),
                latency_s=sum(spec.latency_s for spec in one.asked),
                calls=dict(Counter(spec.tool for spec in one.asked)),
            )
        )
    return found


def mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every)


def line(name: str, outcomes: Sequence[Outcome], unit: Unit) -> str:
    """Accuracy, cents, seconds, calls, and the utility of each kind of user."""
    worth = [mean(utility(one, weighed(kind, "", (), ()), unit) for one in outcomes) for kind in KINDS]
    told = [
        f"{100 * mean(bool(one.solved) for one in outcomes):.1f}",
        f"{100 * mean(one.cost_usd for one in outcomes):.2f}",
        f"{mean(one.latency_s for one in outcomes):.0f}",
        f"{mean(sum(one.calls.values()) for one in outcomes):.2f}",
        *(f"{value:.3f}" for value in worth),
    ]
    return f"| {name} | {' | '.join(told)} |"


def routers(rows: Sequence[Asked], unit: Unit, *, knows_hard: bool) -> dict[str, list[Outcome]]:
    """Single-shot routers, each tuned on these very rows to one kind of user."""
    best = {}
    for kind in KINDS:
        _, compute, latency = WEIGHTS[kind]
        tried = [
            played(
                single_shot(factor * compute / unit.cost_usd, factor * latency / unit.latency_s, knows_hard=knows_hard),
                rows,
            )
            for factor in (0.5, 1.0, 1.5)
        ]
        preference = weighed(kind, "", (), ())
        best[kind] = max(tried, key=lambda found: mean(utility(one, preference, unit) for one in found))
    return best


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = usage(__doc__)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args(given)
    root = Path(__file__).parents[1]
    rows = questions(load_params(root / "params.yaml"), root, options.examples, options.seed)
    strongest = played(always_strongest, rows)
    unit = Unit(cost_usd=mean(one.cost_usd for one in strongest), latency_s=mean(one.latency_s for one in strongest))
    print(f"| strategy | right % | cents | seconds | calls | {' | '.join(KINDS)} |")
    print("|---|" + "---:|" * (4 + len(KINDS)))
    for name, strategy in STRATEGIES.items():
        print(line(name, played(strategy, rows), unit))
    for words, knows in (("router by description and subject", False), ("router that knows hardness", True)):
        for kind, outcomes in routers(rows, unit, knows_hard=knows).items():
            print(line(f"{words}, for {kind}", outcomes, unit))


if __name__ == "__main__":
    run_benchmark(main)
