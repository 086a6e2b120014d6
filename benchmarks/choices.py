"""What reward teaches, with a table of chances in place of a network: `python -m benchmarks.choices`.

The real questions, replies, prices, choices and rewards; only the policy is a table, of a chance for each choice by the
user's preference and what is known so far. It tells in a minute whether a reward finds the choices that suit a user,
and which ones a network could hope to find. All chances are even at first, so that every effect is learned.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

from benchmarks.command import run_benchmark, usage
from benchmarks.reckoning import Asked, questions
from orchestra.config.schema import Grpo, load_params
from orchestra.evaluation.outcomes import Unit, outcome, utility
from orchestra.rewards.advantages import Group, step_advantages
from orchestra.rewards.group import group_rewards, weights
from orchestra.synthesis.preferences.sentences import NEUTRAL, stated
from orchestra.tools.base import UNSURE
from orchestra.training.choices import ANSWER, NAMED, OTHERS, SEARCH, WORDS, Candidate, carried_out
from orchestra.training.grpo.branching.means import ChoiceMeans
from orchestra.training.teacher import MOST_CALLS, candidates
from orchestra.types import Charge, Component, Episode, Example, StopReason, ToolCall, ToolKind, Turn, Verdict

KINDS = ("neutral", "cheap", "fast", "accurate", "prefer", "avoid")
CHOICES = (*WORDS, *OTHERS, NAMED, SEARCH)
STATES = ("first", "nothing", "unsure", "one", "agree", "differ", "found")
INSTEAD = ("cheapest", ANSWER)
Key = tuple[str, str]
"""A kind of wish, and what is known so far."""
APART = {"spent": "solved", "homogeneity": "part", "liked": "use", "min_group_std": 0.01, "branch": None}
SETTINGS: dict[str, dict[str, object]] = {
    "outcome alone": {"reward": "outcome", "branch": None},
    "published Eq. 1-3": {"published": True},
    "absolute scale, no std": {**APART, "unit": "example", "scale": "none"},
    "absolute scale, the step's std": {**APART, "unit": "example", "scale": "batch"},
    "parts apart, of the solved": {
        **APART, "unit": "group", "among": "solved", "scale": "group", "normalise": "normalise_then_sum",
    },
    "as configured": {},
}  # fmt: skip
"""Rewards to compare, each a change of the profile's `grpo`. With its `branch` every choice of a turn is tried."""


@dataclass(frozen=True)
class Step:
    """One choice made, among those that could be carried out."""

    key: Key
    among: Sequence[str]
    chances: Sequence[float]
    chosen: int


