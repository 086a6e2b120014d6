"""What DVC decides, over a real repository of three stages that cost nothing."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from orchestra.errors import ConfigError
from tasks.platform import dvc
from tasks.platform.dvc import (
    ChangedDuringRun,
    StageCapped,
    StageError,
    StageKilled,
    _failure,
    hashes,
    repro,
    stage_env,
    stages,
)
from tests.support.worlds import ROOT

DVC_YAML = """
stages:
  last: {cmd: "exec python step.py last", deps: [step.py, middle.txt], outs: [last.txt]}
  middle: {cmd: "exec python step.py middle", deps: [step.py, first.txt], params: [middle], outs: [middle.txt]}
  first: {cmd: "exec python step.py first", deps: [step.py], params: [first], outs: [first.txt]}
"""
STEP = """
import os, signal, sys, yaml
name = sys.argv[1]
params = yaml.safe_load(open("params.yaml")).get(name)
print(f"{name}: working", flush=True)
print("chatter of a library", flush=True)
if params == "fail": print(f"error: {name}: a.jsonl: corrupt — fix it", file=sys.stderr); sys.exit(2)
if params == "cap": print(f"error: {name}: capped: l.jsonl: 5 of 5 USD are spent", file=sys.stderr); sys.exit(2)
if params == "die": os.kill(os.getpid(), signal.SIGKILL)
if params == "parent": params = open(f"/proc/{os.getppid()}/cmdline").read().replace(chr(0), " ")
open(name + ".txt", "w").write(str(params))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "params.yaml").write_text("first: 1\nmiddle: 1\n")
    (tmp_path / ".gitignore").write_text("*.txt\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    Repo.init(str(tmp_path)).close()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def run(root: Path, name: str, *, force: bool = False, said: list[str] | None = None) -> tuple[str, list[str]]:
    said = [] if said is None else said
    return repro(root, name, env={}, on_line=said.append, force=force), said


def run_all(root: Path) -> list[str]:
    return [run(root, name)[0] for name in stages(root)]


def test_the_order_is_that_of_the_graph_not_of_the_file(root: Path) -> None:
    assert list(stages(root)) == ["first", "middle", "last"]


def test_from_nothing_to_current_and_stale_again(root: Path) -> None:
    assert set(map(tuple, stages(root).values())) == {("it has not run yet",)}
    assert hashes(root, "middle").outputs == {}
    assert run_all(root) == ["ran", "ran", "ran"]
    assert stages(root) == {"first": [], "middle": [], "last": []}
    found = hashes(root, "middle")
    assert set(found.inputs) == {"step.py", "first.txt"} and set(found.outputs) == {"middle.txt"}
    assert found.params == {"middle": 1} and found.inputs["first.txt"] == hashes(root, "first").outputs["first.txt"]
    assert run_all(root) == ["unchanged"] * 3
    (root / "params.yaml").write_text("first: 1\nmiddle: 2\n")
    assert stages(root) == {"first": [], "middle": ["params.yaml: middle modified"], "last": []}
    assert run(root, "middle")[0] == "ran"
    assert stages(root)["last"] == ["middle.txt modified"]


def test_reverting_a_change_restores_and_so_does_a_lost_output(root: Path) -> None:
    run_all(root)
    (root / "params.yaml").write_text("first: 2\nmiddle: 1\n")
    assert run(root, "first")[0] == "ran"
    (root / "params.yaml").write_text("first: 1\nmiddle: 1\n")
    assert run(root, "first")[0] == "restored"
    (root / "first.txt").unlink()
    assert stages(root)["first"] == ["output first.txt not there"]
    assert run(root, "first")[0] in {"restored", "unchanged"} and (root / "first.txt").read_text() == "1"
    assert run(root, "first", force=True)[0] == "ran"


def test_only_what_the_stage_says_is_passed_on(root: Path) -> None:
    assert run(root, "first")[1] == ["first: working", "chatter of a library"]


def test_the_stage_is_dvcs_own_child(root: Path) -> None:
    (root / "params.yaml").write_text("first: parent\nmiddle: 1\n")
    run(root, "first")
    assert "-m dvc repro --single-item first" in (root / "first.txt").read_text()


def test_a_stages_own_words_are_the_error(root: Path) -> None:
    (root / "params.yaml").write_text("first: fail\nmiddle: 1\n")
    with pytest.raises(StageError, match=r"^first: a\.jsonl: corrupt — fix it") as caught:
        run(root, "first")
    assert not caught.value.retryable and ".state/logs/first.log" in str(caught.value)


def test_a_stage_that_a_cap_ended_is_told_from_one_that_failed(root: Path) -> None:
    (root / "params.yaml").write_text("first: cap\nmiddle: 1\n")
    with pytest.raises(StageCapped, match=r"^first: l\.jsonl: 5 of 5 USD are spent$") as caught:
        run(root, "first")
    assert not caught.value.retryable


def test_a_stage_ended_by_a_signal_may_be_retried(root: Path) -> None:
    (root / "params.yaml").write_text("first: die\nmiddle: 1\n")
    with pytest.raises(StageKilled, match="first: ended by a signal") as caught:
        run(root, "first")
    assert caught.value.retryable and not (root / "first.txt").exists()


@pytest.mark.parametrize(("code", "killed"), [(-9, True), (137, True), (143, True), (1, False), (128, False)])
def test_a_signal_is_told_from_a_failure_by_the_exit_code_that_dvc_names(code: int, killed: bool) -> None:
    """A shell adds 128 to the signal that ended its child, such as that of a machine without memory."""
    said = f"ERROR: failed to reproduce 'first': failed to run: exec python step.py, exited with {code}"
    assert isinstance(_failure("first", 255, [said]), StageKilled) == killed


def test_outputs_that_cannot_be_linked_are_outputs_that_cannot_be_written(root: Path) -> None:
    said = "ERROR: failed to reproduce 'first': No possible cache link types for 'first.txt'. See <https://dvc.org/x>"
    (root / "step.py").write_text(f"import sys; print({said!r}); sys.exit(1)")
    with pytest.raises(StageError, match=r"^first: DVC cannot write its outputs — .*writable.*the same command again$"):
        run(root, "first")


def test_a_missing_input_is_named(root: Path) -> None:
    with pytest.raises(StageError, match=r"first\.txt"):
        run(root, "middle")


@pytest.mark.parametrize("text", ["stages: [", "stages: {a: {cm: x}}", "stages: {a: {cmd: x, deps: ['${no.such}']}}"])
def test_a_broken_dvc_yaml_is_one_line(root: Path, text: str) -> None:
    (root / "dvc.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        stages(root)
    assert str(caught.value).startswith("dvc.yaml") and len(str(caught.value).splitlines()) == 1


def test_outside_a_repository_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no DVC workspace"):
        stages(tmp_path)


def test_a_stage_sees_params_yaml_and_this_python_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_PARAMS", "other.yaml")
    env = stage_env({"MLFLOW_RUN_ID": "x"})
    assert "ORCHESTRA_PARAMS" not in env and env["MLFLOW_RUN_ID"] == "x"
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_dvcs_chatter_is_known() -> None:
    for line in (
        "Running stage 'a':",
        "> exec python -m tasks.a",
        "Updating lock file 'dvc.lock'",
        "\tgit add dvc.lock",
        "WARNING: Process 'dvc repro -s sft' with (Pid 9), in RWLock-file 'models/sft' had been killed.",
        "",
    ):
        assert dvc.NOISE.match(line), line
    assert not dvc.NOISE.match("sft: loss 0.3")


CUT = """
import dvc.utils.serialize._common as common

def dump(path, data, dumper, fs=None, **rest):
    import os, signal
    with open(path, "w+", encoding="utf-8") as file:
        if str(path).endswith("dvc.lock"):
            file.write({left!r})
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        dumper(data, file, **rest)

common._dump_data.__code__ = dump.__code__
"""
"""A start-up file of Python: DVC is killed while it writes its lock file, which it empties first."""


@pytest.mark.parametrize("left", ["", "schema: '2.0'\nstages:\n  first:\n    cmd: exec pyth"])
@pytest.mark.parametrize("ran", [pytest.param([], marks=pytest.mark.slow), ["first"]])
def test_a_dvc_killed_in_the_middle_of_its_lock_file_loses_nothing(root: Path, left: str, ran: list[str]) -> None:
    for name in ran:
        run(root, name)
    before = (root / "dvc.lock").read_bytes() if ran else None
    (root / "startup").mkdir()
    (root / "startup/sitecustomize.py").write_text(CUT.format(left=left))
    stage = "middle" if ran else "first"
    with pytest.raises(StageKilled):
        repro(root, stage, env={"PYTHONPATH": str(root / "startup")}, on_line=lambda _: None)
    assert ((root / "dvc.lock").read_bytes() if ran else None) == before
    assert ran or not (root / "dvc.lock").exists()
    going_on = ["first", "middle", "last"] if ran and not left else [*ran, stage]
    assert [run(root, name)[0] for name in going_on][: len(ran)] == ["unchanged"] * len(ran)
    assert list(hashes(root, going_on[-1]).outputs) == [f"{going_on[-1]}.txt"]


def test_a_run_goes_on_from_the_lock_file_before_a_kill_of_everything(root: Path) -> None:
    run(root, "first")
    before = (root / "dvc.lock").read_text()
    (root / dvc.LOCK_BEFORE).parent.mkdir(exist_ok=True)
    (root / dvc.LOCK_BEFORE).write_text(before)
    (root / "dvc.lock").write_text("")
    dvc.recover(root)
    assert (root / "dvc.lock").read_text() == before and not (root / dvc.LOCK_BEFORE).exists()
    dvc.recover(root)
    assert run(root, "first")[0] == "unchanged"


@pytest.mark.parametrize("left", [None, "schema: '2.0'\nstages:\n  first:\n    cmd: ex", "stages:\n  a: [\n", "a\n"])
def test_a_lock_file_that_is_cut_or_gone_is_put_back(root: Path, left: str | None) -> None:
    run(root, "first")
    before = (root / "dvc.lock").read_text()
    (root / dvc.LOCK_BEFORE).parent.mkdir(exist_ok=True)
    (root / dvc.LOCK_BEFORE).write_text(before)
    (root / "dvc.lock").unlink()
    if left is not None:
        (root / "dvc.lock").write_text(left)
    dvc.recover(root)
    assert (root / "dvc.lock").read_text() == before and not (root / dvc.LOCK_BEFORE).exists()


@pytest.mark.slow
def test_a_lock_file_that_git_checked_out_after_a_kill_stays(root: Path) -> None:
    run_all(root)
    whole = (root / "dvc.lock").read_text()
    for kept in ("", "schema: '2.0'\nstages: {}\n"):  # A killed run left the copy of before its stage.
        (root / dvc.LOCK_BEFORE).parent.mkdir(exist_ok=True)
        (root / dvc.LOCK_BEFORE).write_text(kept)
        assert run_all(root) == ["unchanged"] * 3
        assert (root / "dvc.lock").read_text() == whole and not (root / dvc.LOCK_BEFORE).exists()
    (root / dvc.LOCK_BEFORE).write_text("")
    (root / "dvc.lock").write_text(merging := f"{whole}<<<<<<< HEAD\na\n=======\nb\n>>>>>>> other\n")
    dvc.recover(root)
    assert (root / "dvc.lock").read_text() == merging


@pytest.mark.parametrize("tracked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_fix_for_a_damaged_lock_file_works_whether_git_has_it_or_not(root: Path, tracked: bool) -> None:
    run_all(root)
    if tracked:
        subprocess.run(["git", "add", "dvc.lock"], cwd=root, check=True)
    (root / "dvc.lock").write_bytes(b"\xff\x00{[")
    with pytest.raises(ConfigError) as error:
        stages(root)
    command = error.value.fix.partition(";")[0]
    assert command == ("git checkout dvc.lock" if tracked else "rm dvc.lock")
    subprocess.run(command.split(), cwd=root, check=True, capture_output=True)
    assert run_all(root) == ["unchanged" if tracked else "restored"] * 3


WAITING = (
    STEP
    + """
import pathlib, time
if pathlib.Path("wait").exists():
    pathlib.Path("wait").rename("began")
    while not pathlib.Path("go").exists(): time.sleep(0.02)
"""
)
EDITS: dict[str, tuple[str, str, str]] = {
    "params.yaml: first": ("first", "params.yaml", "first: 2\nmiddle: 1\n"),
    "step.py": ("first", "step.py", WAITING + "# another version\n"),
    "first.txt": ("middle", "first.txt", "other data"),
}
"""Stage, file and its new text, by what is told to have changed."""


def run_while(
    root: Path, name: str, edit: Callable[[], object], *, force: bool = False, said: list[str] | None = None
) -> str:
    """Run a stage, and edit something when it has read what it needs."""
    (root / "wait").touch()
    ended = threading.Event()

    def write() -> None:
        while not (root / "began").exists() and not ended.wait(0.02):
            pass
        edit()
        (root / "go").touch()

    editor = threading.Thread(target=write, daemon=True)
    editor.start()
    try:
        return run(root, name, force=force, said=said)[0]
    finally:
        ended.set()
        editor.join()
        for mark in ("began", "go"):
            (root / mark).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("changed", "ran"),
    [
        *(pytest.param(one, False, marks=[pytest.mark.slow] if one == "step.py" else []) for one in EDITS),
        ("first.txt", True),
    ],
)
def test_what_changes_while_a_stage_runs_is_not_recorded_as_its_inputs(root: Path, changed: str, ran: bool) -> None:
    stage, file, text = EDITS[changed]
    (root / "step.py").write_text(WAITING)
    for name in ["first", *(["middle"] if ran else [])]:
        run(root, name)
    lock, cached = (root / "dvc.lock").read_bytes(), set((root / ".dvc/cache/runs").rglob("*"))
    (root / "first.txt").chmod(0o644)
    told = rf"^{stage}: code, data or parameters changed while it ran \({changed}\), so it is stale — orchestra rerun"
    with pytest.raises(ChangedDuringRun, match=told) as caught:
        run_while(root, stage, lambda: (root / file).write_text(text), force=True)
    assert not caught.value.retryable
    assert (root / "dvc.lock").read_bytes() == lock
    assert {one for one in (root / ".dvc/cache/runs").rglob("*") if one.is_file()} <= cached
    assert stages(root)[stage]
    if changed != "first.txt":
        assert run(root, stage)[0] == "ran" and (root / f"{stage}.txt").exists()


def test_a_first_run_whose_parameters_change_leaves_no_record(root: Path) -> None:
    (root / "step.py").write_text(WAITING)
    others = root / ".dvc/cache/runs/ab/abcd/ef"

    def edit() -> None:
        (root / "params.yaml").write_text("first: 2\nmiddle: 1\n")
        others.parent.mkdir(parents=True)
        others.write_text("cmd: of another workspace that shares the cache\n")

    with pytest.raises(ChangedDuringRun):
        run_while(root, "first", edit)
    assert [one for one in (root / ".dvc/cache/runs").rglob("*") if one.is_file()] == [others]
    assert hashes(root, "first").outputs == {} and stages(root)["first"] == ["it has not run yet"]
    assert (root / "first.txt").read_text() == "1"
    assert run(root, "first")[0] == "ran" and (root / "first.txt").read_text() == "2"


def test_a_change_while_a_stage_runs_is_told_in_time_to_be_undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dvc, "LOOK_S", 0.05)
    (root / "step.py").write_text(WAITING)
    said: list[str] = []

    def edit() -> None:
        for content, told in ((2, r"warning: params\.yaml: first changed while it runs: undo it"), (1, "again what")):
            (root / "params.yaml").write_text(f"first: {content}\nmiddle: 1\n")
            while not any(re.search(told, line) for line in said):
                time.sleep(0.02)

    assert run_while(root, "first", edit, said=said) == "ran"
    undo = "undo it before the stage ends, or it has to run again"
    assert [line for line in said if "its inputs" in line or "warning" in line] == [
        f"first: warning: params.yaml: first changed while it runs: {undo}",
        "first: its inputs are again what they were when it began",
    ]
    assert stages(root)["first"] == [] and hashes(root, "first").params == {"first": 1}


HARMLESS: dict[str, Callable[[Path], object]] = {
    "a parameter of another stage": lambda root: (root / "params.yaml").write_text("first: 1\nmiddle: 2\n"),
    "byte code": lambda root: (root / "code/__pycache__/a.pyc").write_text("2"),
    "a file that is written again as it was": lambda root: (root / "code/a.py").write_text("1"),
    "a file of no stage": lambda root: (root / "notes").write_text("2"),
}


@pytest.mark.parametrize("edit", HARMLESS)
def test_what_a_stage_does_not_read_may_change_while_it_runs(root: Path, edit: str) -> None:
    (root / "code/__pycache__").mkdir(parents=True)
    (root / "code/a.py").write_text("1")
    (root / ".dvcignore").write_text("__pycache__\n")
    (root / "dvc.yaml").write_text(DVC_YAML.replace("deps: [step.py], params", "deps: [step.py, code], params"))
    (root / "step.py").write_text(WAITING)
    assert run_while(root, "first", lambda: HARMLESS[edit](root)) == "ran"
    assert stages(root)["first"] == []


def test_domains_that_synthesis_writes_are_no_change_from_outside(tmp_path: Path) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    writer = {"model": "m", "price": "openai/gpt-5-mini", "cap_usd": 1.0, "domains": {"library": "books"}}
    params["synthesize"] |= {"generator": "both", "writer": writer}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    made = dvc._made_by(tmp_path, "synthesize")
    assert made == {"data/domains"} and dvc._made_by(tmp_path, "sft") == set()
    before, now = {"data/domains": "1", "code": "1"}, {"data/domains": "2", "code": "1"}
    assert dvc._changed(before, now, made) == []
    (tmp_path / "data/domains/library").mkdir(parents=True)
    assert dvc._made_by(tmp_path, "synthesize") == set()
    assert dvc._changed(before, now, set()) == ["data/domains"]
