"""A gateway is found by its channel, and one that is gone is not."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flows.status import other_code_lines, service_lines
from orchestra.errors import ServiceError
from orchestra.serving.client import access, gateway_url
from orchestra.serving.releases.control import gateway_service, of_other_code, reload
from orchestra.serving.releases.control_channel import (
    FOLDER,
    ControlChannel,
    address,
    close_channel,
    live_channels,
    open_channel,
    started_by_hand,
)
from orchestra.serving.releases.state import gateway_code
from orchestra.serving.shared.database import STORE, Database
from orchestra.serving.shared.keys import Keys, operator_key
from orchestra.system.processes import LOCALHOST, Service, free_port, remember, started_at
from tests.support.serving_world import params


def test_a_gateway_that_no_release_started_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRA_URL", raising=False)
    monkeypatch.delenv("ORCHESTRA_API_KEY", raising=False)
    operator_key(tmp_path, Keys(Database(tmp_path / STORE)))
    url = f"https://127.0.0.1:{free_port()}"
    open_channel(tmp_path, "https://127.0.0.1:1", url)
    assert gateway_url(tmp_path) == url
    base, headers, verify = access(tmp_path)
    assert base == url and headers["Authorization"].startswith("Bearer ") and not verify
    (line,) = service_lines(tmp_path)
    assert line.startswith(f"  gateway     {url}  does not answer") and str(os.getpid()) in line
    # It does not answer, so that no release counts on it.
    assert gateway_service(tmp_path) is None and of_other_code(tmp_path, "c") == []
    close_channel(tmp_path)
    with pytest.raises(ServiceError, match="nothing serves here"):
        gateway_url(tmp_path)


def test_status_names_a_gateway_of_other_code(tmp_path: Path) -> None:
    said = {"code": "of an older checkout"}

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

    with HTTPServer((LOCALHOST, 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open_channel(tmp_path, f"http://{LOCALHOST}:{server.server_port}", "http://127.0.0.1:8800")
        line = "  the gateway at http://127.0.0.1:8800 runs other code or settings than these: restart it"
        assert other_code_lines(tmp_path, params().deploy) == [line]
        remember(tmp_path, Service("gateway", os.getpid(), started_at(os.getpid()) or "", 8800, "u", "log"))
        assert other_code_lines(tmp_path, params().deploy) == [line.replace("restart it", "orchestra release")]
        said["code"] = gateway_code(params().deploy)
        assert other_code_lines(tmp_path, params().deploy) == []
        server.shutdown()


def test_every_gateway_is_told_of_a_release_although_one_refuses_it(tmp_path: Path) -> None:
    told, folder = list[int](), tmp_path / FOLDER
    folder.mkdir(parents=True)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.connection.getsockname()[1])
            self.send_response(502)
            self.end_headers()
            self.wfile.write(b"not loaded")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer((LOCALHOST, 0), Handler) as one, HTTPServer((LOCALHOST, 0), Handler) as other:
        for server, pid in ((one, os.getpid()), (other, os.getppid())):
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://{LOCALHOST}:{server.server_port}"
            channel = ControlChannel(url=url, token="t", started=started_at(pid) or "")
            (folder / f"{pid}.json").write_text(channel.model_dump_json(), encoding="utf-8")
        me = Service("gateway", os.getpid(), "", 0, "", log="")
        with pytest.raises(ServiceError, match="did not take the release: not loaded"):
            reload(tmp_path, me, 10)
        assert sorted(told) == sorted([one.server_port, other.server_port])
        one.shutdown()
        other.shutdown()


def test_a_channel_of_a_process_that_ended_leads_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    channel = ControlChannel(url="http://127.0.0.1:1", token="t", address="http://127.0.0.1:2", started="1")
    # The second number belongs to another process by now: this one.
    for pid in (gone.pid, os.getpid()):
        (folder / f"{pid}.json").write_text(channel.model_dump_json(), encoding="utf-8")
    assert live_channels(tmp_path) == {} and started_by_hand(tmp_path) == []


def test_a_channel_without_an_address_is_one_to_reload_only(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    older = {"url": "http://127.0.0.1:1", "token": "t"}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(older), encoding="utf-8")
    assert list(live_channels(tmp_path)) == [os.getpid()] and started_by_hand(tmp_path) == []


@pytest.mark.parametrize(
    ("host", "tls", "url"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8800"),
        ("10.1.2.3", True, "https://10.1.2.3:8800"),
        ("0.0.0.0", False, "http://127.0.0.1:8800"),
        ("::", True, "https://[::1]:8800"),
        ("::1", False, "http://[::1]:8800"),
        ("2001:DB8:0::1", False, "http://[2001:db8::1]:8800"),
    ],
)
def test_an_address_is_one_that_can_be_asked(host: str, tls: bool, url: str) -> None:
    assert address(host, 8800, tls=tls) == url