class Table:
    """A policy of logits."""

    given: Sequence[str] = ()
    """The choices that an episode begins with."""

    def __init__(self) -> None:
        self.logits: defaultdict[Key, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def draw(self, key: Key, among: Sequence[str], rng: random.Random | None) -> Step:
        """A choice at random, or the likeliest without `rng`."""
        values = [self.logits[key][choice] for choice in among]
        powers = [math.exp(value - max(values)) for value in values]
        chances = [power / sum(powers) for power in powers]
        every = range(len(among))
        if self.given:
            first, *self.given = self.given
            return Step(key, among, chances, among.index(first))
        chosen = max(every, key=chances.__getitem__) if rng is None else rng.choices(every, chances)[0]
        return Step(key, among, chances, chosen)

    def learn(self, steps: Sequence[Step], advantage: float, rate: float) -> None:
        """One step along the policy gradient."""
        for step in steps:
            for index, choice in enumerate(step.among):
                gain = (index == step.chosen) - step.chances[index]
                self.logits[step.key][choice] += rate * advantage * gain


def known(said: Sequence[str], searched: bool, record: str | None) -> str:
    """As the thought of `orchestra.training.teacher` says it; `first` before anything is known."""
    if searched and record is not None:
        return "found"
    sure = Counter(text for text in said if text != UNSURE)
    if not sure:
        return "unsure" if said else "nothing" if searched else "first"
    if max(sure.values()) > 1:
        return "agree"
    return "one" if len(sure) == 1 else "differ"


def options(state: str, left: Sequence[Candidate], search: bool, calls: int) -> list[str]:
    """The choices that can be carried out."""
    marked, others = any(one.mark for one in left), any(not one.mark for one in left)
    found = [] if state == "first" else [ANSWER]
    if calls >= MOST_CALLS:
        return [ANSWER]
    for choice in CHOICES if left else (SEARCH,):
        fits = {SEARCH: search, NAMED: marked}.get(choice, choice not in OTHERS or (marked and others))
        found += [choice] if fits else []
    return found or [ANSWER]


def play(row: Asked, example: Example, table: Table, rng: random.Random | None) -> tuple[Episode, list[Step]]:
    """One episode, as the loop would record it, without tokens."""
    tool = next((spec for spec in example.toolbox if spec.tool == SEARCH), None)
    listed, said, turns = candidates(row.catalogue, example), list[str](), list[Turn]()
    steps, searched = list[Step](), False
    while True:
        names = {turn.call.name for turn in turns if turn.call is not None}
        left = [one for one in listed if one.spec.name not in names]
        state = known(said, searched, row.record)
        among = options(state, left, tool is not None and not searched, len(turns))
        steps.append(table.draw((example.preference.kind, state), among, rng))
        choice = among[steps[-1].chosen]
        one = carried_out(choice, left)
        spec = tool if choice == SEARCH else one.spec if one is not None else None
        if spec is None:
            break
        searched = searched or spec is tool
        said += [row.replies[spec.name]] if spec is not tool else []
        spent = Charge(component=Component.EXPERT, name=spec.name, cost_usd=spec.call_usd, latency_s=spec.latency_s)
        turns.append(Turn(ids=(), text="", call=ToolCall(name=spec.name), charges=(spent,)))
    sure = [text for text in said if text != UNSURE]
    answer = row.record if searched and row.record else max(reversed(sure), key=sure.count) if sure else UNSURE
    verdict = Verdict(solved=answer == example.verifier.answer, why="")
    made = Episode(
        example_id=example.id, policy="table", prompt_ids=(), turns=tuple(turns), stop=StopReason.ANSWERED,
        answer=answer, verdict=verdict,
    )  # fmt: skip
    return made, steps


def wished(example: Example, kind: str, rng: random.Random) -> Example:
    """The example of a user who wishes that."""
    experts = [spec.name for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
    preference = NEUTRAL if kind == "neutral" else stated(kind, "", experts, rng.choice(experts))
    return example.model_copy(update={"preference": preference})


def trained(rows: Sequence[Asked], settings: Grpo, steps: int, rate: float, seed: int) -> Table:
    """A table after so many steps of 16 groups of 8; every second user wishes for something."""
    rng, table, branch = random.Random(seed), Table(), settings.branch
    means = ChoiceMeans(branch.mean_of, branch.own) if branch is not None and branch.mean_of else None
    for _ in range(steps):
        played = []
        for row in rng.choices(rows, k=settings.examples_per_step):
            kind = rng.choice(KINDS[1:]) if rng.random() < 0.5 else KINDS[0]
            example = wished(row.example, kind, rng)
            if settings.branch is None:
                played.append((example, [play(row, example, table, rng) for _ in range(settings.group_size)]))
            else:
                played.append((example, branched(row, example, table, settings, rng)))
        groups = []
        for example, group in played:
            wish, parts, box = example.preference, settings.reward, example.toolbox
            rewards = group_rewards([e for e, _ in group], wish, parts=parts, shape=settings, toolbox=box)
            groups.append(Group(rewards, weights(wish, parts, settings, box)))
        found = step_advantages(
            groups, min_std=settings.min_group_std, clip=settings.advantage_clip, normalise=settings.normalise,
            shape=settings,
        )  # fmt: skip
        if means is not None:
            found = smoothed(means, played, found)
        for (_, group), advantages in zip(played, found, strict=True):
            for (_, made), advantage in zip(group, advantages, strict=True):
                table.learn(made, advantage, rate)
    return table


def smoothed(
    means: ChoiceMeans, played: Sequence[tuple[Example, list[tuple[Episode, list[Step]]]]], found: list[list[float]]
) -> list[list[float]]:
    """The advantages of branched groups over the groups before (`Branch.mean_of`)."""
    groups = []
    for (_, group), advantages in zip(played, found, strict=True):
        gains = {made[0].among[0]: advantage for (_, made), advantage in zip(group, advantages, strict=True)}
        groups.append((group[0][1][0].key, gains))
    return [list(gains.values()) for gains in means.learn(groups)]


def branched(
    row: Asked, example: Example, table: Table, settings: Grpo, rng: random.Random
) -> list[tuple[Episode, list[Step]]]:
    """An episode for each choice of one turn, greedy after it; only that choice learns, as often as any other."""
    assert settings.branch is not None
    _, path = play(row, example, table, rng)
    wanted = rng.random() < settings.branch.later
    if wanted and settings.branch.starts == "even":
        table.given = [rng.choice(path[0].among)]
        _, path = play(row, example, table, rng)
    later = wanted and len(path) > 1
    turn = rng.randrange(1, len(path)) if later else 0
    step = path[turn]
    likely = [c for c, p in zip(step.among, step.chances, strict=True) if p >= settings.branch.min_chance]
    found = []
    for choice in rng.sample(likely, min(len(likely), settings.group_size)):
        table.given = [*(one.among[one.chosen] for one in path[:turn]), choice]
        episode, steps = play(row, example, table, None)
        one = steps[turn]
        # Its own logit moves by the advantage alone: the natural gradient.
        found.append((episode, [Step(one.key, [choice], [0.0], 0)]))
    return found


class Fixed(Table):
    """A policy of one choice for each key; where that cannot be carried out, the first of `INSTEAD` that can."""

    def __init__(self, choices: Mapping[Key, str]) -> None:
        super().__init__()
        self.choices = dict(choices)

    def draw(self, key: Key, among: Sequence[str], rng: random.Random | None) -> Step:
        chosen = next((one for one in (self.choices[key], *INSTEAD) if one in among), among[0])
        return Step(key, among, [1.0] * len(among), among.index(chosen))


def optimum(rows: Sequence[Asked], kind: str, unit: Unit) -> dict[Key, str]:
    """The choice for each state that together earn most: coordinate ascent from asking once, and from asking on."""

    def worth(choices: Mapping[Key, str]) -> float:
        rng, table, found = random.Random(9), Fixed(choices), list[float]()
        for row in rows:
            asked = wished(row.example, kind, rng)
            found.append(utility(outcome(play(row, asked, table, None)[0], asked), asked.preference, unit))
        return mean(found)

    tried = [*WORDS, SEARCH, ANSWER, *([*OTHERS, NAMED] if kind in ("prefer", "avoid") else [])]
    ends = []
    for first, one in (("cheapest", ANSWER), (SEARCH, "best")):
        given = {"first": first, "one": one, "agree": ANSWER, "found": ANSWER}
        current = {(kind, state): given.get(state, "best") for state in STATES}
        earned, before = worth(current), -math.inf
        while earned > before:
            before = earned
            for state, choice in product(STATES, tried):
                change = current | {(kind, state): choice}
                # Less than that is chance.
                if change != current and (changed := worth(change)) > earned + 0.001:
                    current, earned = change, changed
        ends.append((earned, current))
    return max(ends, key=lambda end: end[0])[1]


def told(name: str, table: Table, rows: Sequence[Asked], unit: Unit) -> str:
    """Accuracy, cents and utility without a wish, and what each wish changes; greedy."""
    means: dict[str, tuple[float, float, float, float]] = {}
    worth = []
    for kind in KINDS:
        rng, found = random.Random(9), []
        for row in rows:
            asked = wished(row.example, kind, rng)
            experts = [spec for spec in asked.toolbox if spec.kind is ToolKind.EXPERT]
            # The expert that a wish names, or would have named.
            named = next((s.name for s in experts if (s.name in asked.preference.tools) == (kind == "prefer")), "")
            named = named if kind in ("prefer", "avoid") else rng.choice(experts).name
            episode, _ = play(row, asked, table, None)
            one = outcome(episode, asked)
            found.append((float(episode.solved), one.cost_usd, one.latency_s, float(named in episode.tool_counts)))
            worth.append((kind, utility(one, asked.preference, unit)))
        columns = [mean(column) for column in zip(*found, strict=True)]
        means[kind] = (columns[0], columns[1], columns[2], columns[3])
    neutral = means["neutral"]
    by_kind = {kind: mean(value for k, value in worth if k == kind) for kind in KINDS}
    cells = [
        f"{100 * neutral[0]:.1f}", f"{100 * neutral[1]:.2f}",
        f"{means['cheap'][1] / neutral[1]:.2f}", f"{means['fast'][2] / neutral[2]:.2f}",
        f"{means['prefer'][3] / neutral[3]:.2f}", f"{means['avoid'][3] / neutral[3]:.2f}",
        *(f"{by_kind[kind]:.3f}" for kind in KINDS), f"{mean(by_kind.values()):.3f}",
    ]  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


def likeliest(table: Table) -> str:
    """The likeliest choice by wish and state."""
    lines = []
    for kind in KINDS[:4]:
        states = ("first", "one", "agree", "differ", "unsure")
        best = {
            state: max(table.logits[kind, state].items(), key=lambda one: one[1], default=("-", 0)) for state in states
        }
        lines.append(f"    {kind}: " + ", ".join(f"{state} → {choice}" for state, (choice, _) in best.items()))
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Print a row for each reward."""
    parser = usage(__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--choices", action="store_true", help="print the likeliest choices as well")
    parser.add_argument("--optimum", action="store_true", help="print the best table instead (about three minutes)")
    options = parser.parse_args(given)
    root = Path(__file__).parents[1]
    params = load_params(root / "params.yaml")
    rows, aside = (questions(params, root, count, seed) for count, seed in ((2000, 11), (600, 12)))
    strongest = [(float(row.strongest.call_usd), row.strongest.latency_s) for row in aside]
    unit = Unit(cost_usd=mean(usd for usd, _ in strongest), latency_s=mean(seconds for _, seconds in strongest))
    print(
        "| reward | right % | cents | cheap | fast | prefer | avoid | "
        + " | ".join(f"u {k}" for k in KINDS)
        + " | u all |"
    )
    print("|---|" + "---:|" * (7 + len(KINDS)))
    print(told("none: even chances", Table(), aside, unit))
    if options.optimum:
        best: dict[Key, str] = {}
        for kind in KINDS:
            best |= optimum(rows[:700], kind, unit)
            print(f"    {kind}: " + ", ".join(f"{state} → {best[kind, state]}" for state in STATES), flush=True)
        print(told("the best table", Fixed(best), aside, unit))
        return
    for name, changes in SETTINGS.items():
        if options.only not in name:
            continue
        settings = Grpo.model_validate(params.grpo.model_dump() | changes)
        table = trained(rows, settings, options.steps, options.rate, options.seed)
        print(told(name, table, aside, unit), flush=True)
        if options.choices:
            print(likeliest(table))


if __name__ == "__main__":
    run_benchmark(main)
