"""The cost of a past run under the prices of another day: by component and policy, in exact decimals."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path

from pydantic import Field

from orchestra.accounting.ledger import at_price
from orchestra.config.schema import load_params
from orchestra.errors import DataError
from orchestra.evaluation.report import read_comparison
from orchestra.files.jsonl import parse_line, read_jsonl, stream_lines
from orchestra.rollout.policies.chat import PREFIX
from orchestra.text import aligned
from orchestra.tools.catalogue.catalogue import CatalogueFile, read_catalogue
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.types import EXACT, Charge, Component, Episode, Example, Price, Record, ToolSpec, Usd


class Costs(Record):
    """The same calls under three price lists."""

    calls: int = 0
    recorded_usd: Usd = Decimal(0)
    """As charged: under the prices that each example had drawn."""
    before_usd: Usd = Decimal(0)
    """Under the book's prices of the day of the run."""
    after_usd: Usd = Decimal(0)
    """Under the book's prices of the day asked for."""

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(
            calls=self.calls + other.calls,
            recorded_usd=EXACT.add(self.recorded_usd, other.recorded_usd),
            before_usd=EXACT.add(self.before_usd, other.before_usd),
            after_usd=EXACT.add(self.after_usd, other.after_usd),
        )


class Repriced(Record):
    """A run's costs; `components` and `policies` each add up to `total` exactly."""

    recorded_on: date
    as_of: date
    episodes: int = 0
    simulated: bool = False
    total: Costs = Costs()
    components: dict[Component, Costs] = Field(default_factory=dict)
    policies: dict[str, Costs] = Field(default_factory=dict)
    kept: dict[str, int] = Field(default_factory=dict)
    """Calls whose cost stands as recorded, by whom: the catalogue knows no price of theirs."""
    unexplained: int = 0
    """Calls that cost something else than the examples' prices make: perhaps they are not that run's examples."""


@dataclass(frozen=True)
class Repricer:
    """The prices of two days for one catalogue."""

    file: CatalogueFile
    book: PriceBook
    recorded_on: date
    as_of: date

    def run(self, episodes: Iterable[Episode], examples: Mapping[str, Example]) -> Repriced:
        """Every charge of every episode. Raises `ConfigError` where the book has no price on one of the days, and
        `DataError` for an example that is not there."""
        done = Repriced(recorded_on=self.recorded_on, as_of=self.as_of)
        count, simulated, unexplained, total = 0, False, 0, done.total
        components, policies, kept = dict(done.components), dict(done.policies), dict(done.kept)
        for episode in episodes:
            count, simulated = count + 1, simulated or episode.simulated
            example = examples.get(episode.example_id)
            if example is None:
                fix = "name the examples of that run: --examples FILE"
                raise DataError(f"no example {episode.example_id}", where="reprice", fix=fix)
            specs = {spec.name: spec for spec in example.toolbox}
            for charge in episode.charges:
                spec = None if charge.component is Component.POLICY else specs.get(charge.name)
                key = self._key(charge, spec, episode.policy)
                if key is None:
                    kept[charge.name] = kept.get(charge.name, 0) + 1
                known = spec is not None and _explained(charge, spec.price)
                # A fallback or a helper need not be among the tools that the example offers; a domain's tool must.
                unexplained += not known and (spec is not None or charge.component is Component.DOMAIN)
                costs = self._costs(charge, key, spec)
                total += costs
                components[charge.component] = components.get(charge.component, Costs()) + costs
                policies[episode.policy] = policies.get(episode.policy, Costs()) + costs
        return Repriced(
            recorded_on=self.recorded_on,
            as_of=self.as_of,
            episodes=count,
            simulated=simulated,
            total=total,
            components=components,
            policies=policies,
            kept=kept,
            unexplained=unexplained,
        )

    def _key(self, charge: Charge, spec: ToolSpec | None, policy: str) -> str | None:
        prompted = policy.startswith(PREFIX)
        if charge.component is Component.POLICY and not prompted:
            return self.file.policy_price
        if charge.component is Component.DOMAIN:
            return self.file.domain_tool.price
        # A fallback, or a tool at work for an expert, may be one that the example does not offer.
        name = charge.name if spec is None else spec.tool
        if charge.component is Component.POLICY:
            name = policy.removeprefix(PREFIX)
        entry = self.file.tools.get(name)
        return None if entry is None else entry.price

    def _costs(self, charge: Charge, key: str | None, spec: ToolSpec | None) -> Costs:
        cost = charge.cost_usd
        if key is None:
            return Costs(calls=1, recorded_usd=cost, before_usd=cost, after_usd=cost)
        before, after = self.book.at(key, self.recorded_on), self.book.at(key, self.as_of)
        # A rule's own tokens and a replayed reply are free whatever the prices: a call that was free in spite of them.
        if not cost and at_price(charge, spec.price if spec is not None else before):
            return Costs(calls=1)
        drawn = None if spec is None else spec.price
        return Costs(
            calls=1,
            recorded_usd=cost,
            before_usd=at_price(charge, before, drawn),
            after_usd=at_price(charge, after, drawn),
        )


