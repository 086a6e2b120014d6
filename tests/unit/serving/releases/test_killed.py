"""What a release that was killed leaves: the server that a gateway answers from lives until another one serves."""

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orchestra.errors import ServiceError
from orchestra.serving.releases import vllm
from orchestra.serving.releases.colours import start_beside, what_serves
from orchestra.serving.releases.control_channel import GATEWAY
from orchestra.serving.releases.deployment import LAST
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.state import SERVING, Serving, read, write
from orchestra.system.processes import Service, remember, running, started_at, stop_services
from tests.support.fake_gateway import FakeGateway, fake_gateway
from tests.support.serving_world import backend, params


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway(tmp_path, "", until=-math.inf) as made:
        port = made.server_port
        remember(tmp_path, Service(GATEWAY, os.getpid(), started_at(os.getpid()) or "", port, made.url, log=""))
        yield made


@pytest.fixture
def two(tmp_path: Path, gateway: FakeGateway) -> Iterator[tuple[Serving, Serving]]:
    """Version 7 by the blue server, from which the gateway answers, and version 9 by the green one, as released."""
    servers, made = [], []
    for colour, version in (("vllm-blue", "7"), ("vllm-green", "9")):
        servers.append(server := subprocess.Popen(["sleep", "60"], start_new_session=True))
        remember(tmp_path, Service(colour, server.pid, started_at(server.pid) or "", 0, f"http://{colour}", log=""))
        named = {"version": version, "fingerprint": f"f{version}", "checkpoint_hash": version, "engine": "vllm"}
        where = {"vllm_service": colour, "vllm_url": f"http://{colour}", "compared": ("http://vllm-9",)}
        made.append(backend(tmp_path).serving.model_copy(update=named | where))
    gateway.answers_with = made[0].model_copy(update={"compared": ()})
    write(tmp_path, made[1])
    yield made[0], made[1]
    stop_services(tmp_path, "vllm-blue", "vllm-green")
    for server in servers:
        server.wait()


def no_start(*_: Any, **__: Any) -> NoReturn:
    raise ServiceError("vLLM does not start")


def test_a_release_after_a_kill_before_the_gateway_took_the_one_before_ends_no_server_that_answers(
    tmp_path: Path, gateway: FakeGateway, two: tuple[Serving, Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    blue, said = running(tmp_path, "vllm-blue"), list[str]()
    made = Release(tmp_path, params(engine="vllm", drain_s=1), ReleaseCandidate("11", tmp_path, "h"), [], said.append)
    monkeypatch.setattr("orchestra.serving.releases.release.verify_manifest", lambda _: None)
    monkeypatch.setattr(Release, "_engine", lambda _: "vllm")
    monkeypatch.setattr(Release, "_fingerprint", lambda *_: "f11")
    monkeypatch.setattr(Release, "_proven", lambda release, _: release._launch())
    monkeypatch.setattr(vllm, "launch", no_start)
    with pytest.raises(ServiceError, match="vLLM does not start"):
        made.run()
    assert running(tmp_path, "vllm-blue") == blue and running(tmp_path, "vllm-green") is None
    assert said[0] == "a release was killed before a gateway took it: version 7 goes on serving"
    assert said[-1] == "the release failed; version 7 goes on serving"
    named = read(tmp_path / SERVING)
    assert named == gateway.answers_with and named is not None and named.version == "7"


def test_what_a_killed_release_put_back_on_paper_alone_is_not_taken_for_what_serves(
    tmp_path: Path, gateway: FakeGateway, two: tuple[Serving, Serving]
) -> None:
    old, new = two
    write(tmp_path, old)
    (tmp_path / LAST).write_text("{}")
    gateway.answers_with = new.model_copy(update={"compared": ()})
    assert what_serves(tmp_path, 5, print) == gateway.answers_with == read(tmp_path / SERVING)
    assert not (tmp_path / LAST).exists(), "it is another version's"


def test_what_the_gateways_agree_on_stays_as_it_was_written(
    tmp_path: Path, gateway: FakeGateway, two: tuple[Serving, Serving]
) -> None:
    gateway.answers_with, gateway.takes = two[1].model_copy(update={"compared": ()}), 500
    assert what_serves(tmp_path, 5, print) == two[1] == read(tmp_path / SERVING)
    # One of an older version, which does not say, serves what was written.
    gateway.answers_with = None
    assert what_serves(tmp_path, 5, print) == two[1]


def test_gateways_that_do_not_agree_are_told_before_a_server_is_ended(
    tmp_path: Path, gateway: FakeGateway, two: tuple[Serving, Serving]
) -> None:
    gateway.takes = 502
    with pytest.raises(ServiceError, match="the gateway did not take the release"):
        what_serves(tmp_path, 5, print)


def test_a_server_starts_in_the_place_of_the_one_that_does_not_serve(
    tmp_path: Path, two: tuple[Serving, Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(vllm, "launch", lambda _root, name, *_, **__: started.append(name))
    start_beside(tmp_path, params(), tmp_path, two[0])
    assert started == ["vllm-green"]
    assert running(tmp_path, "vllm-blue") is not None and running(tmp_path, "vllm-green") is None
