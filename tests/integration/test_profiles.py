"""Qwen3 profiles from data to evaluation, and one to a served answer, small: a random model of that architecture."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from orchestra.config.overrides import apply
from orchestra.config.profiles import put_in_force
from orchestra.files.checkpoint import hash_dir
from orchestra.rollout.parse import format_answer
from orchestra.serving.releases.vllm import interpreter
from orchestra.system.processes import stop_services
from orchestra.types import SPLITS
from tests.flows.workspace import make
from tests.support.qwen3 import codec, random_base, vocabulary
from tests.support.worlds import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(vocabulary() is None, reason="dashscope, which has the vocabulary, is not installed"),
]
STAGES = ("synthesize", "validate", "sft", "grpo", "evaluate")
SHARED = (
    "dvc.yaml",
    "data/catalogue",
    "data/domains",
    "data/licences.yaml",
    "data/protected",
    "data/safety",
    "models/recipes",
)
EXTRA = [{"file": f"data/extra/{split}.jsonl", "split": split} for split in SPLITS]
MICRO = [
    "model.base=models/start", "model.revision=null", f"synthesize.extra={json.dumps(EXTRA)}",
    "synthesize.train_examples=24", "synthesize.heldout_examples=24",
    "rollout.max_turns=3", "rollout.max_turn_tokens=24", "rollout.max_tokens=2048",
    "sft.batch_size=4", "sft.save_steps=2",
    "grpo.steps=2", "grpo.examples_per_step=4", "grpo.group_size=4", "grpo.learning_rate=0.001", "grpo.eval_every=1",
    "grpo.eval_examples=24", "grpo.save_steps=1",
    "evaluate.examples=6", "evaluate.bootstrap=50",
]  # fmt: skip
CPU = "{device: cpu, dtype: bfloat16, sequences: 16}"
SERVED = [
    "world.catalogue=data/catalogue/tools.yaml", "world.price_date=2025-11-15", "grpo.micro_batch=4",
    "synthesize.evolved_share=0.0", f"grpo.server={CPU}", f"evaluate.server={CPU}",
]  # fmt: skip
RANKS = [f"{stage}.{switch}" for stage in ("sft", "grpo") for switch in ("processes=2", "strategy=ddp")]
PROFILES = {
    "qwen3-0.6b": ["grpo.engine=in_process", "evaluate.engine=in_process"],
    "qwen3-8b-lora": SERVED,
    "qwen3-8b": [*SERVED, *RANKS],
}
"""What a CPU without accounts needs besides. ZeRO-3 has tests of its own (test_ranks)."""
OPEN = yaml.safe_load((ROOT / "tests/micro.yaml").read_text(encoding="utf-8"))["promote"]
FLOW = [
    f"grpo.server={CPU}", f"evaluate.server={CPU}", "deploy.vllm={device: cpu, dtype: bfloat16}",
    "deploy.gateway_port=0", *(f"promote.{name}={json.dumps(value)}" for name, value in OPEN.items()),
]  # fmt: skip
"""What the whole flow needs on a CPU, with a gate that lets a model pass which solves nothing."""
QUESTIONS = {"train": (100, 140), "heldout": (200, 208)}
"""Numbers that are asked about, by split."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random base that has learned to answer yes or no, whatever it is asked, and nothing else."""
    from orchestra.rollout.policies.transformers import load_model

    folder = random_base(tmp_path_factory.mktemp("base") / "start")
    model: Any = load_model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    turns = [codec().turn(format_answer(word)) for word in ("yes", "no")]
    for step in range(40):
        before = torch.randint(0, 151_643, (32,)).tolist() + codec().encode("<|im_start|>assistant\n")
        turn = turns[step % 2]
        labels = torch.tensor([[-100] * len(before) + turn])
        model(input_ids=torch.tensor([before + turn]), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(str(folder), safe_serialization=True)
    return folder


def run(root: Path, *module: str) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *module], cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{module}: {done.stdout}\n{done.stderr}"
    return done.stdout


def workspace(root: Path, profile: str, base: Path) -> Path:
    """The profile in force, smaller, and questions from elsewhere that the base solves half the time."""
    (root / "data/extra").mkdir(parents=True)
    (root / "models").mkdir()
    for shared in SHARED:
        (root / shared).symlink_to(ROOT / shared)
    shutil.copytree(base, root / "models/start")
    shutil.copy(ROOT / "params.yaml", root)
    put_in_force(root, profile)
    apply(root / "params.yaml", [*MICRO, *PROFILES[profile]])
    import_questions(root)
    return root