def _explained(charge: Charge, price: Price) -> bool:
    return charge.cost_usd in (0, price.per_call, at_price(charge, price))


def lines(done: Repriced) -> list[str]:
    """A table for a person: dollars to a hundredth of a cent; the exact ones are in the JSON."""
    simulated = ", simulated experts" if done.simulated else ""
    head: tuple[str, ...] = ("", "calls", "recorded", f"list {done.recorded_on}", f"list {done.as_of}", "change")
    rows = [head]
    rows += [_row(component, costs) for component, costs in done.components.items()]
    rows += [_row(f"policy {policy}", costs) for policy, costs in done.policies.items()]
    rows.append(_row("total", done.total))
    text = [f"{done.episodes} episodes{simulated}; US dollars", *aligned(rows, numbers=True)]
    text += [
        f"{calls} calls of {name} as recorded: the catalogue knows no price of it" for name, calls in done.kept.items()
    ]
    if done.unexplained:
        what = "calls did not cost what the examples' prices make: are these the run's own examples (--examples)?"
        text.append(f"warning: {done.unexplained} {what}")
    return text


def _row(name: str, costs: Costs) -> tuple[str, ...]:
    dollars = (f"{value:.4f}" for value in (costs.recorded_usd, costs.before_usd, costs.after_usd))
    change = costs.after_usd / costs.before_usd - 1 if costs.before_usd else None
    return (name, str(costs.calls), *dollars, "" if change is None else f"{change:+.1%}")


def repriced(root: Path, run: Path, day: date, examples: Path, policy: str | None, *, as_json: bool) -> str:
    """The costs of the run in that folder or episodes file, as a table or as JSON."""
    world = load_params(root / "params.yaml").world
    file = run / "episodes.jsonl" if run.is_dir() else run
    told = file.with_name("comparison.json")
    held = read_comparison(told).price_date if told.is_file() else world.price_date
    book, catalogue = PriceBook.load(root / world.prices), read_catalogue(root / world.catalogue)
    by_id = {example.id: example for example in read_jsonl(examples, Example, fix="--examples names the file")}

    names = set[str]()

    def episodes() -> Iterator[Episode]:
        for number, line in stream_lines(file, fix="name a folder with episodes.jsonl, or a file of episodes"):
            episode = parse_line(line, Episode)
            if isinstance(episode, str):
                raise DataError(episode, where=f"{file}:{number}", fix="name a file of episodes")
            names.add(episode.policy)
            if policy is None or episode.policy == policy:
                yield episode

    done = Repricer(catalogue, book, date.fromisoformat(held), day).run(episodes(), by_id)
    if policy is not None and policy not in names:
        known = ", ".join(sorted(names)) or "none"
        raise DataError(f"no policy named {policy}", where=str(file), fix=f"one of: {known}")
    return done.model_dump_json(indent=2) if as_json else "\n".join(lines(done))
