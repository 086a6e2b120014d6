"""Training on several machines as a job of a cluster's own scheduler: an sbatch script or a Kubeflow TrainJob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from orchestra.config.schema import Params
from orchestra.errors import ConfigError
from orchestra.system.machine import TRAINED, compute_of

PORT = 29500
"""Where the ranks find each other on the first machine."""
MOUNT = "/workspace"
"""Where pods see the workspace."""
LONGEST_NAME = 45
"""Characters of a TrainJob's name: the names of its pods, of at most 63, begin with it."""


@dataclass(frozen=True)
class Machines:
    """What a job asks for."""

    nodes: int
    gpus: int
    """Of each node."""
    hours: int = 24
    """The scheduler ends the job then; a later one continues it from its last checkpoint."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus


def spread(params: Params, machines: Machines) -> list[str]:
    """The training stages that run on all machines; those with one process run on the first.

    Raises `ConfigError` where a stage's processes are as many as neither.
    """
    found = []
    for name in TRAINED:
        processes = compute_of(params, name).processes
        if processes == machines.ranks:
            found.append(name)
        elif processes != 1:
            raise ConfigError(
                f"{name}.processes is {processes} where {machines.nodes} x {machines.gpus} GPUs are {machines.ranks}",
                where="params.yaml", fix=f"set {name}.processes to {machines.ranks}, or to 1",
            )  # fmt: skip
    if not found:
        raise ConfigError(
            "no stage trains on more than one GPU", where="params.yaml", fix=f"set grpo.processes to {machines.ranks}"
        )
    return found


def sbatch_script(params: Params, machines: Machines) -> str:
    """The whole pipeline as one Slurm job: it is submitted from the workspace, which every node must see."""
    every = spread(params, machines)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=orchestra-{params.profile}",
        f"#SBATCH --nodes={machines.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={machines.gpus}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",  # All of each node's: --exclusive gives all cores only.
        f"#SBATCH --time={machines.hours}:00:00",
        "#SBATCH --output=slurm-%j.log",
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        "# All of the job books in one file of .state/ledger, under one cap (budget.run_usd).",
        'export ORCHESTRA_JOB="slurm-$SLURM_JOB_ID"',
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        "",
        "# One stage on every GPU of every node; the other stages run on the first node.",
        "# Once DVC has the outputs, the checkpoints only fill the disk, and a later job goes on with the next stage.",
        "ranks() {",
        '    .venv/bin/dvc status --quiet "$1" && return',
        # Without it the other nodes wait, with all their GPUs, for one that has failed.
        f"    srun --ntasks={machines.nodes} --ntasks-per-node=1 --kill-on-bad-exit=1 \\",
        "        .venv/bin/python -m torch.distributed.run \\",
        f"        --nnodes={machines.nodes} --nproc-per-node={machines.gpus} --rdzv-backend=c10d \\",
        f'        --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:{PORT}" -m "tasks.$1"',
        '    .venv/bin/dvc commit --force "$1"',
        '    rm -rf "work/$1"',
        "}",
        "",
        ".venv/bin/orchestra run --until validate",
    ]
    lines += [f"ranks {name}" if name in every else f".venv/bin/orchestra run --until {name}" for name in TRAINED]
    return "\n".join([*lines, ".venv/bin/orchestra run"]) + "\n"


@dataclass(frozen=True)
class Pod:
    """What the pods of a TrainJob are made of."""

    image: str
    claim: str
    """The volume that holds the workspace."""
    secret: str = ""
    """The Secret that holds `variables`, each under its own name; empty: none."""
    variables: Sequence[str] = ()

    @property
    def env(self) -> list[dict[str, object]]:
        """The schema has no envFrom, so that each variable is named."""
        return [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": self.secret, "key": name}}} for name in self.variables
        ]


def train_job(params: Params, machines: Machines, pod: Pod) -> str:
    """One TrainJob (YAML) for each stage that runs on all machines; those after the first wait to be resumed.

    A stage's inputs must be there: the stages before it ran on the same volume.
    """
    first, *later = spread(params, machines)
    made = [_train_job(params, machines, pod, first), *(_train_job(params, machines, pod, one, True) for one in later)]
    return "---\n".join(yaml.safe_dump(one, sort_keys=False) for one in made)


def job_name(params: Params, stage: str) -> str:
    """A name within `LONGEST_NAME` characters, of those that Kubernetes takes."""
    of_profile = f"orchestra-{params.profile}"[: LONGEST_NAME - len(stage) - 1]
    return f"{of_profile}-{stage}".replace(".", "-").replace("_", "-").lower()


def resume_command(params: Params, stage: str) -> str:
    """Starts the TrainJob of a later stage, once the one before has ended well."""
    patch = '{"spec": {"suspend": false}}'
    return f"kubectl patch trainjob {job_name(params, stage)} --type merge --patch '{patch}'"


def _train_job(params: Params, machines: Machines, pod: Pod, stage: str, waits: bool = False) -> dict[str, object]:
    # The runtime sets torchrun's variables, the number of nodes and of processes among them.
    script = f"cd {MOUNT} && exec python -m torch.distributed.run -m tasks.{stage}"
    # A pod has 64 MB of shared memory, and the ranks exchange more through it: NCCL, gloo and a server of several GPUs.
    volumes = {
        "workspace": (MOUNT, {"persistentVolumeClaim": {"claimName": pod.claim}}),
        "shared-memory": ("/dev/shm", {"emptyDir": {"medium": "Memory"}}),
    }
    mounts = [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()]
    spec = {
        "volumes": [{"name": name, **kind} for name, (_, kind) in volumes.items()],
        "containers": [{"name": "node", "volumeMounts": mounts}],
    }
    job = {"name": "node", "template": {"spec": {"template": {"spec": spec}}}}
    patch = {"manager": "orchestra", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job_name(params, stage)},
        "spec": {
            **({"suspend": True} if waits else {}),
            "runtimeRef": {"name": "torch-distributed"},
            "activeDeadlineSeconds": machines.hours * 3600,
            "trainer": {
                "image": pod.image,
                "command": ["bash", "-c", script],
                **({"env": pod.env} if pod.variables else {}),
                "numNodes": machines.nodes,
                "numProcPerNode": machines.gpus,
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": str(machines.gpus)}},
            },
            "runtimePatches": [patch],
        },
    }
