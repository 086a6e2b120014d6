"""Stages run apart: a result is kept for exactly what went in, and a kill costs no more than the time since."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestra.errors import ConfigError, DataError
from tasks.experiments.store import Keeper, Kept, standing
from tasks.platform.dvc import StageError, StageKilled

REPOSITORY = Path(__file__).parents[4]
WORDING = "tests/data/wording"
DVC = """
stages:
  demo:
    cmd: exec python -m tasks.demo
    params: [sft]
    deps: [data/catalogue, data/made, orchestra/rule.py, tasks/demo.py]
    outs: [data/made, models/demo]
  evaluate:
    cmd: exec python -m tasks.evaluate
    params: [evaluate]
    deps: [models/demo]
"""
DEMO = """
import os, pathlib, signal, sys, time
runs = pathlib.Path("work/runs")
runs.parent.mkdir(exist_ok=True)
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
print("demo: attempt", len(runs.read_text()), flush=True)
plan = pathlib.Path("data/catalogue/plan").read_text().split()
if "kill" in plan and len(runs.read_text()) == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if "wait" in plan and len(runs.read_text()) == 1:
    time.sleep(600)
if "refuse" in plan:
    print("noise\\nerror: demo: no plan — write one", file=sys.stderr)
    sys.exit(2)
if "break" in plan:
    raise RuntimeError("broken")
