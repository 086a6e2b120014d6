"""What the registry tells of a version is of its last evaluation."""

from pathlib import Path

from orchestra.promotion.lineage import tree
from tasks.platform.evidence import EVIDENCE, read
from tasks.platform.lineage import history, of_version
from tasks.platform.registry import ModelVersion, Registry
from tasks.platform.stage import Stage
from tasks.promote import promote
from tests.support.promotions import evaluated, hold_out, params


def metrics(version: ModelVersion) -> dict[str, str]:
    return {key: value for key, value in version.tags.items() if key.startswith("metric.")}


def test_a_version_that_is_evaluated_again_shows_the_new_figures_and_none_of_the_old(root: Path) -> None:
    registry = Registry(root, "orchestrator")
    promote(Stage.open("promote", root, params()))
    (first,) = registry.versions()
    registry.tag(first, {"metric.gone": "1", "metric.cost_usd": "9"})
    hold_out(root, 3)
    promote(evaluated(root))
    (again,) = registry.versions()
    found = read(again.tags[EVIDENCE])
    assert found is not None and found.data_hash == again.tags["heldout_hash"] != first.tags["heldout_hash"]
    told = {f"metric.{name}": f"{value:.6g}" for name, value in found.metrics.items() if value is not None}
    assert metrics(again) == told
    assert history(registry)[1][0][4] == f"{100 * float(told['metric.cost_usd']):.3f} ¢"


def test_the_prices_of_the_held_out_data_are_those_of_the_evaluation(root: Path) -> None:
    """A checkpoint may be older than the prices under which it was measured."""
    registry = Registry(root, "orchestrator")
    promote(Stage.open("promote", root, params()))
    (version,) = registry.versions()
    found = read(version.tags[EVIDENCE])
    assert found is not None
    registry.tag(version, {EVIDENCE: found.model_copy(update={"price_date": "2026-01-01"}).model_dump_json()})
    assert "prices of 2026-01-01" in "\n".join(tree(of_version(registry.versions()[0])))
