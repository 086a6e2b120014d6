"""The audit of dependencies never takes silence for a good answer."""

import json
from pathlib import Path

import pytest

from scripts import audit
from scripts.audit import KNOWN, NOT_ASKED, verdict

SOUND = {"name": "attrs", "version": "26.1.0", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": []}]}
UNKNOWN = {"name": "far", "skip_reason": "Dependency not found on PyPI and could not be audited: far (1.0)"}


def told(*packages: object) -> tuple[int, list[str]]:
    return verdict(json.dumps({"dependencies": packages, "fixes": []}))


def test_a_database_that_cannot_be_reached_is_said() -> None:
    for code, lines in (told(UNKNOWN, UNKNOWN), told(), verdict(""), verdict("{}"), verdict("Traceback …")):
        assert code == NOT_ASKED and lines == ["the advisory database cannot be reached: nothing was audited"]


def test_what_is_known_is_named_with_the_version_that_helps() -> None:
    code, lines = told(SOUND, BAD, UNKNOWN)
    assert code == KNOWN and lines == ["old 1.0: PYSEC-1, fixed in 1.1", "not asked about: far"]


def test_packages_without_advisories_are_counted() -> None:
    assert told(SOUND, SOUND) == (0, ["nothing is known about 2 packages"])


def test_without_uv_nobody_is_asked_and_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "UV", tmp_path / "uv")
    assert audit.main() == NOT_ASKED
    (line,) = capsys.readouterr().out.splitlines()
    assert "nothing was audited" in line and "pip install" in line
