"""The preference-aware score (Eq. 5-6): what an episode is worth to the user who asked, against a reference episode."""

from orchestra.types import Episode, Preference

COST_UNIT_USD = 1e-4
"""Cost enters Eq. 5 in hundredths of a cent. `max(1, M)` makes the unit part of the formula: in whole dollars every
episode would cost less than 1 and the term would not see it. This unit is about the orchestrator's own tokens."""
LATENCY_UNIT_S = 1.0
"""Latency enters Eq. 5 in seconds, for the same reason."""


def preference_score(episode: Episode, reference: Episode, preference: Preference) -> float | None:
    """M̂ · P for a solved episode, 0 for an unsolved one; None when either verdict is unknown.

    M̂[k] = M[k] / max(1, M0[k]) for tool counts and the outcome, M0[k] / max(1, M[k]) for cost and latency, where M is
    the episode's and M0 the reference's (the SFT policy on the same example). Cost and latency are magnitudes here:
    the negatives of Eq. 1 would make the ratio grow with cost.
    """
    if not (episode.counted and reference.counted):
        return None
    if not episode.solved:
        return 0.0
    counts, before = episode.tool_counts, reference.tool_counts
    tools = sum(weight * counts.get(name, 0) / max(1, before.get(name, 0)) for name, weight in preference.tools.items())
    outcome = 1.0 / max(1.0, float(reference.solved))
    cost = _ratio(float(episode.cost_usd), float(reference.cost_usd), COST_UNIT_USD)
    latency = _ratio(episode.latency_s, reference.latency_s, LATENCY_UNIT_S)
    return tools + preference.outcome * outcome + preference.compute * cost + preference.latency * latency


def _ratio(measured: float, reference: float, unit: float) -> float:
    """M0 / max(1, M) in `unit`."""
    return (reference / unit) / max(1.0, measured / unit)
