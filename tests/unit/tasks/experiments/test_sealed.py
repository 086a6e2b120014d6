"""Sealed sets: the seed is a commit's, the world may not move after the freeze, training knows nothing of them."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.config.schema import Params, load_params
from orchestra.errors import DataError
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import read_jsonl, write_jsonl
from orchestra.tools.experts.simulated import BookEntry
from orchestra.types import Example
from tasks.experiments import sealed
from tasks.experiments.sealed import GENERATED, VALIDATED, Frozen, ReadEntry, freeze, frozen_commit, merge, seed_of
from tests.support.worlds import ROOT, example

WHO = ["-c", "user.name=t", "-c", "user.email=t@e.org"]


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *WHO, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A repository with the parts of the world that are hashed, small."""
    (tmp_path / "data/catalogue").mkdir(parents=True)
    (tmp_path / "data/catalogue/tools.yaml").write_text("tools: {}")
    (tmp_path / "orchestra/evaluation").mkdir(parents=True)
    (tmp_path / "orchestra/evaluation/bars.py").write_text("BAR = 1")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "world")
    yield tmp_path


@pytest.fixture
def params() -> Params:
    return load_params(ROOT / "params.yaml")


def frozen(root: Path, params: Params) -> str:
    freeze(root, params, 12)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "freeze")
    return git(root, "rev-parse", "HEAD")


def test_the_seed_is_that_of_the_commit_that_froze_the_world(root: Path, params: Params) -> None:
    commit = frozen(root, params)
    (root / "train.py").write_text("code that trains may change")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "later")
    found, what = frozen_commit(root, params)
    assert found == commit != git(root, "rev-parse", "HEAD") and what.examples == 12
    assert seed_of(found) != seed_of(git(root, "rev-parse", "HEAD")) and 0 <= seed_of(found) < 2**31


@pytest.mark.parametrize("file", ["data/catalogue/tools.yaml", "orchestra/evaluation/bars.py"])
def test_a_world_or_a_yardstick_that_moved_is_refused(root: Path, params: Params, file: str) -> None:
    frozen(root, params)
    (root / file).write_text("moved")
    with pytest.raises(DataError, match="the world has changed since it was frozen"):
        frozen_commit(root, params)


@pytest.mark.parametrize("file", ["benchmarks/hle/scorer.py", "benchmarks/base.py", "benchmarks/new.yaml"])
def test_a_published_benchmark_may_change(root: Path, params: Params, file: str) -> None:
    (root / "orchestra/evaluation/benchmarks/hle").mkdir(parents=True)
    (root / "orchestra/evaluation/benchmarks/base.py").write_text("FIRST = 1")
    commit = frozen(root, params)
    (root / "orchestra/evaluation" / file).write_text("another scorer")
    assert frozen_commit(root, params)[0] == commit
    # Its neighbours stay frozen, whatever they are called.
    (root / "orchestra/evaluation/benchmarks_of_ours.py").write_text("BAR = 2")
    with pytest.raises(DataError, match="the world has changed"):
        frozen_commit(root, params)


def test_parameters_of_the_world_are_frozen_and_those_of_training_are_not(root: Path, params: Params) -> None:
    frozen(root, params)
    frozen_commit(root, params.model_copy(update={"grpo": params.grpo.model_copy(update={"steps": 1})}))
    moved = params.synthesize.model_copy(update={"price_spread": 9.0})
    with pytest.raises(DataError, match="the world has changed"):
        frozen_commit(root, params.model_copy(update={"synthesize": moved}))


def test_a_freeze_must_be_there_whole_and_committed(root: Path, params: Params) -> None:
    with pytest.raises(DataError, match="the world is not frozen"):
        frozen_commit(root, params)
    freeze(root, params, 12)
    with pytest.raises(DataError, match="is not committed"):
        frozen_commit(root, params)
    (root / sealed.FROZEN).write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        frozen_commit(root, params)


def test_every_read_is_a_line_of_the_repository(root: Path) -> None:
    for commit in ("a", "b+"):
        sealed.log_read(
            root, ReadEntry(date="2026-11-22", commit=commit, frozen="f", examples=3, command="orchestra learn")
        )
    assert [read.commit for read in read_jsonl(root / sealed.READS, ReadEntry)] == ["a", "b+"]
    assert Frozen(world="w", examples=1)


def entry(question: str) -> BookEntry:
    return BookEntry(question=question, topic="law", answer="Yes", wrong=("No",))


def laid(folder: Path, train: list[Example], heldout: list[Example], documents: str) -> dict[str, Path]:
    (folder / GENERATED).mkdir(parents=True)
    (folder / VALIDATED).mkdir(parents=True)
    write_jsonl(folder / VALIDATED / "train.jsonl", train)
    write_jsonl(folder / VALIDATED / "heldout.jsonl", heldout)
    write_jsonl(folder / GENERATED / "answers.jsonl", [entry(one.instruction) for one in [*train, *heldout]])
    (folder / GENERATED / "corpus.jsonl").write_text(documents)
    return {name: folder / name for name in (GENERATED, VALIDATED)}


def test_what_training_knows_is_left_out_and_tools_know_both_sets(tmp_path: Path) -> None:
    def asked(key: str, entity: str) -> Example:
        return example(key).model_copy(update={"instruction": f"about {key}?", "entities": (entity,)})

    ours = laid(tmp_path / "ours", [asked("t1", "Alder")], [asked("h1", "Birch")], '{"id":"d","text":"Cedar is"}\n')
    heldout = [asked("x1", "Alder"), asked("t1", "Elm"), asked("x2", "Cedar"), asked("x3", "Fir"), asked("h1", "Birch")]
    fresh = laid(tmp_path / "fresh", [asked("y", "Gum")], heldout, '{"id":"d","text":"Fir is"}\n')
    assert merge("test", ours, fresh, tmp_path / "both") == 2
    assert [one.id for one in read_examples(tmp_path / "both" / VALIDATED / "heldout.jsonl")] == ["x3", "h1"]
    assert [one.id for one in read_examples(tmp_path / "both" / VALIDATED / "train.jsonl")] == ["t1"]
    known = read_jsonl(tmp_path / "both" / GENERATED / "answers.jsonl", BookEntry)
    assert len({one.question for one in known}) == len(known) == 6
    corpus = (tmp_path / "both" / GENERATED / "corpus.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in corpus] == ["d", "test-d"]
