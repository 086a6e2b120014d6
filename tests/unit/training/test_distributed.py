"""Starting ranks: who they are told to be, what is heard of them, and that none is left."""

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestra.config.schema import load_params
from orchestra.errors import ServiceError
from orchestra.system.processes import alive, kill_tree
from orchestra.training import distributed
from orchestra.training.compute.arguments import common_arguments

NAME = distributed.INTERFACE
ROOT = Path(__file__).parents[3]
WHO = "import os; print(*(os.environ.get(n, '-') for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MLFLOW_RUN_ID')))"
REST = "import os, time; open(f'{os.getppid()}.{os.environ[\"RANK\"]}.{os.getpid()}', 'w'); time.sleep(9999)"

TALK = """
import torch
from orchestra.training import distributed
# As NCCL's: a group that serves nothing in the machine's own memory.
torch.distributed.init_process_group("cuda:gloo")
distributed.wait_for_all()
said = distributed.gathered(f"rank {distributed.rank()}")
print(*said, sep=", ")
"""


def only(number: int, does: str, others: str = "import time; time.sleep(9999)") -> list[str]:
    """A command in which one rank does something else than the others."""
    return [sys.executable, "-c", f"import os, sys\nif os.environ['RANK'] == '{number}':\n {does}\nelse:\n {others}"]


def test_each_is_told_who_it_is_and_rank_0_alone_records(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "abc")
    distributed.launch([sys.executable, "-c", WHO], 3, tmp_path)
    assert capfd.readouterr().out == "0 0 3 abc\n"
    assert (tmp_path / "rank-1.log").read_text() == "1 1 3 -\n"
    assert (tmp_path / "rank-2.log").read_text() == "2 2 3 -\n"


def test_outside_of_a_launch_there_is_one() -> None:
    assert (distributed.joined(), distributed.rank(), distributed.world_size()) == (False, 0, 1)
    assert distributed.gathered("mine") == ["mine"]


def test_objects_and_waits_need_no_gpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In NCCL a waiting rank keeps its GPU busy, which the rollout server shares."""
    distributed.launch([sys.executable, "-c", TALK], 2, tmp_path)
    assert capfd.readouterr().out == "rank 0, rank 1\n" == (tmp_path / "rank-1.log").read_text()


def test_of_several_machines_the_interface_to_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo's own choice is that of the host's name, which is often the loopback's."""
    made = list[dict[str, Any]]()
    monkeypatch.setattr(torch.distributed, "new_group", lambda **how: made.append(how | {"by": os.environ.get(NAME)}))
    monkeypatch.setattr(distributed, "_interface", lambda: "eth7")
    for local, named, expected in (("4", None, None), ("2", None, "eth7"), ("2", "ib0", "ib0")):
        distributed._talks.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": local, NAME: named}.items():
                patch.delenv(variable, raising=False)
                if value is not None:
                    patch.setenv(variable, value)
            distributed._talks(None)
            os.environ.pop(NAME, None)
        assert made.pop() == {"backend": "gloo", "timeout": timedelta(days=1), "by": expected}
    distributed._talks.cache_clear()


@pytest.mark.parametrize(("routes", "found"), [(["10.0.0.7"], "eth0"), (["127.0.1.1", "10.0.0.7"], "eth0"), ([], None)])
def test_an_interface_is_found_by_the_way_to_other_machines(
    routes: list[str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the first machine its own name is often the loopback's; a machine without a network has none."""
    left = list(routes)

    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            if not left:
                raise OSError("Network is unreachable")

        def getsockname(self) -> Any:
            return left.pop(0), 9

    there = {"lo": "127.0.1.1", "eth0": "10.0.0.7"}
    addresses = {name: [SimpleNamespace(address=address)] for name, address in there.items()}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: addresses)
    monkeypatch.setattr(socket, "socket", Probe)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert distributed._interface() == found


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_a_rank_waits_longer_than_any_development_check_takes(stage: str, tmp_path: Path) -> None:
    from transformers import TrainingArguments

    compute = getattr(load_params(ROOT / "models/recipes/qwen3-0.6b/params.yaml"), stage)
    arguments = common_arguments(tmp_path, seed=0, save_steps=1, compute=compute)
    assert TrainingArguments(**arguments).ddp_timeout == distributed.WAIT_S == 24 * 3600


def test_what_another_rank_says_last_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"process 1 of 2 failed: ValueError: no room .*rank-1.log"):
        distributed.launch(only(1, "raise ValueError('no room')"), 2, tmp_path)


def test_a_rank_that_takes_long_to_end_hides_no_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs a killed process may take seconds to leave."""
    ended = list[tuple[int, ...]]()

    def slow(*pids: int, grace_s: float) -> None:
        ended.append(pids)
        kill_tree(*pids, grace_s=grace_s)
        raise ServiceError(f"process {pids[0]} does not end", where="stop", fix=f"kill -9 {pids[0]}")

    monkeypatch.setattr(distributed, "kill_tree", slow)
    with pytest.raises(ServiceError, match=r"process 1 of 3 failed: ValueError: no room"):
        distributed.launch(only(1, "raise ValueError('no room')"), 3, tmp_path)
    assert [len(pids) for pids in ended] == [2], "all at once"


def test_what_rank_0_has_said_is_not_said_again(tmp_path: Path) -> None:
    """Every rank finds the same fault; rank 0 is given the time to say it."""
    with pytest.raises(SystemExit) as caught:
        distributed.launch(only(0, "import time; time.sleep(1); sys.exit(2)", "sys.exit(2)"), 2, tmp_path)
    assert caught.value.code == 2


@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_a_kill_leaves_nothing(tmp_path: Path, victim: str) -> None:
    """A killed rank ends the launcher by the same signal; a killed launcher ends the ranks."""
    code = f"import sys; from pathlib import Path; from orchestra.training import distributed\n" \
        f"distributed.launch([sys.executable, '-c', {REST!r}], 2, Path('.'))"  # fmt: skip
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 200
    while len(found := list(tmp_path.glob(f"{launcher.pid}.*.*"))) < 2:
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.05)
    pids = [int(path.name.split(".")[2]) for path in sorted(found)]
    os.kill(pids[1] if victim == "rank" else launcher.pid, signal.SIGKILL)
    assert launcher.wait(timeout=200) == -signal.SIGKILL
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline + 200
        time.sleep(0.05)
