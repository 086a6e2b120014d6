"""What served before a failed release serves again; what serves no more ends with its last request."""

import math
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestra.config.schema import Params
from orchestra.errors import ServiceError
from orchestra.serving.releases.colours import left_over
from orchestra.serving.releases.control import STOP_S
from orchestra.serving.releases.control_channel import GATEWAY
from orchestra.serving.releases.lock import RETIRING_S, alone
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.state import SERVING, Serving, read, write
from orchestra.serving.releases.trial import TRIAL, ReleaseTrial, write_trial
from orchestra.system.processes import Service, remember, running, started_at, stop_services
from tests.support.fake_gateway import FakeGateway, fake_gateway
from tests.support.serving_world import backend, params


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    """It never ends what it works on of the release `new`."""
    with fake_gateway(tmp_path, "new", until=math.inf) as made:
        port = made.server_port
        remember(tmp_path, Service(GATEWAY, os.getpid(), started_at(os.getpid()) or "", port, made.url, log=""))
        yield made


@pytest.fixture
def served(tmp_path: Path, gateway: FakeGateway) -> Serving:
    """Version 7, which serves."""
    made = backend(tmp_path).serving
    write(tmp_path, made)
    gateway.serves = (made.version, made.fingerprint)
    return made


@pytest.fixture
def candidate(served: Serving) -> Serving:
    return served.model_copy(update={"version": "9", "fingerprint": "new", "engine": "vllm"})


@pytest.fixture
def release(
    tmp_path: Path, gateway: FakeGateway, served: Serving, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Release, list[str]]]:
    """Of version 9, whose server runs; and what it says."""
    said: list[str] = []
    wanted: Params = params(engine="vllm", drain_s=1)
    made = Release(tmp_path, wanted, ReleaseCandidate("9", tmp_path, "hash"), [], said.append)
    made.old, made.old_gateway = served, running(tmp_path, GATEWAY)
    server = subprocess.Popen(["sleep", "60"], start_new_session=True)
    made.started = Service("vllm-green", server.pid, started_at(server.pid) or "", 0, "", log="")
    remember(tmp_path, made.started)
    monkeypatch.setattr(Release, "_fingerprint", lambda *_: "new")
    yield made, said
    stop_services(tmp_path, "vllm-green")
    server.wait()


def canary(candidate: Serving, made: Release) -> ReleaseTrial:
    settings = made.params.deploy.canary
    return ReleaseTrial(id="a", mode="canary", share=0.1, serving=candidate, settings=settings)


def test_a_candidate_that_does_not_pass_is_waited_for_once(
    tmp_path: Path, candidate: Serving, release: tuple[Release, list[str]]
) -> None:
    made, said = release
    write_trial(tmp_path, canary(candidate, made))
    made._put_back()
    made.retire()
    assert not (tmp_path / TRIAL).exists() and made.drain.cut == ["vllm-green"]
    assert said == [
        "the release failed; version 7 goes on serving",
        "vllm-green is still busy after 1 s: its requests are cut (deploy.drain_s)",
        "vllm-green stopped",
    ]
    assert running(tmp_path, "vllm-green") is None


def test_what_a_killed_trial_left_is_not_waited_for(
    tmp_path: Path, candidate: Serving, release: tuple[Release, list[str]]
) -> None:
    made, _ = release
    write_trial(tmp_path, canary(candidate, made))
    made._end_trial()
    assert not (tmp_path / TRIAL).exists() and made.drain.seconds == 0


def test_a_trial_of_which_only_the_gateway_still_knows_is_ended(
    gateway: FakeGateway, release: tuple[Release, list[str]]
) -> None:
    gateway.trial = {"id": "a"}
    release[0]._end_trial()
    assert gateway.trial is None


def test_a_gateway_that_does_not_go_back_is_told_and_the_candidates_server_ends(
    tmp_path: Path, gateway: FakeGateway, served: Serving, candidate: Serving, release: tuple[Release, list[str]]
) -> None:
    made, said = release
    write(tmp_path, candidate)
    gateway.takes = 500
    made._put_back()
    made.retire()
    assert said[0].startswith("a gateway does not go back to version 7: ") and "did not take the release" in said[0]
    assert said[1] == "the release failed; version 7 goes on serving"
    assert running(tmp_path, "vllm-green") is None and read(tmp_path / SERVING) == served


def test_a_server_from_which_a_gateway_still_answers_is_left_to_it(
    tmp_path: Path, gateway: FakeGateway, candidate: Serving, release: tuple[Release, list[str]]
) -> None:
    made, said = release
    write(tmp_path, candidate)
    gateway.takes, gateway.serves = 502, ("9", candidate.fingerprint)
    made._put_back()
    made.retire()
    assert running(tmp_path, "vllm-green") == made.started
    assert not any("goes on serving" in line for line in said) and "left to the next release" in said[-1]


def test_the_wait_for_the_last_requests_leaves_the_lock_to_others(
    tmp_path: Path, gateway: FakeGateway, release: tuple[Release, list[str]]
) -> None:
    made, said = release
    made.drain.limit_s = 60
    made.left = left_over(tmp_path, made.old)
    waiting = threading.Thread(target=made.retire)
    waiting.start()
    assert gateway.asked.wait(60)
    with alone(tmp_path):
        # Another release ends the server that is waited for, and starts one of its own by that name.
        stop_services(tmp_path, "vllm-green")
        me = Service("vllm-green", os.getpid(), started_at(os.getpid()) or "", 0, "", log="")
        remember(tmp_path, me)
    waiting.join(20)
    assert not waiting.is_alive() and running(tmp_path, "vllm-green") == me
    assert made.drain.cut == ["vllm-green, which ended sooner"]
    assert made.drain.told == "Requests were cut: vllm-green, which ended sooner."
    assert said == ["vllm-green ended before it had answered its last requests"]
    (tmp_path / ".state/vllm-green.pid.json").unlink()


def test_a_release_waits_for_one_that_ends_an_old_server(
    tmp_path: Path, release: tuple[Release, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(_: Path) -> None:
        raise ServiceError("it has begun")

    monkeypatch.setattr("orchestra.serving.releases.release.settle", begun)
    with ThreadPoolExecutor() as other:
        with alone(tmp_path):
            waiting = other.submit(release[0].serve)
            time.sleep(0.5)
        with pytest.raises(ServiceError, match="it has begun"):
            waiting.result(30)


def test_a_release_that_is_refused_ends_nothing(
    tmp_path: Path, release: tuple[Release, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = release
    monkeypatch.setattr("orchestra.serving.releases.release.RETIRING_S", 0.1)
    said = "another release runs, or a gateway starts its vLLM again"
    with alone(tmp_path), pytest.raises(ServiceError, match=said):
        made.run()
    assert running(tmp_path, "vllm-green") == made.started and not made.drain.seconds


def test_a_release_waits_for_longer_than_the_end_of_a_server_that_hangs() -> None:
    killed_s, asked_s = 5.0, 10.0
    assert STOP_S + killed_s + asked_s < RETIRING_S
