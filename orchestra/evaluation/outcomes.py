"""The outcome of an episode, as comparisons use it, and the utility that a user gets from it."""

from collections.abc import Mapping, Sequence

from orchestra.types import Episode, Example, Preference, Record


class Outcome(Record):
    """One episode without its tokens; a few hundred bytes."""

    example_id: str
    solved: bool | None
    """None: infrastructure failed, and the episode is left out."""
    cost_usd: float
    latency_s: float
    calls: dict[str, int]
    """Calls that ran, by catalogue entry: renamed tools count under the entry behind the name."""
    preferred: float = 0.0
    """Weight of the preferred tools (`Preference.tools`) averaged over the calls that ran; 0 without calls."""


class Unit(Record):
    """What utility counts dollars and seconds in: always-strongest's means per example, on the same examples."""

    cost_usd: float
    latency_s: float


def outcomes(episodes: Sequence[Episode], examples: Mapping[str, Example]) -> tuple[Outcome, ...]:
    """The episodes' outcomes, in order; `examples` by id."""
    return tuple(outcome(episode, examples[episode.example_id]) for episode in episodes)


def outcome(episode: Episode, example: Example) -> Outcome:
    """The outcome of one attempt at `example`."""
    entries = {spec.name: spec.tool for spec in example.toolbox}
    counts, calls = episode.tool_counts, dict[str, int]()
    for shown, count in counts.items():
        entry = entries.get(shown, "unknown")
        calls[entry] = calls.get(entry, 0) + count
    preferred = sum(example.preference.tools.get(shown, 0.0) * count for shown, count in counts.items())
    return Outcome(
        example_id=episode.example_id,
        solved=episode.solved if episode.counted else None,
        cost_usd=float(episode.cost_usd),
        latency_s=episode.latency_s,
        calls=calls,
        preferred=preferred / sum(counts.values()) if counts else 0.0,
    )


def unit(strongest: Sequence[Outcome]) -> Unit | None:
    """Always-strongest's means; None when it spent nothing or was not measured."""
    counted = [one for one in strongest if one.solved is not None]
    if not counted:
        return None
    cost = sum(one.cost_usd for one in counted) / len(counted)
    latency = sum(one.latency_s for one in counted) / len(counted)
    return Unit(cost_usd=cost, latency_s=latency) if cost > 0 and latency > 0 else None


def utility(one: Outcome, preference: Preference, measure: Unit) -> float:
    """solved · (p_outcome + preferred) - p_compute · dollars / unit - p_latency · seconds / unit.

    P is the example's own vector (Eq. 2), so users who ask for cheap weigh dollars more than users who ask for right.
    Eq. 2 normalises over the group of one policy's rollouts and Eq. 5 by a reference episode, so neither compares
    policies on a common scale; fixed units do. What an unsolved episode spent is spent all the same, and it earns
    nothing for the tools it used. `preferred` is a mean over calls, so calling a favourite twice earns no more.
    """
    earned = preference.outcome + one.preferred if one.solved else 0.0
    dollars, seconds = one.cost_usd / measure.cost_usd, one.latency_s / measure.latency_s
    return earned - preference.compute * dollars - preference.latency * seconds
