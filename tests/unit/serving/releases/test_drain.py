"""The last requests to what served before: they are waited for, as long as the settings say."""

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.serving.releases.colours import left_over
from orchestra.serving.releases.control import ENDING, LEAVING, Drain, settle, succeeded
from orchestra.serving.releases.control_channel import FOLDER, GATEWAY, ControlChannel, live_channels
from orchestra.system import processes
from orchestra.system.processes import Service, remember, running, started_at
from tests.support.fake_gateway import FakeGateway, fake_gateway
from tests.support.serving_world import params
from tests.support.waiting import soon


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    """It works on nothing, until a test says so."""
    with fake_gateway(tmp_path, "old", until=0.0) as made:
        yield made


def test_a_long_request_is_waited_for_and_told(
    tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SAY_EVERY_S", 0.5)
    said: list[str] = []
    drain, gateway.until = Drain(tmp_path, 30, said.append), time.monotonic() + 1.5
    drain.server("old", "vllm-blue")
    assert time.monotonic() >= gateway.until and 1 <= drain.seconds < 10
    assert drain.figures == {"drain.seconds": round(drain.seconds, 3), "drain.cut": 0.0}
    assert drain.told.endswith("none was cut.") and said[0].startswith("vllm-blue answers its last requests (")


def test_what_is_cut_is_told(tmp_path: Path, gateway: FakeGateway) -> None:
    said: list[str] = []
    drain, gateway.until = Drain(tmp_path, 1, said.append), time.monotonic() + 60
    drain.server("old", "vllm-blue (version 3)")
    assert drain.figures["drain.cut"] == 1 and drain.told == "Requests were cut after 1 s: vllm-blue (version 3)."
    assert said == ["vllm-blue (version 3) is still busy after 1 s: its requests are cut (deploy.drain_s)"]


def test_a_gateway_that_is_too_busy_to_say_is_not_taken_for_drained(tmp_path: Path, gateway: FakeGateway) -> None:
    gateway.silent.set()
    drain = Drain(tmp_path, 1, print)
    drain.server("old", "vllm-blue")
    assert drain.cut


def test_a_release_waits_for_longer_than_a_call_of_an_expert_may_take() -> None:
    from orchestra.tools.catalogue.catalogue import read_catalogue
    from tests.support.worlds import ROOT

    files = [read_catalogue(ROOT / f"data/catalogue/{name}.yaml") for name in ("tools", "real")]
    limits = [entry.deadline_s for file in files for entry in file.tools.values()]
    assert params().deploy.drain_s > max(limits)


def test_a_gateway_has_more_time_where_another_took_its_port(tmp_path: Path) -> None:
    me = Service(ENDING, os.getpid(), started_at(os.getpid()) or "", 0, "", log="")
    assert not succeeded(tmp_path)
    remember(tmp_path, me)
    assert succeeded(tmp_path)
    remember(tmp_path, replace(me, pid=os.getppid(), started=started_at(os.getppid()) or ""))
    assert not succeeded(tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    """Processes that end when they are told: a gateway and its successor."""
    made = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    old, new = (Service(GATEWAY, one.pid, started_at(one.pid) or "", 0, "", log="") for one in made)
    yield old, new
    for one in made:
        one.kill()
        one.wait()


def test_a_takeover_that_was_killed_on_its_way_ends_no_gateway_that_serves(
    tmp_path: Path, two: tuple[Service, Service]
) -> None:
    old, new = two
    for service in (new, replace(old, name=LEAVING), replace(old, name=ENDING)):
        remember(tmp_path, service)
    settle(tmp_path)
    assert left_over(tmp_path, None) == []
    assert running(tmp_path, GATEWAY) == old and not new.running
    assert [file.name for file in (tmp_path / ".state").glob("*.pid.json")] == ["gateway.pid.json"]


def test_a_takeover_whose_successor_was_never_started_ends_no_gateway_that_serves(
    tmp_path: Path, two: tuple[Service, Service]
) -> None:
    old, _ = two
    for service in (old, replace(old, name=LEAVING)):
        remember(tmp_path, service)
    settle(tmp_path)
    assert old.running and running(tmp_path, GATEWAY) == old and running(tmp_path, LEAVING) is None


def test_a_gateway_that_was_not_told_to_end_takes_no_further_release(
    tmp_path: Path, two: tuple[Service, Service]
) -> None:
    old, new = two
    for service in (new, replace(old, name=ENDING)):
        remember(tmp_path, service)
    channel = tmp_path / FOLDER / f"{old.pid}.json"
    channel.parent.mkdir(parents=True)
    channel.write_text(ControlChannel(url="http://127.0.0.1:1", token="t", started=old.started).model_dump_json())
    settle(tmp_path)
    assert live_channels(tmp_path) == {} and soon(lambda: not old.running, 20) and new.running


def test_a_gateway_that_a_killed_release_did_not_tell_to_end_is_told(
    tmp_path: Path, two: tuple[Service, Service]
) -> None:
    old, new = two
    for service in (new, replace(old, name=ENDING)):
        remember(tmp_path, service)
    drain = Drain(tmp_path, 20, print)
    drain.gateway(replace(old, name=ENDING))
    assert not old.running and drain.seconds < 10 and not drain.cut and running(tmp_path, GATEWAY) == new
    assert [file.name for file in (tmp_path / ".state").glob("*.pid.json")] == ["gateway.pid.json"]
