"""`orchestra retraining`, as a person types it."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.errors import ConfigError
from orchestra.system.retraining import requests
from tests.support.worlds import ROOT


def test_a_request_without_a_reason_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    for why in ("", "  "):
        error = CliRunner().invoke(app, ["retraining", "ask", why]).exception
        assert isinstance(error, ConfigError) and error.what == "the reason is empty"
    assert requests(tmp_path) == []
    assert "asked: " in CliRunner().invoke(app, ["retraining", "ask", "a second customer"]).stdout
    assert [one.what for one in requests(tmp_path)] == ["a second customer"]