made = pathlib.Path("models/demo")
made.mkdir()
(made / "weights").write_text(" ".join([*sys.argv[1:], os.environ.get("MLFLOW_RUN_ID", "")]))
(made / "threads").write_text(os.environ.get("OMP_NUM_THREADS", ""))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one stage of a line or two, run as a real process."""
    for folder in ("tasks", "orchestra", "data/catalogue", "data/made", "models/base", "models/demo"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(REPOSITORY / "params.yaml", tmp_path)
    shutil.copytree(REPOSITORY / WORDING, tmp_path / WORDING)
    (tmp_path / "dvc.yaml").write_text(DVC)
    for name in ("demo", "extra"):
        (tmp_path / "tasks" / f"{name}.py").write_text(DEMO)
    (tmp_path / "orchestra" / "rule.py").write_text("1")
    (tmp_path / "data/catalogue/plan").write_text("work")
    (tmp_path / "data/made/examples").write_text("1")
    (tmp_path / "models/demo/weights").write_text("the pipeline's own")
    return tmp_path


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def keeper(root: Path, said: list[str]) -> Keeper:
    return Keeper(root, said.append)


def demo(keeper: Keeper, *overrides: str) -> Kept:
    return keeper.run("demo", "seed 0", overrides=overrides, links={"data/made": keeper.root / "data/made"})


def test_it_runs_once_in_a_folder_apart(root: Path, keeper: Keeper, said: list[str]) -> None:
    first, again = demo(keeper), demo(Keeper(root, said.append))
    assert not first.reused and again.reused and again.folder == first.folder
    assert (first.folder / "models/demo/weights").is_file() and not (first.folder / "work").exists()
    assert (root / "models/demo/weights").read_text() == "the pipeline's own"
    assert first.seconds == again.seconds > 0
    assert said[0] == "seed 0 · demo: attempt 1" and said[-1].endswith("from an earlier run") and len(said) == 3


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda root: (root / "data/made/examples").write_text("2"), True),
        (lambda root: (root / "data/catalogue/plan").write_text("work on"), True),
        (lambda root: (root / "orchestra/rule.py").write_text("2"), True),
        (lambda root: (root / "orchestra/other.py").write_text("2"), False),
        (lambda root: (root / "models/demo/weights").write_text("retrained"), False),
        (lambda root: None, False),
    ],
    ids=["input", "catalogue", "code", "other code", "the pipeline's output", "nothing"],
)  # fmt: skip
def test_what_went_in_decides(root: Path, keeper: Keeper, change: object, again: bool) -> None:
    first = demo(keeper)
    assert callable(change)
    change(root)
    assert demo(Keeper(root, print)).reused is not again
    assert first.folder.is_dir()


def test_parameters_decide_where_the_stage_reads_them(root: Path, keeper: Keeper) -> None:
    before = (root / "params.yaml").read_text()
    one, other = demo(keeper, "sft.seed=1"), demo(keeper, "sft.seed=2")
    assert one.folder != other.folder
    assert demo(keeper, "sft.seed=1", "evaluate.seed=5").folder == one.folder
    over = Keeper(root, print, ["sft.seed=2"])
    assert demo(over).folder == other.folder and demo(over, "sft.seed=1").folder == one.folder
    assert (root / "params.yaml").read_text() == before
    with pytest.raises(ConfigError, match=r"no key sft\.sed"):
        demo(keeper, "sft.sed=1")


def test_a_killed_stage_goes_on_where_it_was(root: Path, keeper: Keeper) -> None:
    (root / "data/catalogue/plan").write_text("kill")
    with pytest.raises(StageKilled, match="demo: ended by a signal"):
        demo(keeper)
    (folder,) = keeper.store.glob("demo-*")
    spent = json.loads((folder / "spent.json").read_text())["seconds"]
    said: list[str] = []
    done = demo(Keeper(root, said.append))
    assert said[0] == "seed 0 · demo: attempt 2" and done.folder == folder and done.seconds > spent > 0


def test_stages_that_threads_run_at_once_are_ended_and_go_on_where_they_were(root: Path, keeper: Keeper) -> None:
    (root / "data/catalogue/plan").write_text("wait")
    begun = threading.Semaphore(0)
    keeper.say = lambda line: begun.release() if "attempt" in line else None
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(demo, keeper, f"sft.seed={seed}") for seed in (1, 2)]
        assert all(begun.acquire(timeout=60) for _ in runs)
        keeper.stop()
        assert [type(run.exception(timeout=60)) for run in runs] == [KeyboardInterrupt] * 2
    with pytest.raises(KeyboardInterrupt):
        demo(keeper, "sft.seed=3")
    said: list[str] = []
    again = Keeper(root, said.append)
    assert [demo(again, f"sft.seed={seed}").reused for seed in (1, 2)] == [False, False]
    assert [line for line in said if "attempt" in line] == ["seed 0 · demo: attempt 2"] * 2


def test_a_stage_has_the_threads_that_it_is_given_unless_the_environment_says_otherwise(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("orchestra.system.environment.cores", lambda: 6)
    for seed, threads in ((1, "3"), (2, "7")):
        made = demo(Keeper(root, print, jobs=2), f"sft.seed={seed}").folder
        assert (made / "models/demo/threads").read_text() == threads
        monkeypatch.setenv("OMP_NUM_THREADS", "7")


@pytest.mark.parametrize(("plan", "says"), [("refuse", "no plan — write one"), ("break", "RuntimeError: broken")])
def test_a_failure_is_one_line_and_nothing_is_kept(root: Path, keeper: Keeper, plan: str, says: str) -> None:
    (root / "data/catalogue/plan").write_text(plan)
    for attempt in (1, 2):
        with pytest.raises(StageError, match=f"^demo: {says}") as failure:
            demo(keeper)
        assert "\n" not in str(failure.value) and "log.txt" in str(failure.value)
        assert len([line for line in next(keeper.store.glob("demo-*/log.txt")).open() if "attempt" in line]) == attempt


def test_force_runs_it_again_but_only_once(root: Path, keeper: Keeper) -> None:
    demo(keeper)
    forced = Keeper(root, print, force=True)
    assert not demo(forced).reused and not demo(forced).reused
    (log,) = keeper.store.glob("demo-*/log.txt")
    assert log.read_text().count("attempt") == 1


def test_what_is_no_stage_of_dvc_depends_on_its_arguments_and_its_file(root: Path, keeper: Keeper) -> None:
    folders = {keeper.run("extra", "seed 0", arguments=[count]).folder for count in "112"}
    assert len(folders) == 2
    (root / "tasks/extra.py").write_text(DEMO + "\n")
    assert keeper.run("extra", "seed 0", arguments=["1"]).folder not in folders


def test_what_is_no_stage_of_dvc_depends_on_the_sentences_of_the_probes(root: Path, keeper: Keeper) -> None:
    before = keeper.run("extra", "seed 0", arguments=["1"]).folder
    (root / WORDING / "wishes.jsonl").write_text('{"kind": "cheap", "words": "cheap please."}\n')
    after = keeper.run("extra", "seed 0", arguments=["1"]).folder
    assert after != before
    assert keeper.run("extra", "seed 0", arguments=["1"], overrides=["evaluate.wording=null"]).folder != after


def test_the_environment_is_asked_for_only_when_it_runs(keeper: Keeper) -> None:
    asked: list[int] = []

    def env() -> dict[str, str]:
        asked.append(1)
        return {"MLFLOW_RUN_ID": "r1"}

    for _ in range(2):
        kept = keeper.run("demo", "x", links={"data/made": keeper.root / "data/made"}, env=env)
    assert asked == [1] and (kept.folder / "models/demo/weights").read_text() == "r1"


def test_a_missing_input_is_said_before_anything_runs(root: Path, keeper: Keeper) -> None:
    with pytest.raises(DataError, match="nowhere: missing"):
        keeper.run("demo", "x", links={"data/made": root / "nowhere"})
    assert not list(keeper.store.glob("demo-*"))


def test_outputs_of_stages_are_never_linked() -> None:
    found = standing(REPOSITORY)
    assert {"data/catalogue", "data/domains", "models/base", "models/recipes", "orchestra", "tasks"} <= set(found)
    assert not {"data/generated", "data/validated", "models/sft", "models/grpo"} & set(found)
