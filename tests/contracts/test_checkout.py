"""A checkout is the same everywhere, and its scripts find it, whatever git and the shell are set to."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("scripts/*.sh"), ROOT / ".ci/run"])


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_checkout_has_the_bytes_that_were_committed(tmp_path: Path) -> None:
    made = {
        "setup.sh": b"#!/bin/bash\necho 1\n",
        "weights.safetensors": b"text\r\nand\nmore\r\n",
        "a.json.gz": b"\r\n\n",
    }
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.autocrlf", "true")
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    for name, data in made.items():
        (tmp_path / name).write_bytes(data)
    git(tmp_path, "add", "-A")
    for name in made:
        (tmp_path / name).unlink()
    git(tmp_path, "checkout", "--", ".")
    assert {name: (tmp_path / name).read_bytes() for name in made} == made


def test_every_text_file_has_plain_line_ends() -> None:
    ends = [line.split(None, 3) for line in git(ROOT, "ls-files", "--eol").splitlines()]
    assert {tuple(one[:2]) for one in ends} <= {("i/lf", "w/lf"), ("i/none", "w/none"), ("i/-text", "w/-text")}
    assert {one[2] for one in ends if one[0] == "i/-text"} == {"attr/-text"}, "name each binary kind in .gitattributes"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_finds_its_workspace_where_cdpath_is_exported(script: Path, tmp_path: Path) -> None:
    folder = script.relative_to(ROOT).parent
    for root in ("workspace", "decoy"):
        (tmp_path / root / folder).mkdir(parents=True)
    lines = script.read_text(encoding="utf-8").splitlines()
    (first,) = [number for number, line in enumerate(lines) if "cd " in line and not line.lstrip().startswith("#")]
    told = [*lines[: first + 1], 'echo "${install_home:-$PWD}"']
    (tmp_path / "workspace" / folder / script.name).write_text("\n".join(told), encoding="utf-8")
    env = {**os.environ, "CDPATH": str(tmp_path / "decoy")}
    command = ["bash", str(folder / script.name)]
    done = subprocess.run(command, cwd=tmp_path / "workspace", env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path / 'workspace'}\n"
