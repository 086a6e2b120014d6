"""The switches that keep every library quiet and offline."""

import os

import pytest

from orchestra.system.environment import SWITCHES, cores, quiet


def test_every_switch_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    quiet()
    assert {name: os.environ[name] for name in SWITCHES} == SWITCHES


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    quiet()
    assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_no_library_may_phone_home() -> None:
    wanted = {
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DVC_NO_ANALYTICS": "1",
    }
    assert wanted.items() <= SWITCHES.items()


def test_there_is_a_core() -> None:
    assert cores() >= 1
