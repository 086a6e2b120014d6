"""The switches that keep every library quiet and offline."""

import gc
import os
import platform
from pathlib import Path

import pytest

from orchestra.system.environment import GARBAGE, SWITCHES, cores, keep_loaded, machine, quiet


def test_every_switch_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    quiet()
    assert {name: os.environ[name] for name in SWITCHES} == SWITCHES


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    quiet()
    assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_garbage_is_looked_for_less_often() -> None:
    try:
        gc.set_threshold(700)
        quiet()
        assert gc.get_threshold()[0] == GARBAGE
    finally:
        gc.set_threshold(GARBAGE)


def test_what_is_loaded_is_passed_over() -> None:
    gc.unfreeze()
    try:
        keep_loaded()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.freeze()


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


def test_a_machine_is_told_by_its_processor_and_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz: v4\nflags\t\t: fpu sse4_2 avx avx2\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: told)
    assert machine() == f"Some CPU @ 2 GHz: v4, avx2, {cores()} cores"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: told.replace("avx2", "avx2 avx512f"))
    assert ", avx512f, " in machine()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    assert machine() == f"{platform.machine()}, {cores()} cores"
