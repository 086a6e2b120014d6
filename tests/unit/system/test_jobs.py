"""Jobs on several machines: what is rendered is what Slurm and Kubeflow accept."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

from orchestra.config.schema import Params, load_params
from orchestra.errors import ConfigError
from orchestra.system.jobs import LONGEST_NAME, MOUNT, Machines, Pod, job_name, sbatch_script, spread, train_job
from tests.support.worlds import ROOT

SBATCH = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "mem", "time", "output"}
"""Options of sbatch(1) that the script may use."""


def params(**processes: int) -> Params:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    for stage, count in processes.items():
        raw[stage] |= {"processes": count, "strategy": "zero3", "optimizer": "adamw"}
    return Params.model_validate(raw, strict=False)


def keys(value: Any) -> set[str]:
    """Every key at any depth."""
    if isinstance(value, dict):
        return set(value) | {inner for one in value.values() for inner in keys(one)}
    return {inner for one in value for inner in keys(one)} if isinstance(value, list) else set()


def test_a_script_runs_the_whole_pipeline_and_the_training_on_every_node(tmp_path: Path) -> None:
    text = sbatch_script(params(sft=16, grpo=16), Machines(2, 8, hours=48))
    script = tmp_path / "job.sbatch"
    script.write_text(text, encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    options = re.findall(r"^#SBATCH --([\w-]+)", text, re.MULTILINE)
    assert set(options) <= SBATCH
    assert {"#SBATCH --mem=0", "#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --time=48:00:00"} <= set(
        text.splitlines()
    )
    steps = [line for line in text.splitlines() if line.startswith(("ranks ", ".venv"))]
    run = ".venv/bin/orchestra run"
    assert steps == [f"{run} --until validate", "ranks sft", "ranks grpo", run]


def played(tmp_path: Path, text: str, fresh: tuple[str, ...] = ()) -> list[str]:
    """What a script calls: its commands only write down their words, and DVC has the outputs of the `fresh` stages."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("srun", "scontrol", ".venv/bin/orchestra", ".venv/bin/dvc"):
        called = f'echo "{Path(name).name} $*" >> "$SLURM_SUBMIT_DIR/log"; echo "$ORCHESTRA_JOB" >> "{tmp_path}/jobs"'
        if name == "scontrol":
            called = 'echo "n1"; echo "n2"'
        elif name == ".venv/bin/dvc":
            called = f'[ "$1" != status ] || exec grep -qw -- "$3" <<< "{" ".join(fresh)}"\n{called}'
        (tmp_path / name).write_text(f"#!/bin/bash\n{called}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7"}
    env["SLURM_JOB_NODELIST"] = "n[1-2]"
    for stage in ("sft", "grpo"):
        (tmp_path / "work" / stage / "checkpoints").mkdir(parents=True)
    assert subprocess.run(["bash", "-c", text], env=env, check=False).returncode == 0
    return (tmp_path / "log").read_text(encoding="utf-8").splitlines()


def test_the_script_starts_torchrun_once_a_node_and_tells_dvc(tmp_path: Path) -> None:
    """The script's own shell function, with commands that write down what they were called with."""
    lines = played(tmp_path, sbatch_script(params(grpo=4), Machines(2, 2)))
    assert [one.name for one in (tmp_path / "work").iterdir()] == ["sft"], "checkpoints go when DVC has the outputs"
    assert lines[:2] == ["orchestra run --until validate", "orchestra run --until sft"]
    assert lines[3:] == ["dvc commit --force grpo", "orchestra run"]
    assert re.fullmatch(
        r"srun --ntasks=2 .*--kill-on-bad-exit=1 .* --nnodes=2 --nproc-per-node=2 .* "
        r"--rdzv-id=7 --rdzv-endpoint=n1:29500 -m tasks.grpo",
        lines[2],
    )
    assert set((tmp_path / "jobs").read_text(encoding="utf-8").split()) == {"slurm-7"}, "one ledger, under one cap"


def test_a_later_job_trains_only_what_the_one_before_did_not_end(tmp_path: Path) -> None:
    lines = played(tmp_path, sbatch_script(params(sft=4, grpo=4), Machines(2, 2)), fresh=("sft",))
    assert [line.rpartition(" ")[2] for line in lines if not line.startswith("orchestra")] == ["tasks.grpo", "grpo"]


def test_train_jobs_hold_to_kubeflows_own_schema() -> None:
    pod = Pod("registry.example/orchestra:1", "ws", "experts", ["OPENAI_API_KEY", "OPENAI_BASE_URL"])
    text = train_job(params(sft=16, grpo=16), Machines(2, 8), pod)
    jobs = list(yaml.safe_load_all(text))
    assert [one["metadata"]["name"] for one in jobs] == ["orchestra-embedded-sft", "orchestra-embedded-grpo"]
    assert [one["spec"].get("suspend", False) for one in jobs] == [False, True], "GRPO begins with what SFT ends with"
    for one in jobs:
        known = TrainerV1alpha1TrainJob.from_dict(one)
        assert known is not None
        # What the schema does not know, it drops.
        assert keys(known.to_dict()) == keys(one)
        trainer = known.spec.trainer
        assert trainer is not None
        assert (trainer.num_nodes, trainer.num_proc_per_node) == (2, 8)
        assert trainer.command is not None
        assert MOUNT in trainer.command[-1]
        assert one["spec"]["trainer"]["env"][0] == {
            "name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "experts", "key": "OPENAI_API_KEY"}},
        }  # fmt: skip
        patch = one["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
        spec = patch["template"]["spec"]["template"]["spec"]
        assert {"name": "shared-memory", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("profile", ["qwen3-0.6b", "A_Team" + "-profile" * 9])
def test_the_name_of_a_job_is_one_that_kubernetes_takes(profile: str) -> None:
    names = [job_name(params().model_copy(update={"profile": profile}), stage) for stage in ("sft", "grpo")]
    assert names[0] != names[1]
    assert all(re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", one) and len(one) <= LONGEST_NAME for one in names)


def test_a_job_without_a_secret_names_no_variable() -> None:
    (job,) = yaml.safe_load_all(train_job(params(grpo=16), Machines(2, 8), Pod("image", "ws")))
    assert "env" not in job["spec"]["trainer"]


def test_ranks_are_as_many_as_gpus_or_one() -> None:
    assert spread(params(grpo=16), Machines(2, 8)) == ["grpo"]
    with pytest.raises(ConfigError, match=r"grpo.processes is 8 where 2 x 8 GPUs are 16"):
        spread(params(grpo=8), Machines(2, 8))
    with pytest.raises(ConfigError, match="no stage trains on more than one GPU"):
        spread(load_params(ROOT / "params.yaml"), Machines(2, 8))
