"""Renders docs/claims.md and the README's table: the claims, their measures, the date, the data and the cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.errors import DataError
from orchestra.evaluation.claims import arms, claims
from orchestra.evaluation.report import SIMULATED
from orchestra.types import Record

BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"
PAGE = "docs/claims.md"
SETS = {"dev": "development examples", "heldout": "held-out examples", "test": "sealed test examples"}
"""What the page calls the examples that were measured on."""
SHOWN = (
    "accuracy",
    "cents an example",
    "seconds an example",
    "utility",
    "preferences: use of X under “prefer X”, over neutral",
    "preferences: use of X under “avoid X”, over neutral",
    "preferences: dollars under “cheap”, over neutral",
    "preferences: seconds under “fast”, over neutral",
    "prices: fall of an expert's share of calls from low to high price",
)
"""The rows of the side-by-side table that the README shows."""


class StageRun(Record):
    """One stage's run for one seed."""

    of: str
    """rules, seed 0, seed 0 · reward: outcome only, …"""
    stage: str
    minutes: float
    dollars: float | None
    """Spent in its episodes; None where there are none."""
    reused: bool
    """Taken from an earlier run of the command; `minutes` are those of that run."""


class Facts(Record):
    """What a reader must know of one `orchestra learn`."""

    date: str
    command: str
    commit: str
    """`+` after it: files differed from it."""
    cores: int
    load: float
    """Processes that wanted a core, on average over the minute before the command began: 0 on an idle machine."""
    profile: str
    price_date: str
    split: str = "heldout"
    """What was measured on: a key of `SETS`."""
    examples: int
    """Held-out examples."""
    probe_examples: int
    price_spread: float
    """An expert's high price over its list price, and that over its low one."""
    bootstrap: int
    simulated: bool
    seeds: tuple[int, ...]
    """Those that reached the end."""
    minutes: dict[str, float]
    """By seed: sft and grpo of the trained model."""
    changed: dict[str, str]
    """Parameters that differ from those committed, by `section.key`."""
    failures: tuple[str, ...]
    """One line for each seed or arm that failed."""
    parts: tuple[StageRun, ...]

    @property
    def dollars(self) -> float:
        return sum(part.dollars or 0.0 for part in self.parts)


def page(facts: Facts, found: Sequence[claims.Claim], details: str, rows: Sequence[arms.ArmRow]) -> str:
    """The whole of docs/claims.md.

    `rows`: every arm side by side; `details`: how each expert's share of calls follows its price (`claims.details`).
    """
    title = f"# Claims{f' ({SIMULATED})' if facts.simulated else ''}"
    parts = [
        title,
        f"Made by `{facts.command}` on {facts.date}; not written by hand. A claim holds when the mean over the seeds "
        "meets its bar.",
        *_failures(facts),
        "## Side by side",
        "Every arm attempts the same examples and probes. The base and the SFT model are what GRPO starts from; the "
        "others are GRPO with one reward each, from the same SFT models. In brackets: 95 % intervals over seeds and "
        "examples.",
        arms.markdown(rows, claims.show),
        "## Claims of ours",
        f"The intervals are corrected for {len(found)} claims (Bonferroni). A claim holds clearly when its whole "
        "interval meets the bar.",
        claims.markdown(found).strip(),
        "\n".join(_facts(facts)),
        "## Calls by price",
        details.strip(),
    ]
    parts += ["## Time and money", _parts_table(facts.parts)]
    return "\n\n".join(parts) + "\n"


def block(facts: Facts, found: Sequence[claims.Claim], rows: Sequence[arms.ArmRow]) -> str:
    """What the README shows between its markers: the arms side by side, then the first claims."""
    made = f", made with **{SIMULATED}**" if facts.simulated else ""
    lead = (
        f"{facts.date}, {_seeds(facts)}, {facts.examples:,} {SETS[facts.split]}{made}; {_minutes(facts)} on "
        f"{facts.cores} cores. Every claim, and how it was measured: [{PAGE}]({PAGE})."
    )
    table = arms.markdown([row for row in rows if row.name in SHOWN], claims.show, intervals=False)
    return "\n\n".join([lead, *_failures(facts), table, claims.headlines(found).strip()])


def refresh(text: str, new: str) -> str:
    """`text` with what lies between the markers replaced; `DataError` when they are not there exactly once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        fix = f"put {BEGIN} and {END} where the table belongs"
        raise DataError("no place for the claims table", where="README.md", fix=fix)
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{new.strip()}\n{END}{rest.partition(END)[2]}"


def changed(default: Mapping[str, Any], params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Leaves of `params` that differ from `default`, or that it lacks, as `new (old)` by dotted key."""
    found: dict[str, str] = {}
    for key, value in params.items():
        before = default.get(key)
        if isinstance(value, Mapping):
            found |= changed(before if isinstance(before, Mapping) else {}, value, f"{prefix}{key}.")
        elif value != before:
            found[f"{prefix}{key}"] = f"{value} (default {before})"
    return found


def _facts(facts: Facts) -> list[str]:
    notes = [
        f"{_seeds(facts).capitalize()} (`sft.seed` and `grpo.seed` together), profile {facts.profile}; from "
        f"the shipped base to the result (sft and grpo): {_minutes(facts)} on a "
        f"machine of {facts.cores} cores; "
        f"{facts.load:.1f} other processes used a core when the command began.",
        f"{facts.examples:,} {SETS[facts.split]}, prices of {facts.price_date}, greedy; probes on the first "
        f"{facts.probe_examples:,} topic examples, low and high prices {facts.price_spread:g} times below and above "
        f"list; 95 % intervals over seeds and examples, {facts.bootstrap:,} resamples.",
        f"${facts.dollars:,.2f} spent{' (simulated)' if facts.simulated else ''} on the episodes of training and "
        "evaluation, the models' own tokens included. The rules' lessons and the safety set come on top.",
        f"Commit {facts.commit or 'unknown'}{': files differed from it' if facts.commit.endswith('+') else ''}.",
        "Parameters that differ from those committed: "
        + ("; ".join(f"`{key}` {how}" for key, how in facts.changed.items()) or "none")
        + ".",
    ]
    if facts.simulated:
        notes.insert(
            0, f"Made with {SIMULATED}: their answers are decided by a hash at published accuracies and prices."
        )
    return [f"- {note}" for note in notes]


def _failures(facts: Facts) -> list[str]:
    return ["\n".join(f"**Failed:** {line}" for line in facts.failures)] if facts.failures else []


def _seeds(facts: Facts) -> str:
    return f"training seed{'s' if len(facts.seeds) != 1 else ''} {', '.join(map(str, facts.seeds)) or 'none'}"


def _minutes(facts: Facts) -> str:
    return f"{', '.join(f'{minutes:.1f}' for minutes in facts.minutes.values()) or 'no'} minutes"


def _parts_table(parts: Sequence[StageRun]) -> str:
    lines = ["| of | stage | minutes | dollars | |", "| --- | --- | ---: | ---: | --- |"]
    for part in parts:
        dollars = "—" if part.dollars is None else f"{part.dollars:,.2f}"
        again = "an earlier run's" if part.reused else ""
        lines.append(f"| {part.of} | {part.stage} | {part.minutes:.1f} | {dollars} | {again} |")
    minutes, total = sum(part.minutes for part in parts), sum(part.dollars or 0.0 for part in parts)
    lines.append(f"| all | | {minutes:.1f} | {total:,.2f} | |")
    return "\n".join(lines)
