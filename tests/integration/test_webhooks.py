"""Webhooks of the registry on a real MLflow server: who is told of a moved alias, and whether the signature holds."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import ConfigError, DataError, ServiceError
from orchestra.files.checkpoint import hash_dir
from orchestra.system.processes import LOCALHOST, free_port, services, stop_services
from orchestra.system.servers import WEBHOOK_KEY, start
from tasks.platform.aliases import aliases
from tasks.platform.registry import CHAMPION, PREVIOUS, Registry
from tasks.records.webhooks import EVENTS, SECRET, Webhooks, main
from tests.support.waiting import soon
from tests.support.worlds import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODEL = "orchestrator"
SHARED = "a-secret-of-the-tests"
DOCS = (ROOT / "docs/how-to/webhooks.md").read_text(encoding="utf-8")


def documented() -> Callable[..., bool]:
    """The check that the documentation gives to who receives."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    verified: Callable[..., bool] = names["verified"]
    return verified


@dataclass
class Inbox:
    """What a receiver was sent."""

    url: str = ""
    status: int = 200
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def told(self) -> list[tuple[str, str, str]]:
        """Action, alias and version of each signed request."""
        assert all(documented()(SHARED, *request) for request in self.requests)
        found = [json.loads(body) for _, body in self.requests]
        assert {one["entity"] for one in found} <= {"model_version_alias"}
        return [(one["action"], one["data"]["alias"], one["data"]["version"]) for one in found]


@contextmanager
def receiver() -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            inbox.requests.append((dict(self.headers), body))
            self.send_response(inbox.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer((LOCALHOST, 0), Handler)
    inbox.url = f"http://{LOCALHOST}:{server.server_port}/mlflow"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield inbox
    finally:
        server.shutdown()


def up(root: Path, **settings: str) -> str:
    """`orchestra up`, of MLflow's server alone; its address."""
    stop_services(root)
    # Somebody else's Prefect is none of ours to start; the workspace has none of our code.
    own = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PYTHONPATH": str(ROOT), **settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for name, value in own.items():
            patch.setenv(name, value)
        list(start(root, mlflow_port=free_port(), metrics_port=free_port()))
    (found,) = [service.url for service in services(root) if service.name == "mlflow"]
    return found


LOOSE = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace; MLflow exports the database that it is pointed at, so the variable is set first and then removed."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv(SECRET, SHARED)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    monkeypatch.chdir(workspace)
    yield workspace
    stop_services(workspace)


def promote(root: Path, weights: str) -> int:
    """A new champion, as promote registers it."""
    checkpoint = root / "models/grpo"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "model.safetensors").write_text(weights)
    registry = Registry(root, MODEL)
    before = registry.at(CHAMPION)
    version = registry.add(checkpoint, hash_dir(checkpoint), {}, None)
    if before is not None:
        registry.point(PREVIOUS, before)
    assert registry.point(CHAMPION, version) and not registry.point(CHAMPION, version)
    assert aliases(root, MODEL)[CHAMPION] == version.number
    return version.number


def test_a_moved_champion_is_told_signed_also_after_a_restart(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = up(root, **LOOSE)
    with receiver() as inbox:
        main(["releases", inbox.url])
        one = promote(root, "one")
        assert soon(lambda: len(inbox.requests) == 1, 60) and inbox.told() == [("created", CHAMPION, str(one))]
        headers, body = inbox.requests[0]
        verified, later = documented(), str(int(time.time()) - 400)
        assert not verified("another", headers, body) and not verified(SHARED, headers, body + b" ")
        assert not verified(SHARED, headers | {"X-MLflow-Timestamp": later}, body) and not verified(SHARED, {}, body)
        assert json.loads(body)["data"]["name"] == MODEL

        # The team's way: another machine, which knows the server's address only.
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
        (tmp_path / "second").mkdir()
        (tmp_path / "second/params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
        two = promote(tmp_path / "second", "two")
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        moved = {("created", PREVIOUS, str(one)), ("created", CHAMPION, str(two))}
        assert soon(lambda: len(inbox.requests) == 3, 60) and set(inbox.told()[1:]) == moved

        main(["releases", "--test"])
        assert "the receiver answers 200" in capsys.readouterr().out and len(inbox.told()) == 4
        inbox.status = 404
        with pytest.raises(ServiceError, match="the receiver answers 404"):
            main(["releases", "--test"])
        inbox.status, inbox.requests = 200, []

        # Another process, the same key: the secret is still the one that the receiver knows.
        up(root, **LOOSE)
        three = promote(root, "three")
        assert soon(lambda: len(inbox.requests) == 2, 60)
        assert set(inbox.told()) == {("created", PREVIOUS, str(two)), ("created", CHAMPION, str(three))}
        capsys.readouterr()
        main([])
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("releases: http://127.0.0.1:") and "/mlflow" not in line and EVENTS[0] in line

        # No server: the alias moves, and nobody is told, which is said.
        stop_services(root)
        promote(root, "four")
        assert "webhooks (releases) are not told that champion is version 4" in capsys.readouterr().out
        assert len(inbox.requests) == 2
        with pytest.raises(ServiceError, match="does not run"):
            main([])


def test_a_server_with_mlflows_own_settings_refuses_and_another_key_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    up(root)
    with pytest.raises(ConfigError, match="scheme") as scheme:
        main(["releases", f"http://{LOCALHOST}:9/mlflow"])
    assert "MLFLOW_WEBHOOK_ALLOWED_SCHEMES" in str(scheme.value)
    with pytest.raises(ConfigError, match="non-public") as private:
        main(["releases", f"https://{LOCALHOST}:9/mlflow"])
    assert "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS" in str(private.value)
    with pytest.raises(ConfigError, match=r"events\.invalid'.* — an address whose host this machine can look up"):
        main(["releases", "https://events.invalid/"])
    with pytest.raises(ConfigError, match="letters, digits, dots, dashes and underscores"):
        main(["of us", "https://192.0.2.1/"])
    with pytest.raises(ConfigError, match="event"):
        main(["releases", "https://192.0.2.1/", "--event", "model.moved"])
    assert Webhooks(root).all() == []
    with pytest.raises(ConfigError, match="no webhook named releases"):
        main(["releases", "--remove"])

    up(root, **LOOSE)
    main(["releases", f"http://{LOCALHOST}:9/one"])
    main(["releases", f"http://{LOCALHOST}:9/two", "--event", "model_version.created"])
    (webhook,) = Webhooks(root).all()
    assert webhook.url.endswith("/two") and [str(event) for event in webhook.events] == ["model_version.created"]
    assert (root / WEBHOOK_KEY).stat().st_mode & 0o777 == 0o600

    (root / WEBHOOK_KEY).unlink()
    up(root, **LOOSE)
    with pytest.raises(DataError, match="the secrets of releases were kept with another key"):
        main([])
    promote(root, "one")
    main(["releases", "--remove"])
    assert Webhooks(root).all() == [] and "releases: removed" in capsys.readouterr().out


def test_without_a_secret_or_a_server_nothing_is_registered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServiceError, match="orchestra up"):
        main(["releases", "https://hooks.example/"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://nobody@127.0.0.1/mlflow")
    with pytest.raises(ConfigError, match="without a server"):
        main(["releases", "https://hooks.example/"])
    monkeypatch.delenv(SECRET)
    with pytest.raises(ConfigError, match="openssl rand"):
        main(["releases", "https://hooks.example/"])
