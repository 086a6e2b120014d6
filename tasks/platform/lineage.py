"""The lineage and the history of versions, as the registry knows them."""

from collections.abc import Mapping
from datetime import UTC, datetime

from orchestra.promotion.lineage import Node
from orchestra.promotion.sections import Table
from tasks.platform.evidence import EVIDENCE, read
from tasks.platform.registry import CANDIDATE, CHAMPION, PREVIOUS, PROMOTED, ROLLED_BACK, ModelVersion, Registry

MOST = 20
"""Versions that a history shows."""


def of_version(version: ModelVersion, decision: str = "") -> Node:
    """Decision → evaluation and checkpoint → data, code and base."""
    tags = version.tags
    found = read(tags.get(EVIDENCE, ""))
    data = Node(what="training data", digest=tags.get("data_hash", ""))
    code = Node(what="code", said="commit", digest=tags.get("git_commit", "") or "none")
    base = Node(what="base", said=tags.get("base", "not known"))
    profile = Node(what="profile", said=tags.get("profile", "not known"))
    checkpoint = Node(what="checkpoint", digest=version.checkpoint_hash, of=(data, base, code, profile))
    heldout = Node(
        what="held-out data, tools and code",
        said=f"prices of {tags.get('price_date', 'an unknown day') if found is None else found.price_date}",
        digest=tags.get("heldout_hash", ""),
    )
    figures = {} if found is None else found.metrics
    said = ", ".join(
        f"{name} {value:.4g}" for name in ("accuracy", "cost_usd") if (value := figures.get(name)) is not None
    )
    evaluation = Node(what="evaluation", said=said, of=(heldout, checkpoint))
    why = decision or tags.get("decision", "not decided")
    by = tags.get("approval.by", "")
    run = Node(what="MLflow run", said=version.decided_in or "none")
    return Node(what=f"version {version.number}", said=why + (f", by {by}" if by else ""), of=(evaluation, run))


def history(registry: Registry, decided: Mapping[int, str] | None = None) -> Table:
    """The newest versions: when, what was decided, the figures, and what they are now.

    `decided`: by version, what its tag does not say yet.
    """
    aliases = {alias: registry.at(alias) for alias in (CHAMPION, PREVIOUS, CANDIDATE)}
    rows = []
    for version in sorted(registry.versions(), key=lambda one: -one.number)[:MOST]:
        now = [alias for alias, one in aliases.items() if one is not None and one.number == version.number]
        if ROLLED_BACK in version.tags:
            now.append(f"taken out for version {version.tags[ROLLED_BACK]}")
        accuracy, usd = (_metric(version, name) for name in ("accuracy", "cost_usd"))
        decision = version.tags.get("decision", "Promoted" if PROMOTED in version.tags else "not decided")
        made = datetime.fromtimestamp(version.made_ms / 1000, UTC)
        rows.append(
            (
                str(version.number),
                f"{made:%Y-%m-%d %H:%M} UTC" if version.made_ms else "—",
                (decided or {}).get(version.number, decision),
                "—" if accuracy is None else f"{100 * accuracy:.1f} %",
                "—" if usd is None else f"{100 * usd:.3f} ¢",
                version.tags.get("git_commit", "")[:8] or "—",
                ", ".join(now),
            )
        )
    return ("version", "made", "decision", "solved", "per example", "commit", "now"), rows


def _metric(version: ModelVersion, name: str) -> float | None:
    text = version.tags.get(f"metric.{name}")
    return None if text is None else float(text)
