"""`orchestra launch` writes the job that params.yaml needs, and hands it to the scheduler that is there."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.errors import ConfigError, ServiceError
from tests.support.worlds import ROOT

SLURM = ["launch", "--on", "slurm", "--nodes", "2", "--gpus", "2"]


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace whose GRPO has four ranks, and no scheduler."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["grpo"] |= {"processes": 4, "optimizer": "adamw"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


def test_the_job_goes_to_the_screen_or_a_file(workspace: Path) -> None:
    text = run(*SLURM)
    assert "ranks grpo" in text
    run(*SLURM, "--out", "job.sbatch")
    assert (workspace / "job.sbatch").read_text(encoding="utf-8") == text


def test_the_file_is_that_of_the_present_folder(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "inside").mkdir()
    monkeypatch.chdir(workspace / "inside")
    run(*SLURM, "--out", "job.sbatch")
    assert (workspace / "inside/job.sbatch").is_file() and not (workspace / "job.sbatch").exists()


def test_a_train_job_needs_an_image_and_a_volume() -> None:
    kubernetes = ["launch", "--on", "kubernetes", "--nodes", "2", "--gpus", "2"]
    with pytest.raises(ConfigError, match="--claim"):
        run(*kubernetes, "--image", "i")
    assert "kind: TrainJob" in run(*kubernetes, "--image", "i", "--claim", "c")


def test_a_later_stage_waits_for_the_command_that_is_said(workspace: Path) -> None:
    params = yaml.safe_load((workspace / "params.yaml").read_text(encoding="utf-8"))
    params["sft"] |= {"processes": 4, "optimizer": "adamw"}
    (workspace / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    kubectl = workspace / "kubectl"
    kubectl.write_text("#!/bin/sh\n", encoding="utf-8")
    kubectl.chmod(0o755)
    told = run(
        "launch", "--on", "kubernetes", "--nodes", "2", "--gpus", "2", "--image", "i", "--claim", "c", "--submit"
    ).splitlines()
    assert told[1:] == [
        "grpo waits: once the stage before it has ended, kubectl patch trainjob orchestra-embedded-grpo --type merge "
        """--patch '{"spec": {"suspend": false}}'"""
    ]


def test_a_secret_gives_the_pods_what_the_real_experts_need(workspace: Path) -> None:
    (workspace / "data").symlink_to(ROOT / "data")
    params = yaml.safe_load((workspace / "params.yaml").read_text(encoding="utf-8"))
    params["world"] |= {"catalogue": "data/catalogue/real.yaml", "price_date": "2026-08-06"}
    (workspace / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    text = run(
        "launch", "--on", "kubernetes", "--nodes", "2", "--gpus", "2", "--image", "i", "--claim", "c",
        "--secret", "experts",
    )  # fmt: skip
    env = yaml.safe_load(text)["spec"]["trainer"]["env"]
    assert "OPENAI_API_KEY" in [one["name"] for one in env]
    assert all(one["valueFrom"]["secretKeyRef"] == {"name": "experts", "key": one["name"]} for one in env)


def test_it_is_handed_to_the_scheduler_or_said_that_there_is_none(workspace: Path) -> None:
    with pytest.raises(ServiceError, match="sbatch is not installed"):
        run(*SLURM, "--submit")
    sbatch = workspace / "sbatch"
    sbatch.write_text(f'#!/bin/sh\necho "$1" > {workspace}/submitted\n', encoding="utf-8")
    sbatch.chmod(0o755)
    run(*SLURM, "--submit")
    assert (workspace / "submitted").read_text(encoding="utf-8").strip().endswith("work/launch.sbatch")
    sbatch.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    with pytest.raises(ServiceError, match="sbatch refused"):
        run(*SLURM, "--submit")
