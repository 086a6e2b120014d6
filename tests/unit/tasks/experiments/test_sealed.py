"""Sealed sets: the seed is a commit's, the world may not move after the freeze, training knows nothing of them."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from orchestra.config.schema import Params, load_params
from orchestra.errors import DataError
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import read_jsonl, write_jsonl
from orchestra.tools.experts.simulated import BookEntry
from orchestra.types import Example
from tasks.experiments import sealed
from tasks.experiments.runner import Learning
from tasks.experiments.sealed import (
    GENERATED,
    VALIDATED,
    Frozen,
    ReadEntry,
    SealedSet,
    freeze,
    frozen_commit,
    merge,
    seed_of,
)
from tasks.experiments.store import Keeper, Kept
from tasks.platform.tracking import Recorder
from tests.support.worlds import ROOT, example

WORDING = "tests/data/wording"
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
    shutil.copytree(ROOT / WORDING, tmp_path / WORDING)
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


def test_a_sentence_of_the_probes_that_moved_is_refused(root: Path, params: Params) -> None:
    commit = frozen(root, params)
    (root / WORDING / "README.md").write_text("no probe reads this")
    assert frozen_commit(root, params)[0] == commit
    (root / WORDING / "wishes.jsonl").write_text('{"kind": "cheap", "words": "cheap please."}\n')
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


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("rollout", {"max_turns": 9}),
        ("evaluate", {"bootstrap": 100}),
        ("evaluate", {"seed": 5}),
        ("evaluate", {"by_rule": True}),
        ("evaluate", {"wording": None}),
        ("evaluate", {"examples": 7}),
    ],
)
def test_parameters_of_the_measurement_are_frozen(
    root: Path, params: Params, section: str, changes: dict[str, object]
) -> None:
    frozen(root, params)
    moved = getattr(params, section).model_copy(update=changes)
    with pytest.raises(DataError, match="the world has changed"):
        frozen_commit(root, params.model_copy(update={section: moved}))


@pytest.mark.parametrize("changes", [{"policies": []}, {"engine": "vllm"}, {"safety": None}])
def test_parameters_that_change_no_figure_are_not_frozen(
    root: Path, params: Params, changes: dict[str, object]
) -> None:
    commit = frozen(root, params)
    moved = params.evaluate.model_copy(update=changes)
    assert frozen_commit(root, params.model_copy(update={"evaluate": moved}))[0] == commit


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


def asked(key: str, entity: str) -> Example:
    return example(key).model_copy(update={"instruction": f"about {key}?", "entities": (entity,)})


def test_what_training_knows_is_left_out_and_tools_know_both_sets(tmp_path: Path) -> None:
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


def test_a_request_that_tuning_reads_is_left_out_too(tmp_path: Path) -> None:
    ours = laid(tmp_path / "ours", [asked("t1", "Alder")], [asked("h1", "Birch")], "")
    dev = laid(tmp_path / "dev", [asked("t9", "Gum")], [asked("d1", "Cedar")], "")
    heldout = [asked("h1", "Elm"), asked("x1", "Birch"), asked("d1", "Fir"), asked("x2", "Cedar"), asked("x3", "Gum")]
    fresh = laid(tmp_path / "fresh", [asked("y", "Yew")], heldout, "")
    tuned_on = [part[VALIDATED] / "heldout.jsonl" for part in (ours, dev)]
    assert merge("test", ours, fresh, tmp_path / "both", tuned_on) == 3
    left = [one.id for one in read_examples(tmp_path / "both" / VALIDATED / "heldout.jsonl")]
    assert left == ["x1", "x2", "x3"], "nothing trains on the entities of those examples"


class Laid(Learning):
    """Its generations are laid out already, by the name of their set."""

    def stage(
        self, recorder: Recorder, of: str, name: str, overrides: Sequence[str], links: Mapping[str, Path]
    ) -> Kept:
        assert (
            f"synthesize.heldout_examples={12 if of.endswith('test') else self.params.evaluate.examples}" in overrides
        )
        return Kept(name, self.root / of.removeprefix("data · "), 0.0, True)


@pytest.mark.parametrize(("name", "left"), [("dev", ["d1", "h1"]), ("test", ["x1"])])
def test_the_test_set_alone_leaves_out_the_requests_of_the_held_out_examples_and_of_dev(
    root: Path, params: Params, name: SealedSet, left: list[str]
) -> None:
    ours = laid(root / "ours", [asked("t1", "Alder")], [asked("h1", "Birch")], "")
    laid(root / "dev", [asked("t9", "Gum")], [asked("d1", "Cedar"), asked("h1", "Birch")], "")
    laid(root / "test", [asked("y", "Yew")], [asked("d1", "Fir"), asked("h1", "Elm"), asked("x1", "Oak")], "")
    frozen(root, params)
    recorder = Recorder.open(root, "r", "learn")
    learning = Laid(root, params, Keeper(root, print), recorder, 9, on=name, data=ours, count=params.evaluate.examples)
    folders = learning._sealed(name)
    assert [one.id for one in read_examples(folders[VALIDATED] / "heldout.jsonl")] == left
