"""What stages share: nothing half-written, state kept for exactly these inputs, and errors of one line."""

import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra.config.schema import load_params
from orchestra.errors import DataError
from orchestra.system.processes import FLOW_PID
from orchestra.training.resume import MARKER
from tasks.platform.checkpoints import tell_changed, tell_resumed
from tasks.platform.stage import FAILURE_KIND, Meter, Stage, run, stage_fingerprint
from tasks.sft import teach

ROOT = Path(__file__).parents[4]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return Stage.open("demo", tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*"))


def test_a_folder_appears_only_when_it_is_whole(stage: Stage) -> None:
    with stage.write_dir("out/data") as folder:
        (folder / "a").write_text("1")
        assert not (stage.root / "out/data").exists()
    assert names(stage.root / "out") == ["a", "data"]


def test_a_failure_leaves_the_old_folder_and_no_partial_one(stage: Stage) -> None:
    with stage.write_dir("out") as folder:
        (folder / "old").touch()
    with pytest.raises(RuntimeError), stage.write_dir("out") as folder:
        (folder / "new").touch()
        raise RuntimeError
    assert names(stage.root / "out") == ["old"]
    assert not list(stage.root.glob(".out*"))


def test_a_new_folder_replaces_an_old_read_only_one(stage: Stage) -> None:
    for content in ("1", "2"):
        with stage.write_dir("out") as folder:
            (folder / "a").write_text(content)
        (stage.root / "out" / "a").chmod(0o444)
    assert (stage.root / "out" / "a").read_text() == "2"
    assert not list(stage.root.glob(".out*"))


def test_what_a_killed_run_left_is_not_taken_over(stage: Stage) -> None:
    (stage.root / ".out.0123abcdef.partial").mkdir()
    (stage.root / ".out.0123abcdef.partial" / "half").touch()
    with stage.write_dir("out"):
        pass
    assert names(stage.root / "out") == []
    assert not list(stage.root.glob(".out*"))


def test_a_file_is_written_whole_over_a_read_only_one(stage: Stage) -> None:
    for value in (1, 2):
        stage.write_json("reports/x.json", {"value": value})
        (stage.root / "reports/x.json").chmod(0o444)
    assert json.loads((stage.root / "reports/x.json").read_text()) == {"value": 2}
    assert names(stage.root / "reports") == ["x.json"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(stage: Stage, bad: float) -> None:
    with pytest.raises(DataError, match=r"x\.json"):
        stage.write_json("x.json", {"loss": bad})
    assert not (stage.root / "x.json").exists()


def test_without_a_flow_logging_is_free(stage: Stage) -> None:
    stage.log_metrics({"loss": 1.0}, step=3)
    stage.log_artifact(Path("nowhere"))
    stage.flush()


def test_work_is_kept_for_the_same_inputs_only(stage: Stage) -> None:
    (stage.root / "dvc.yaml").write_text("stages: {demo: {cmd: x, params: [sft], deps: ['${model.recipe}', code]}}")
    (stage.root / "code").mkdir()
    (stage.root / "code" / "a.py").write_text("1")
    first = stage.work_dir()
    (first / "checkpoint").touch()
    (stage.root / "code" / "__pycache__").mkdir()
    (stage.root / "code" / "__pycache__" / "a.pyc").touch()
    assert Stage.open("demo", stage.root).work_dir() == first and (first / "checkpoint").is_file()
    (stage.root / "code" / "a.py").write_text("2")
    assert stage.work_dir() == first
    again = Stage.open("demo", stage.root)
    assert again.work_dir() != first and again.other_work() == [first]


def test_the_work_of_other_inputs_goes_when_the_stage_is_done_and_not_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, own = stage.root / "work/demo/old", stage.work_dir()
    monkeypatch.chdir(stage.root)
    monkeypatch.setattr("tasks.platform.stage.die_with_parent", lambda _: None)

    def main(running: Stage) -> None:
        assert running.work_dir() == own and running.other_work() == [old]
        raise DataError("corrupt")

    old.mkdir()
    with pytest.raises(SystemExit):
        run("demo", main)
    assert old.is_dir()
    run("demo", lambda running: running.work_dir().touch())
    assert not old.exists() and own.is_dir()
    old.mkdir()
    # A rank's, and what a flow clears once it has compared the inputs.
    for variable in ("RANK", FLOW_PID):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            run("demo", lambda running: running.work_dir().touch())
        assert old.is_dir()


@pytest.mark.parametrize("steps", [{}, {"own": 4}, {"old": 15, "older": 5}, {"own": 4, "old": 15}])
def test_a_training_says_from_where_it_goes_on(
    stage: Stage, capsys: pytest.CaptureFixture[str], steps: dict[str, int]
) -> None:
    (stage.root / "work/demo/old").mkdir(parents=True)
    for name, step in steps.items():
        folder = stage.work_dir() if name == "own" else stage.root / "work/demo" / name
        (folder / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        (folder / "checkpoints" / f"checkpoint-{step}" / MARKER).touch()
    tell_changed(stage)
    tell_resumed(stage)
    changed = "code, data or parameters changed since step 15, so it starts from the beginning"
    told = "continues from step 4" if "own" in steps else f"{changed}; work/demo/old is kept until it is done"
    assert capsys.readouterr().out == (f"demo: {told}\n" if steps else "")


def test_sft_says_that_it_starts_from_the_beginning_before_its_teacher_costs_anything(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pay(*_: object) -> None:
        raise DataError("the teacher is paid")

    monkeypatch.setattr("orchestra.config.schema.Model.folder", lambda _, root: root)
    monkeypatch.setattr("tasks.sft.Codec.load", lambda _: None)
    monkeypatch.setattr("tasks.sft.open_budget", pay)
    (stage.root / "work/demo/old/checkpoints/checkpoint-15").mkdir(parents=True)
    (stage.root / "work/demo/old/checkpoints/checkpoint-15" / MARKER).touch()
    with pytest.raises(DataError, match="the teacher is paid"):
        teach(stage)
    assert "changed since step 15, so it starts from the beginning" in capsys.readouterr().out


CHANGES: dict[str, Callable[[Path], object]] = {
    "templated": lambda root: (root / "models/recipes/embedded/config.json").write_text("2"),
    "command": lambda root: _replace(root / "dvc.yaml", "cmd: x", "cmd: y"),
    "parameter": lambda root: _replace(root / "params.yaml", "sft:\n  seed: 0", "sft:\n  seed: 9"),
    "contents": lambda root: (root / "d" / "a").write_text("2"),
    "name": lambda root: (root / "d" / "a").rename(root / "d" / "b"),
    "one more": lambda root: (root / "d" / "z").touch(),
}


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_sees_every_change(stage: Stage, change: str) -> None:
    root = stage.root
    (root / "dvc.yaml").write_text("stages: {demo: {cmd: x, params: [sft], deps: [d, '${model.recipe}']}}")
    (root / "models/recipes/embedded").mkdir(parents=True)
    (root / "models/recipes/embedded/config.json").write_text("1")
    (root / "d").mkdir()
    (root / "d" / "a").write_text("1")
    before = stage_fingerprint(root, "demo", load_params(root / "params.yaml"))
    assert before == stage_fingerprint(root, "demo", load_params(root / "params.yaml"))
    CHANGES[change](root)
    assert before != stage_fingerprint(root, "demo", load_params(root / "params.yaml"))


def test_a_fingerprint_reads_no_file_whole(stage: Stage) -> None:
    """Every rank makes one, of models that together are larger than the machine's memory."""
    (stage.root / "dvc.yaml").write_text("stages: {demo: {cmd: x, params: [sft], deps: [d]}}")
    with (stage.root / "d").open("wb") as file:
        file.truncate(1 << 26)
    tracemalloc.start()
    try:
        stage_fingerprint(stage.root, "demo", stage.params)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_another_stages_parameters_do_not_matter(stage: Stage) -> None:
    root = stage.root
    (root / "dvc.yaml").write_text("stages: {demo: {cmd: x, params: [sft]}}")
    before = stage_fingerprint(root, "demo", stage.params)
    _replace(root / "params.yaml", "\n  steps: ", "\n  steps: 1")
    assert before == stage_fingerprint(root, "demo", load_params(root / "params.yaml"))


def test_progress_is_thinned_out_but_its_end_is_said() -> None:
    said: list[str] = []
    meter = Meter(said.append, "rows", 1000)
    for _ in range(1000):
        meter.advance()
    assert said[-1] == "rows 1000/1000 (100%)" and len(said) <= 2


def test_what_an_earlier_run_did_does_not_shorten_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = itertools.count(0, 10)
    monkeypatch.setattr("tasks.platform.stage.time", SimpleNamespace(monotonic=lambda: next(clock)))
    meter = Meter(said.append, "steps", 160, every_s=0)
    meter(100)
    meter(101)
    assert said == ["steps 100/160 (62%)", "steps 101/160 (63%), 590 s left"]


def test_the_time_that_is_left_is_said_once_the_speed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = iter([0.0, 0.0, 3.3, 6.6])
    monkeypatch.setattr("tasks.platform.stage.time", SimpleNamespace(monotonic=lambda: next(clock)))
    meter = Meter(said.append, "examples", 5024, every_s=0)
    for done in range(3):
        meter(done)
    assert said == ["examples 0/5024 (0%)", "examples 1/5024 (0%)", "examples 2/5024 (0%), 16573 s left"]


def run_stage(root: Path, body: str) -> subprocess.CompletedProcess[str]:
    return run_code(root, stage_code(body))


def stage_code(body: str) -> str:
    """A program that is a stage with that body."""
    code = "from tasks.platform.stage import run\nfrom orchestra.errors import *\n"
    return code + f"def main(stage):\n    {body}\nrun('demo', main)"


def run_code(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_fault_for_people_is_one_line_and_exit_code_2(stage: Stage) -> None:
    done = run_stage(stage.root, "raise DataError('corrupt', where='a.jsonl', fix='fix it')")
    assert (done.returncode, done.stderr, done.stdout) == (2, "error: demo: a.jsonl: corrupt — fix it\n", "")


def test_a_bug_is_a_traceback_and_exit_code_1(stage: Stage) -> None:
    done = run_stage(stage.root, "1 / 0")
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == "error: demo: ZeroDivisionError: division by zero"


def test_a_full_gpu_is_one_line_of_its_own_kind(stage: Stage) -> None:
    said = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
    said += "1.00 GiB is free. Process 7 has 70.00 GiB memory in use."
    advice = "Of the allocated memory 7.00 GiB is allocated by PyTorch.\\nSee documentation"
    done = run_stage(stage.root, f"import torch; raise torch.OutOfMemoryError('{said} {advice}')")
    fix = "end what else uses the GPU, or use a smaller batch"
    assert (done.returncode, done.stderr) == (2, f"error: demo: {said.rstrip('.')} — {fix}\n")
    assert (stage.root / FAILURE_KIND.format("demo")).read_text(encoding="utf-8") == "OutOfMemory"


def test_what_a_lost_rank_breaks_in_another_is_not_the_error(stage: Stage) -> None:
    """Rank 1 is killed, and rank 0 notices before `launch` does: the whole ends as a killed stage does."""
    body = """if os.environ['RANK'] == '1':
        Path('pid').write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    while not Path('pid').exists():
        time.sleep(0.001)
    raise RuntimeError('Connection reset by peer')"""
    rank = f"import os, signal, time\nfrom pathlib import Path\n{stage_code(body)}"
    launcher = f"from pathlib import Path\nfrom orchestra.training.distributed import launch\n" \
        f"launch([sys.executable, '-c', {rank!r}], 2, Path())"  # fmt: skip
    done = run_code(stage.root, f"import sys\n{launcher}")
    assert done.returncode == -signal.SIGKILL
    assert (done.stdout, done.stderr) == ("", "") and not list(stage.root.rglob("*.error"))


def test_a_rank_that_fails_ends_at_once_whatever_its_threads_do(stage: Stage) -> None:
    """One may play the next round for an hour, and pay for it, while the other ranks wait."""
    body = """import os, time
    from concurrent.futures import ThreadPoolExecutor
    os.environ['RANK'] = '1'
    print('before')
    ThreadPoolExecutor(1).submit(time.sleep, 50)
    raise DataError('corrupt', where='a.jsonl', fix='fix it')"""
    began = time.monotonic()
    done = run_stage(stage.root, body)
    assert (done.returncode, done.stderr, done.stdout) == (2, "error: demo: a.jsonl: corrupt — fix it\n", "before\n")
    assert time.monotonic() - began < 40


def test_bad_parameters_are_one_line(stage: Stage) -> None:
    _replace(stage.root / "params.yaml", "  epochs:", "  epoch:")
    done = run_stage(stage.root, "pass")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "sft.epoch" in done.stderr


def test_a_meter_of_a_run_that_continues_counts_from_where_it_goes_on() -> None:
    said: list[str] = []
    meter = Meter(said.append, "sft", 30, every_s=0.0, begun=10)
    for step in (1, 10, 11, 30):
        meter(step)
    assert said == ["sft 11/30 (36%)", "sft 30/30 (100%)"]
