"""The soak over a scripted model: releases lose nothing, planted faults are typed, and leftovers are seen."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import PLANTED, SoakReport, failing_tools, soak, version
from orchestra.serving.backend import Backend
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases.state import Serving, write
from tests.support.serving_world import backend
from tests.support.worlds import example


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, failing: float) -> SoakReport:
    first = backend(folder)

    def load(cls: type[Backend], root: Path, serving: Serving) -> Any:
        made = backend(folder)
        made.serving = serving
        return made

    monkeypatch.setattr(Backend, "load", classmethod(load))
    asked = [example(f"e{number}", instruction=f"what is {number}*3?") for number in range(7)]

    def release(number: int) -> None:
        write(folder, version(first.serving, number))

    async def go() -> SoakReport:
        release(0)
        gateway = Gateway(folder)
        await gateway.load()
        return await soak(gateway, asked, release, 0.03, 6, 4)

    monkeypatch.setattr("benchmarks.soak.SETTLE_S", 0.2)
    with failing_tools(failing):
        return asyncio.run(go())


def test_releases_under_load_lose_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(tmp_path, monkeypatch, failing=0.0)
    assert report.releases == 4 and set(report.codes) == {"200"} and report.codes["200"] > 10
    assert [fault for fault in report.faults(failing=False) if "memory" not in fault] == []


def test_planted_faults_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(tmp_path, monkeypatch, failing=0.3)
    assert set(report.codes) == {"200", PLANTED} and report.untyped == []


def test_what_must_not_be_is_said() -> None:
    report = SoakReport(early_mb=100, late_mb=150, left={"sockets": 2, "tasks": 0})
    report.codes.update({"200": 5, "internal": 1})
    report.untyped.append("a bug")
    faults = report.faults(failing=True)
    assert [fault.split()[0] for fault in faults] == ["untyped:", "failed", "2", "memory"]
