"""Byte code that a full disk cuts off: the next process imports the module all the same."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.worlds import ROOT

LIMIT = 300
"""Bytes that a file may have: the system takes the beginning of a longer one, as a full disk does."""


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


def test_byte_code_that_was_cut_off_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("\n".join(f"name_{i} = 'text {i}'" for i in range(200)))
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))"
    python(tmp_path, f"import orchestra; {limit}; import large")
    assert not list(tmp_path.rglob("large*.pyc*"))
    done = python(tmp_path, "import orchestra, large; print(large.name_7)")
    assert done.stdout == "text 7\n", done.stderr
    assert list(tmp_path.rglob("large*.pyc"))


def test_the_package_can_be_imported_again(tmp_path: Path) -> None:
    (tmp_path / "fresh.py").write_text("name = 'text'\n")
    done = python(tmp_path, "import importlib, orchestra; importlib.reload(orchestra); import fresh; print(fresh.name)")
    assert done.stdout == "text\n", done.stderr
    assert list(tmp_path.rglob("fresh*.pyc"))
