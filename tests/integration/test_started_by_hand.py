"""Gateways that no release started (systemd's, say) take releases all the same; and one that listens on IPv6."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from flows.monitor import check_answer
from flows.status import service_lines
from orchestra.errors import OrchestraError, ServiceError
from orchestra.serving.client import ask, gateway_url
from orchestra.serving.releases.control import health
from orchestra.serving.releases.control_channel import live_channels
from orchestra.serving.releases.deployment import Deployment
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.serving.releases.state import SERVING, read
from orchestra.serving.releases.trial_run import TrialPlan
from orchestra.system.processes import free_port, kill_tree, port_busy, services, spawn, stop_services
from tests.support.model_server import ModelServer
from tests.support.serving_world import SMOKE, checkpoint, params
from tests.support.waiting import soon
from tests.support.worlds import ROOT, example

said: list[str] = []


def release(root: Path, candidate: ReleaseCandidate, **deploy: object) -> Deployment:
    said.clear()
    return Release(root, params(**{"engine": "in_process", **deploy}), candidate, SMOKE, said.append).run()


def start(root: Path, *options: str) -> "subprocess.Popen[str]":
    """As somebody else does it; returns when it listens."""
    line = [sys.executable, "-m", "orchestra.serving", "--root", str(root), *options]
    made = spawn(line, cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, stdout=None)
    assert soon(lambda: made.poll() is None and made.pid in live_channels(root), 60)
    assert soon(lambda: bool(health(live_channels(root)[made.pid].address)), 60)
    return made


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture
def gateway(root: Path, port: int) -> Iterator["subprocess.Popen[str]"]:
    (root / "params.yaml").write_text(
        yaml.safe_dump(params(engine="in_process").model_dump(mode="json", by_alias=True))
    )
    made = start(root, "--port", str(port))
    try:
        yield made
    finally:
        kill_tree(made.pid)


def test_a_release_goes_to_a_gateway_that_was_started_by_hand(
    root: Path, first: ReleaseCandidate, port: int, gateway: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{port}"
    made = release(root, first, gateway_port=port)
    assert (made.outcome, made.url, services(root)) == ("released", url, []) and not any(
        "restart" in one for one in said
    )
    assert release(root, first, gateway_port=port).outcome == "unchanged"
    assert gateway_url(root) == url and ask("what is 1+1?", root=root, max_turns=1).version == "1"
    try:
        check_answer.fn(root)
    except ServiceError as error:  # The tiny model is random, and answers nothing.
        assert "it answers" in str(error)
    assert [line for line in service_lines(root) if url in line and "up" in line]
    # The settings' port is for a gateway that a release starts.
    another = free_port()
    assert release(root, checkpoint(root, 3, "2"), gateway_port=another).url == url
    assert (
        f"the gateway at {url} goes on serving there, since no release started it: restart it at port {another}" in said
    )
    assert httpx.get(f"{url}/health").json()["version"] == "2"
    # As if the code had changed since that gateway was started.
    monkeypatch.setattr("orchestra.serving.releases.release.gateway_code", lambda _: "other")
    assert release(root, first, gateway_port=port).url == url and gateway.poll() is None and services(root) == []
    assert f"the gateway at {url} runs other code or settings, and no release started it: restart it" in said


@pytest.mark.slow
def test_without_options_a_gateway_listens_where_its_settings_say(
    root: Path, first: ReleaseCandidate, port: int
) -> None:
    assert release(root, first, gateway_port=port).version == "1"
    stop_services(root)
    serving = read(root / SERVING)
    assert serving is not None and serving.parsed.deploy.gateway_port == port
    made = start(root)
    try:
        assert live_channels(root)[made.pid].address == f"http://127.0.0.1:{port}"
        assert soon(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200, 60)
    finally:
        kill_tree(made.pid)
    # That one is gone, so that a release starts its own.
    assert release(root, first, gateway_port=port).outcome == "released"
    assert [one.name for one in services(root)] == ["gateway"]
    stop_services(root)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_gateway_listens_on_ipv6(root: Path, first: ReleaseCandidate) -> None:
    made = release(root, first, host="::1")
    assert made.url.startswith("http://[::1]:") and made.outcome == "released"
    assert ask("what is 1+1?", root=root, max_turns=1).version == "1"
    assert release(root, first, host="::1").outcome == "unchanged"
    (service,) = services(root)
    assert port_busy(service.port, "::1") and not port_busy(service.port)
    with pytest.raises(ServiceError, match=f"port {service.port} is in use by"):
        stop_services(root)
        with socket.create_server(("::1", service.port), family=socket.AF_INET6):
            release(root, first, host="::1", gateway_port=service.port)


@pytest.mark.slow
def test_a_release_compares_the_model_servers_that_others_keep_up(root: Path, first: ReleaseCandidate) -> None:
    port, second = free_port(), checkpoint(root, 4, "8")
    url = f"http://127.0.0.1:{port}"
    stop_services(root)
    with ModelServer(first.folder) as server:
        made = start(root, "--host", "127.0.0.1", "--port", str(port), "--vllm-url", server.url)
        try:
            assert release(root, first).url == url and health(url)["engine"] == "vllm"
            before = read(root / SERVING)
            with pytest.raises(
                ServiceError, match=r"canary failed.* with version 8's checkpoint and type .*, then release again"
            ):
                release(root, second)
            assert (health(url)["version"], read(root / SERVING)) == ("1", before)
            tried = Release(root, params(engine="in_process"), second, SMOKE, print, TrialPlan("canary", 0.1, SMOKE))
            with pytest.raises(ServiceError, match="has one version at a time"):
                tried.run()
            server.serve(second.folder)
            assert release(root, second).outcome == "released" and health(url)["version"] == "8"
            # The servers have the new weights by now: the old version is not served with them.
            lost = [example("e1", domain="mock", instruction=" ")]
            with pytest.raises(OrchestraError):
                Release(root, params(engine="in_process"), first, lost, print).run()
            assert health(url)["version"] == "8"
            kill_tree(made.pid)
            # It starts again, and the servers have the old weights by now.
            server.serve(first.folder)
            made = start(root, "--host", "127.0.0.1", "--port", str(port), "--vllm-url", server.url)
            assert soon(lambda: "it does not serve version 8" in health(url).get("error", {}).get("message", ""), 60)
            server.serve(second.folder)
            assert soon(lambda: health(url).get("version") == "8", 60)
        finally:
            kill_tree(made.pid)
