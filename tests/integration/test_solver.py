"""A checkpoint that measures difficulty plays as `evaluate.engine` says, in process or through a vLLM server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.files.examples import read_examples
from orchestra.files.jsonl import write_jsonl
from orchestra.serving.releases import vllm
from orchestra.types import Example, Preference
from tests.support.engines import HEAD
from tests.support.worlds import ROOT, codec, easy_example, example, toolkit, warm_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(vllm.interpreter(ROOT) is None, reason="no .venv-vllm: bash scripts/setup_vllm.sh builds it"),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "world": {"domains": ["mock"]},
    "rollout": {"max_turns": 2, "max_turn_tokens": 24, "max_tokens": 200},
    "grpo": {"temperature": 1.0},
    "evaluate": {"server": {"device": "cpu", "dtype": "float32", "sequences": 16}},
}
TRIES = 16


def asked(name: str) -> Example:
    """The checkpoint says one of three things, of which this one solves it."""
    cheap = Preference(kind="cheap", words="", outcome=0.5, compute=1, latency=0)
    right = example(answer="yes", kind="exact").verifier
    return easy_example(name, cheap).model_copy(update={"verifier": right})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a checkpoint that solves easy examples in some of its tries."""
    made = tmp_path_factory.mktemp("workspace")
    for shared in ("dvc.yaml", "data/catalogue", "data/domains", "models/recipes", ".venv-vllm"):
        (made / shared).parent.mkdir(parents=True, exist_ok=True)
        (made / shared).symlink_to((ROOT / shared).resolve())
    for folder in ("data/generated", "data/validated"):
        (made / folder).mkdir()
    toolkit(made / "data/generated")
    write_jsonl(made / "data/validated/train.jsonl", [asked(f"e{i}") for i in range(6)])
    warm_model(head_dim=HEAD).save_pretrained(str(made / "models/sft"))
    codec().tokenizer.save_pretrained(str(made / "models/sft"))
    return made


def measured(root: Path, engine: str) -> tuple[list[float], str]:
    """The difficulties that the command writes, and what it says."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    for section, changes in SETTINGS.items():
        params[section] |= changes
    params["evaluate"]["engine"] = engine
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    to = f"data/extra/{engine}.jsonl"
    command = [sys.executable, "-m", "orchestra.cli.main", "data", "measure", "data/validated/train.jsonl"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--solver", "models/sft", "--tries", str(TRIES), "--to", to],
        cwd=root, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [one.difficulty for one in read_examples(root / to)]
    assert None not in found
    return [share for share in found if share is not None], done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_both_engines_find_the_same_difficulty(root: Path) -> None:
    own, said = measured(root, "in_process")
    assert "vLLM" not in said and not (root / ".state/logs/solver").exists()
    served, said = measured(root, "vllm")
    assert "starting vLLM with sft" in said
    log = (root / ".state/logs/solver/vllm.log").read_text(encoding="utf-8")
    assert "model='checkpoint'" in log and "Application startup complete" in log
    for shares in (own, served):
        assert len(shares) == 6 and len(set(shares)) > 1, "tries are sampled, not greedy"
        assert 0.05 < sum(shares) / len(shares) < 0.95
    # 96 tries each, with random numbers of their own: the difference has a standard deviation of 0.07 at most.
    assert abs(sum(own) - sum(served)) / len(own) < 0.22
    assert not [pid for pid in filter(str.isdigit, os.listdir("/proc")) if str(root).encode() in _command(pid)]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
