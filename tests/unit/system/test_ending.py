"""Ctrl-C, sent for real: one line and exit code 130, whatever the command is at."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.generated import seeds

ROOT = Path(__file__).parents[3]
HAND_OVER = "from orchestra.system.ending import hand_over\nhand_over('work', 'one', '--two')\n"
STOPPED = (130, "stopped\n")


def begun(folder: Path, program: str, *arguments: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(["-c", program] if program else []), *arguments]
    out = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=out, stderr=out, preexec_fn=_in_front)


def _in_front() -> None:
    """As at a terminal: what a shell starts in the background ignores Ctrl-C, with all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_what_is_handed_over_is_told_from_its_first_import_on(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("import sys, time; print(*sys.argv[1:], __name__, flush=True); time.sleep(60)")
    process = begun(tmp_path, HAND_OVER)
    assert process.stdout is not None and process.stdout.readline() == "one --two __main__\n"
    process.send_signal(signal.SIGINT)
    assert ended(process) == STOPPED


def test_what_is_killed_by_sigterm_first_takes_back_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os, signal, sys, time\n"
        "lives, told = os.pipe()\n"
        "child = os.fork()\n"
        "if not child: os.write(told, b'1'); time.sleep(600)\n"
        # Python forgets a signal that a child gets before it has begun.
        "try: os.read(lives, 1); print(child, flush=True); time.sleep(600)\n"
        "finally:\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    print('taken back', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
    )
    process = begun(tmp_path, HAND_OVER)
    assert process.stdout is not None and process.stdout.readline().strip().isdigit()
    process.terminate()
    said, error = process.communicate(timeout=60)
    assert (process.returncode, error, said) == (*STOPPED, f"taken back {-signal.SIGTERM}\n")


def test_ctrl_c_between_a_command_and_what_it_hands_over_to_waits(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("import time; time.sleep(60)")
    struck = (
        "import os, signal; execv = os.execv\n"
        "os.execv = lambda *words: (os.kill(os.getpid(), signal.SIGINT), execv(*words))\n"
    )
    assert ended(begun(tmp_path, struck + HAND_OVER)) == STOPPED


def test_a_command_that_is_interrupted_while_it_is_imported(tmp_path: Path) -> None:
    struck = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(name, path, target=None):\n"
        "        if name == 'orchestra.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from orchestra.cli.main import main; main()"
    )
    assert ended(begun(tmp_path, struck)) == STOPPED


@pytest.mark.parametrize("name", ["PYTHONSAFEPATH", "PYTHONIOENCODING"])
def test_what_is_handed_over_runs_with_that_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "ascii")
    (tmp_path / "work.py").write_text("import other, sys; print(other.SAID)", encoding="utf-8")
    (tmp_path / "other.py").write_text("SAID = '\u00b7'", encoding="utf-8")
    process = begun(tmp_path, "from orchestra.system.environment import quiet; quiet()\n" + HAND_OVER)
    said, error = process.communicate(timeout=60)
    assert (process.returncode, error, said) == (0, "", "\\xb7\n" if name == "PYTHONIOENCODING" else "\u00b7\n")


def test_an_error_of_pydantic_in_place_of_the_interruption(tmp_path: Path) -> None:
    raised = "from pydantic_core import SchemaError; raise SchemaError('Error building model:\\n  {}')"
    for why, found in (("KeyboardInterrupt: ", STOPPED), ("a bug", None)):
        (tmp_path / "work.py").write_text(raised.format(why))
        code, said = ended(begun(tmp_path, HAND_OVER))
        assert (code, said) == found if found else (code == 1 and "Traceback" in said)


@pytest.mark.parametrize("seed", seeds(12, 3))
def test_a_real_command_at_any_moment(seed: int) -> None:
    """Of those that only look: another run may work in this repository at the same time."""
    process = begun(ROOT, "", "-m", "orchestra.cli.main", "explain" if seed % 2 else "status")
    line = Path(f"/proc/{process.pid}/cmdline")
    while b"orchestra.system.ending" not in line.read_bytes():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0, 1))
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    # It may have ended before the signal came.
    assert (code, said) == STOPPED or code != 130
    assert "Traceback" not in said
