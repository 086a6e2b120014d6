"""`orchestra schedule` and `notify` on real servers: runs at their time; a failure is found, explained, told once."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orchestra.system.processes import services, stop_services
from orchestra.system.runs import runs
from tests.flows.workspace import Workspace, free_ports
from tests.support.waiting import soon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def served(plain: Workspace) -> Iterator[Workspace]:
    yield plain
    stop_services(plain.root)


@contextmanager
def receiver(told: list[str]) -> Iterator[str]:
    """A webhook that keeps the text of what it is sent; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/services/T0"
    finally:
        server.shutdown()


def test_a_wrong_argument_starts_nothing(served: Workspace) -> None:
    nightly = ("schedule", "nightly", "--cron")
    assert "Prefect's server does not run" in served.orchestra("schedule", code=2)[-1]
    for name in ("a/b", "", " "):
        assert f"{name!r} is no name" in served.orchestra("schedule", name, "--cron", "0 3 * * *", code=2)[-1]
    said = served.orchestra("schedule", "asked", "--cron", "0 3 * * *", code=2)[-1]
    assert "asked is a deployment of `orchestra retraining on`" in said
    assert served.orchestra(*nightly, "every day", code=2)[-1].startswith("error: --cron: 'every day' is no schedule —")
    said = served.orchestra(*nightly, "0 3 * * *", "--timezone", "Mars", code=2)[-1]
    assert said.startswith("error: --timezone: 'Mars' is no time zone —")
    assert "no key grpo.sed" in served.orchestra(*nightly, "0 3 * * *", "--set", "grpo.sed=1", code=2)[-1]
    assert "no --cron" in served.orchestra("schedule", "nightly", code=2)[-1]
    assert "no address" in served.orchestra("notify", "slack", code=2)[-1]
    assert services(served.root) == []


def test_schedule_find_tell_and_remove(served: Workspace) -> None:
    served.orchestra("up", *free_ports())
    told: list[str] = []
    with receiver(told) as url:
        served.orchestra("notify", url)
        began = time.monotonic()
        served.orchestra("schedule", "nightly", "--cron", "0 3 * * *", "--set", "grpo.seed=5")
        print(f"scheduled in one command, {time.monotonic() - began:.0f} s")
        served.orchestra("schedule", "watch", "--cron", "* * * * *", "--flow", "monitor")
        assert {one.name for one in services(served.root)} == {"prefect", "mlflow", "metrics", "worker"}
        listed = served.orchestra("schedule")
        assert re.match(r"nightly +retrain +'0 3 \* \* \*' UTC +grpo.seed=5$", listed[0])
        assert listed[1].startswith("watch")

        worker = served.root / ".state/logs/worker.log"
        assert soon(lambda: len([one for one in runs(served.root) if one.failed]) >= 2, 400), worker.read_text()
        assert soon(lambda: bool(told), 300), "Prefect holds an event back until the one before it was seen"
        (text,) = told
        assert "monitor" in text and "nothing was released" in text and "orchestra why " in text
    status = "\n".join(served.orchestra("status"))
    assert status.startswith("Failed\n  monitor ") and re.search(r"^  worker +— +up ", status, re.M)
    assert "asked for by schedule watch" in "\n".join(served.orchestra("why"))
    assert "failed: " in worker.read_text() and "nothing was released" in worker.read_text()

    served.orchestra("schedule", "watch", "--remove")
    assert "no schedule watch" in served.orchestra("schedule", "watch", "--remove", code=2)[-1]
    assert served.orchestra("schedule", "nightly", "--remove")[-1].startswith("worker: ended")
    assert served.orchestra("schedule") == ["nothing is scheduled"]
    assert served.orchestra("notify", "--remove") == ["6 automations removed"]