def import_questions(root: Path) -> None:
    """`QUESTIONS`, in the files of `EXTRA`."""
    for split, (first, last) in QUESTIONS.items():
        rows: list[dict[str, Any]] = [
            {
                "question_id": number, "question": f"Can {number} be divided by {number % 7 + 2}?",
                "reference_answer": "no" if number % (number % 7 + 2) else "yes", "question_license": "MIT",
                "question_source": "hand", "task": "Mathematics", "prev_messages": [],
            }
            for number in range(first, last)
        ]  # fmt: skip
        file = root / f"{split}-questions.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        to = f"data/extra/{split}.jsonl"
        options = ["--format", "general-thought", "--to", to, "--split", split]
        run(root, "orchestra.cli.main", "data", "import", file.name, *options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    assert before.keys() == after.keys()
    return any(not torch.equal(before[name].float(), after[name].float()) for name in before)


def check_training(root: Path, *, served: bool) -> None:
    """GRPO's two steps: something was learned, and a server played where there was one."""
    steps = [json.loads(line) for line in (root / "reports/grpo_steps.jsonl").read_text(encoding="utf-8").splitlines()]
    trained = [row for row in steps if "train/reward" in row]
    assert [row["step"] for row in trained] == [1, 2]
    assert all(("train/engine/canary_gap" in row) == served for row in trained)
    assert any(row["train/grad_norm"] > 0 and row["train/dead_groups"] < 1 for row in trained)
    assert sum("dev/accuracy" in row for row in steps) == 2


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_stage_to_evaluation(profile: str, start: Path, tmp_path: Path) -> None:
    served = profile != "qwen3-0.6b"
    if served and interpreter(ROOT) is None:
        pytest.skip("no .venv-vllm: bash scripts/setup_vllm.sh builds it")
    root = workspace(tmp_path, profile, start)
    if served:
        (root / ".venv-vllm").symlink_to((ROOT / ".venv-vllm").resolve())
    for stage in STAGES:
        run(root, f"tasks.{stage}")
    base, sft, grpo = (weights(root / "models" / name) for name in ("start", "sft", "grpo"))
    assert moved(base, sft) and moved(sft, grpo)
    assert {weight.dtype for weight in grpo.values()} == {torch.bfloat16}
    manifest = json.loads((root / "models/sft/manifest.json").read_text(encoding="utf-8"))
    assert manifest["extra"]["base_hash"] == hash_dir(root / "models/start")
    report = json.loads((root / "reports/sft.json").read_text(encoding="utf-8"))
    assert math.isfinite(report["loss"])
    check_training(root, served=served)
    measured = json.loads((root / "reports/evaluate.json").read_text(encoding="utf-8"))
    assert {f"{name}.accuracy" for name in ("grpo", "sft", "always_strongest", "knn_router")} <= measured.keys()


@pytest.mark.timeout(3600)
@pytest.mark.skipif(interpreter(ROOT) is None, reason="no .venv-vllm: bash scripts/setup_vllm.sh builds it")
def test_the_smoke_profile_runs_through_vllm_to_a_served_answer(start: Path, tmp_path: Path) -> None:
    """`orchestra run --profile qwen3-0.6b`: every setting is the profile's but for size, device and gate."""
    user = make(tmp_path / "workspace")
    (user.root / ".venv-vllm").symlink_to((ROOT / ".venv-vllm").resolve())
    shutil.copytree(start, user.root / "models/start")
    import_questions(user.root)
    settings = [word for one in (*MICRO, *FLOW) for word in ("--set", one)]
    try:
        said = "\n".join(user.orchestra("run", "--profile", "qwen3-0.6b", *settings, timeout_s=3000))
        answered = "\n".join(user.orchestra("ask", "Can 24 be divided by 6?"))
    finally:
        stop_services(user.root)
    assert "Gate: promoted as version 1" in said and "Serving: http://127.0.0.1:" in said
    assert "Traceback" not in said and "vLLM did not start" not in said
    check_training(user.root, served=True)
    assert "version 1, vllm" in answered
