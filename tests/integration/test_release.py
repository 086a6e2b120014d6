"""Releases in process, with real processes: unchanged, replaced, refused, restarted; a gateway on a real port."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from flows.monitor import check_answer
from orchestra.errors import ConfigError, DataError, OrchestraError, ServiceError
from orchestra.serving.client import ask, gateway_url
from orchestra.serving.records.telemetry import TRACES, answered, served
from orchestra.serving.releases.control import Drain, reload
from orchestra.serving.releases.control_channel import live_channels
from orchestra.serving.releases.deployment import LAST, Deployment, last_deployment
from orchestra.serving.releases.lock import alone
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.state import SERVING, read
from orchestra.system.processes import Service, kill_tree, remember, services, spawn, started_at, stop_services
from tests.support.serving_world import SMOKE, checkpoint, manifest, params
from tests.support.waiting import soon
from tests.support.worlds import ROOT, example


def release(root: Path, candidate: ReleaseCandidate, **deploy: object) -> Deployment:
    return Release(root, params(**{"engine": "in_process", **deploy}), candidate, SMOKE, print).run()


def drained(root: Path, fingerprint: str) -> bool:
    drain = Drain(root, 1, print)
    drain.server(fingerprint, "it")
    return not drain.cut


@pytest.fixture(scope="module")
def deployed(root: Path, first: ReleaseCandidate) -> Deployment:
    return release(root, first)


def test_a_release_serves_and_shows_one_answered_question(root: Path, deployed: Deployment) -> None:
    assert deployed.outcome == "released" and deployed.engine == "in_process" and deployed.version == "1"
    assert deployed.sample is not None and deployed.sample.question in deployed.trace
    assert httpx.get(f"{deployed.url}/health").json()["version"] == "1"
    assert gateway_url(root) == deployed.url
    with contextlib.suppress(ServiceError):  # The tiny model is random, and answers nothing.
        check_answer.fn(root)
    reply = ask("what is 37*24?", "cheap", root=root, max_turns=2)
    assert reply.version == "1" and reply.cost_usd > 0
    serving = read(root / SERVING)
    assert serving is not None and soon(lambda: bool(served(root / TRACES, serving.fingerprint)), 20)
    asked = [one.question for one in answered(root / TRACES, serving.fingerprint)]
    assert asked == ["what is 37*24?"], "what the release and the monitor asked is no user's request"


def test_the_client_tells_whose_fault_it_is(root: Path, deployed: Deployment) -> None:
    with pytest.raises(ConfigError, match="no domain named nowhere"):
        ask("x", domain="nowhere", root=root)
    with pytest.raises(ServiceError, match="ConnectError"):
        ask("x", url="http://127.0.0.1:1")


def test_the_same_again_is_unchanged(root: Path, first: ReleaseCandidate, deployed: Deployment) -> None:
    before = services(root)
    again = release(root, first)
    assert again == deployed.model_copy(update={"outcome": "unchanged"})
    assert services(root) == before


def test_a_record_by_another_version_of_the_program_only_costs_a_release(
    root: Path, first: ReleaseCandidate, deployed: Deployment
) -> None:
    (root / LAST).write_text('{"url": 1}', encoding="utf-8")
    assert release(root, first).outcome == "released"
    assert release(root, first).outcome == "unchanged"


def test_a_damaged_checkpoint_is_refused_and_the_champion_serves_on(root: Path, deployed: Deployment) -> None:
    bad = checkpoint(root, 1, "2")
    weights = bad.folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 0x40
    weights.write_bytes(data)
    with pytest.raises(DataError, match="does not match the manifest"):
        release(root, bad)
    # With a manifest that agrees, it is the load that fails.
    weights.write_bytes(data[: len(data) // 2])
    manifest(bad.folder)
    with pytest.raises(OrchestraError):
        release(root, bad)
    assert httpx.get(f"{deployed.url}/health").json()["version"] == "1"
    serving = read(root / SERVING)
    assert serving is not None and serving.version == "1"


def test_weights_that_are_no_numbers_are_refused(root: Path, deployed: Deployment) -> None:
    bad = checkpoint(root, 6, "7")
    weights = bad.folder / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"] *= float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
    manifest(bad.folder)
    with pytest.raises(DataError, match="log-probabilities are not finite"):
        release(root, bad)
    assert httpx.get(f"{deployed.url}/health").json()["version"] == "1"


def test_a_release_that_fails_after_the_switch_is_taken_back(root: Path, deployed: Deployment) -> None:
    # The question to show names a domain that the gateway lacks: the release fails when traffic has moved.
    lost, record = [example("e1", domain="mock", instruction=" ")], last_deployment(root)
    with pytest.raises(OrchestraError):
        Release(root, params(engine="in_process"), checkpoint(root, 2, "3"), lost, print).run()
    assert httpx.get(f"{deployed.url}/health").json()["version"] == "1"
    assert ask("what is 1+1?", root=root, max_turns=1).version == "1"
    assert record is not None and last_deployment(root) == record


def test_a_release_that_ends_before_its_record_is_made_whole_by_the_next(
    root: Path, first: ReleaseCandidate, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    other = checkpoint(root, 3, "4")
    with monkeypatch.context() as patch:
        patch.setattr(Release, "_made", killed)
        with pytest.raises(KeyboardInterrupt):
            release(root, other)
    made = release(root, other)
    assert (made.outcome, made.version) == ("released", "4") and last_deployment(root) == made
    assert release(root, first).outcome == "released"


def test_a_release_that_was_killed_before_a_gateway_took_it_is_not_taken_for_what_serves(
    root: Path, first: ReleaseCandidate, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("orchestra.serving.releases.release.reload", killed)
        for name in ("_put_back", "retire"):
            patch.setattr(Release, name, lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            release(root, checkpoint(root, 3, "4"))
    killed_one = read(root / SERVING)
    assert killed_one is not None and killed_one.version == "4"
    with pytest.raises(OrchestraError):
        release(root, ReleaseCandidate("5", root / "models/none", "none"))
    before = read(root / SERVING)
    assert before is not None and before.version == httpx.get(f"{deployed.url}/health").json()["version"] == "1"
    assert release(root, first).outcome == "released"


def test_a_release_that_is_interrupted_while_it_waits_has_its_record_and_the_next_ends_what_is_left(
    root: Path, first: ReleaseCandidate, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Deployment | None] = []

    def killed(_: Release) -> None:
        waited.append(last_deployment(root))
        with alone(root):
            raise KeyboardInterrupt

    other = checkpoint(root, 3, "4")
    with monkeypatch.context() as patch:
        patch.setattr(Release, "retire", killed)
        with pytest.raises(KeyboardInterrupt):
            release(root, other)
    made = last_deployment(root)
    assert waited == [made] and made is not None and made.version == "4" and made.sample is not None
    server = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        remember(root, Service("vllm-blue", server.pid, started_at(server.pid) or "", 0, "", log=""))
        assert release(root, other).outcome == "unchanged"
        assert [one.name for one in services(root)] == ["gateway"] and server.wait(10) is not None
    finally:
        server.kill()
        server.wait()
    assert release(root, first).outcome == "released"


def test_another_version_takes_over_without_a_restart_in_every_gateway(
    root: Path, first: ReleaseCandidate, deployed: Deployment
) -> None:
    before = services(root)
    line = [sys.executable, "-m", "orchestra.serving", "--root", str(root), "--port", str(before[0].port)]
    second = spawn(line, cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, stdout=None)

    def versions() -> dict[int, str | None]:
        found: dict[int, str | None] = {}
        for pid, channel in live_channels(root).items():
            headers = {"Authorization": f"Bearer {channel.token}"}
            with contextlib.suppress(httpx.ConnectError):
                found[pid] = httpx.get(f"{channel.url}/admin/health", headers=headers).json().get("version")
        return found

    try:
        both = {before[0].pid, second.pid}
        while versions() != dict.fromkeys(both, "1"):
            assert second.poll() is None
            time.sleep(0.2)
        serving = read(root / SERVING)
        made = release(root, checkpoint(root, 3, "4"))
        assert made.outcome == "released" and made.version == "4" and made.url == deployed.url
        assert services(root) == before and versions() == dict.fromkeys(both, "4")
        # What is drained is drained in all of them.
        assert serving is not None and drained(root, serving.fingerprint)
    finally:
        kill_tree(second.pid)
    # The channel of one that was killed hinders no release.
    back = release(root, first)
    assert back.outcome == "released" and httpx.get(f"{back.url}/health").json()["version"] == "1"


@pytest.mark.slow
def test_changed_settings_are_released_too(root: Path, first: ReleaseCandidate, deployed: Deployment) -> None:
    def status(url: str) -> int:
        return httpx.get(f"{url}/health", headers={"Host": "lab.example"}).status_code

    before = services(root)
    assert status(deployed.url) == 403
    # The monitor reads this of what serves: the process stays.
    assert release(root, first, judging={"share": 0.5}).outcome == "released" and services(root) == before
    # This is read by a process as it starts, and the address is another one's than the old process's.
    made = release(root, first, hosts=["lab.example"], host="127.0.0.2")
    assert made.outcome == "released" and services(root) != before and status(made.url) == 200
    again = release(root, first)
    assert (again.outcome, again.url) == ("released", deployed.url) and status(again.url) == 403


def test_changed_code_takes_the_port_over_and_loses_no_request(
    root: Path, first: ReleaseCandidate, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the code had changed since the gateway was started.
    monkeypatch.setattr("orchestra.serving.releases.release.gateway_code", lambda _: "other")
    before, told = services(root), set[int]()

    def tell(*arguments: Any) -> None:
        told.update(live_channels(root))
        reload(*arguments)

    monkeypatch.setattr("orchestra.serving.releases.release.reload", tell)
    done, answered, failures = threading.Event(), [], []

    def user() -> None:
        while not done.is_set():
            try:
                answered.append(ask("what is 1+1?", root=root, max_turns=1, url=deployed.url))
            except OrchestraError as error:
                failures.append(error)

    thread = threading.Thread(target=user)
    thread.start()
    try:
        made = release(root, first)
    finally:
        done.set()
        thread.join()
    assert made.outcome == "released" and made.url == deployed.url
    assert [s.name for s in services(root)] == ["gateway"] and services(root) != before
    assert answered and not failures
    assert told == {services(root)[0].pid}, "the one that ends loads nothing more"


def test_a_vllm_that_does_not_start(root: Path, first: ReleaseCandidate, deployed: Deployment) -> None:
    python = root / ".venv-vllm/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'RuntimeError: this CPU lacks AVX512' >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(ServiceError, match="vLLM is not installed"):
        release(root, first, engine="vllm")
    (root / ".venv-vllm/.orchestra-stamp").touch()
    with pytest.raises(ServiceError, match="vllm-blue ended: RuntimeError: this CPU lacks AVX512"):
        release(root, first, engine="vllm")
    assert httpx.get(f"{deployed.url}/health").json()["status"] == "ok"
    made = release(root, first, engine="auto")
    assert made.engine == "in_process" and "this CPU lacks AVX512" in made.note
    again = release(root, first, engine="auto")
    assert again.outcome == "unchanged" and again.note == made.note
    assert [s.name for s in services(root)] == ["gateway"]


def test_a_busy_port_is_one_line_that_says_who_and_what_to_do(root: Path, first: ReleaseCandidate) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"port {port} is in use by process \d+ .*deploy.gateway_port"):
            release(root, first, gateway_port=port)


def test_two_releases_at_once_are_refused(root: Path, first: ReleaseCandidate, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr("orchestra.serving.releases.release.RETIRING_S", 0.1)
    with (root / ".state/deploy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServiceError, match="another release runs"):
            release(root, first)


def test_a_killed_gateway_is_started_again(root: Path, first: ReleaseCandidate, deployed: Deployment) -> None:
    stop_services(root)
    with pytest.raises(ServiceError, match="nothing serves here"):
        ask("x", root=root)
    made = release(root, first)
    assert made.outcome == "released" and ask("what is 1+1?", root=root, max_turns=1).version == "1"


@pytest.mark.slow
def test_a_failed_release_where_nothing_served_leaves_nothing_running(
    root: Path, first: ReleaseCandidate, deployed: Deployment
) -> None:
    stop_services(root)
    before = read(root / SERVING)
    lost = [example("e1", domain="mock", instruction=" ")]
    with pytest.raises(OrchestraError):
        Release(root, params(engine="in_process"), checkpoint(root, 5, "6"), lost, print).run()
    assert services(root) == [] and read(root / SERVING) == before
