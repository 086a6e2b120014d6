"""A version that somebody registered by hand, in MLflow's pages, stops nothing."""

import shutil
from pathlib import Path

import pytest

from orchestra.errors import DataError
from tasks.explain import explained
from tasks.platform.pages import benchmarks
from tasks.platform.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry
from tasks.platform.stage import Stage
from tasks.promote import champion, promote
from tasks.records.leftovers import keepers
from tests.support.promotions import aliases, evaluated, params, train
from tests.support.worlds import ROOT


def test_a_version_without_a_checkpoint_is_left_out(root: Path) -> None:
    shutil.copy(ROOT / "params.yaml", root)
    promote(Stage.open("promote", root, params()))
    registry = Registry(root, "orchestrator")
    registry.client.create_model_version("orchestrator", source="file:///tmp/x")
    train(root, "grpo", 2)
    assert promote(evaluated(root)).promoted
    assert aliases(root) == {CANDIDATE: 3, CHAMPION: 3, PREVIOUS: 1}
    assert sorted(one.number for one in registry.versions()) == [1, 3]
    assert len(keepers(root, registry, 3).checkpoints) == 2 and benchmarks(registry)
    with pytest.raises(DataError, match="the registry has no version for 2"):
        explained(root, "2")


def test_as_champion_it_is_said_to_be_lost_and_is_replaced_by_nothing(root: Path) -> None:
    stage = Stage.open("promote", root, params())
    promote(stage)
    client = Registry(root, "orchestrator").client
    client.create_model_version("orchestrator", source="file:///tmp/x")
    client.set_registered_model_alias("orchestrator", CHAMPION, "2")
    with pytest.raises(DataError, match=r"champion \(version 2\) cannot serve: the kept checkpoint is gone"):
        champion(stage)
    refused = promote(stage)
    assert [check.name for check in refused.failed] == ["champion"] and "left no record" in refused.failed[0].reason
    assert aliases(root) == {CANDIDATE: 1, CHAMPION: 2, PREVIOUS: None}
