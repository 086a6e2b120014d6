"""A canary that fails: the version before it is champion again, whichever way the candidate came."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.files.jsonl import write_jsonl
from orchestra.serving.releases.release import Release
from orchestra.serving.releases.trial_run import CandidateWorse
from tasks.deploy import Wish, deploy
from tasks.platform.registry import CHAMPION, PREVIOUS, ROLLED_BACK, Registry
from tasks.platform.stage import Stage
from tasks.rollback import Move, rollback, switch
from tests.support.registries import make_workspace, register
from tests.support.worlds import example


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose champion is version 2, and version 1 the one before it."""
    root = tmp_path_factory.mktemp("made") / "w"
    make_workspace(root)
    (root / "data/validated").mkdir(parents=True)
    write_jsonl(root / "data/validated/heldout.jsonl", [example("e1")])
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        registry = register(root, (1, 2), ("", ""))
        for number, alias in ((1, PREVIOUS), (2, CHAMPION)):
            registry.point(alias, next(one for one in registry.versions() if one.number == number))
    return root


@pytest.fixture
def stage(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """There, no candidate passes its trial."""

    def worse(release: Release) -> None:
        raise CandidateWorse("1.40 times as long", where=f"version {release.candidate.version}")

    monkeypatch.setattr(Release, "run", worse)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Stage.open("promote", Path(shutil.copytree(made, tmp_path / "w")))


def tried(stage: Stage) -> dict[int, set[str]]:
    """The aliases of each version after the champion's canary, and whether it was taken out."""
    assert deploy(stage, wish=Wish(trial="canary")).outcome == "rolled_back"
    registry = Registry(stage.root, stage.params.promote.model_name)
    found = {one.number: {ROLLED_BACK} & set(one.tags) for one in registry.versions()}
    for alias, number in registry.aliases().items():
        found[number].add(alias)
    return found


def test_a_new_champion_that_fails_is_taken_out(stage: Stage) -> None:
    assert tried(stage) == {1: {CHAMPION}, 2: {PREVIOUS, ROLLED_BACK}}


@pytest.mark.parametrize("back", [rollback, lambda stage: switch(stage, 1)], ids=["rollback", "switch"])
def test_an_older_version_that_fails_gives_way_to_the_one_that_it_replaced(
    stage: Stage, back: Callable[[Stage], Move]
) -> None:
    assert back(stage).changed
    assert tried(stage) == {1: {PREVIOUS}, 2: {CHAMPION}}
