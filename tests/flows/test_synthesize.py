"""The synthesize flow: the same set on whichever task runner the setting names."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows import synthesize as flow
from orchestra.config.overrides import apply
from orchestra.errors import ConfigError
from orchestra.synthesis.dataset.shards import FILES
from orchestra.synthesis.dataset.workers import synthesize
from tests.support.worlds import ROOT
from tests.unit.synthesis.dataset.test_shards import params

SETTINGS = ["world.domains=[mock]", "synthesize.train_examples=48"]
MIX = "synthesize.mix={arithmetic: 0.2, fact: 0.1, two_hop: 0.1, topic: 0.5, lookup: 0.05, change: 0.05}"
SHARD_SIZE = 15


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for part in ("catalogue", "domains/mock"):
        shutil.copytree(ROOT / "data" / part, tmp_path / "data" / part)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize("setting", ["processes:2", pytest.param("dask:2", marks=pytest.mark.slow), "ray:2"])
def test_two_workers_of_a_task_runner_make_what_one_process_makes(
    setting: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, package = flow.RUNNERS[setting.partition(":")[0]]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{package} is not installed")
    # As without a task runner, ORCHESTRA_PARAMS names the file; params.yaml would make thousands.
    shutil.copy(root / "params.yaml", root / "other.yaml")
    apply(root / "other.yaml", [*SETTINGS, MIX])
    monkeypatch.setenv("ORCHESTRA_PARAMS", "other.yaml")
    mapped = flow.synthesize.with_options(task_runner=flow.task_runner(setting))
    state = mapped(out="set", overrides=["synthesize.heldout_examples=12"], shard_size=SHARD_SIZE, return_state=True)
    assert state.is_completed() and state.result() == 60
    synthesize(params(train_examples=48, heldout_examples=12), root, root / "alone", shard_size=SHARD_SIZE)
    for name in FILES:
        assert (root / "set" / name).read_bytes() == (root / "alone" / name).read_bytes()


def test_the_params_file_is_looked_at_before_anything_starts(root: Path) -> None:
    env = os.environ | {"ORCHESTRA_PARAMS": "none.yaml", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "flows", "synthesize"], cwd=root, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "none.yaml: no such file" in done.stderr


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("slurm", "names no task runner"),
        ("processes:0", "names no task runner"),
        ("threads@tcp://host:1", "names no task runner"),
    ],
)
def test_a_setting_that_names_none_is_refused(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        flow.task_runner(setting)


def test_a_runner_that_is_not_installed_says_which_package_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flow.RUNNERS, "dask", ("no_such_module", "DaskTaskRunner", "prefect-dask"))
    with pytest.raises(ConfigError, match="prefect-dask is not installed — pip install prefect-dask"):
        flow.task_runner("dask@tcp://host:8786")
