"""A headless Chromium that is on the machine, driven over its DevTools protocol; nothing is downloaded."""

import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SETTING = "ORCHESTRA_CHROMIUM"
START_S = 120.0


def chromium() -> str | None:
    """The browser: the one that $ORCHESTRA_CHROMIUM names, or one on the path; None where there is none."""
    named = os.environ.get(SETTING)
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One page, and everything that it has said so far."""

    def __init__(self, socket: Connection) -> None:
        self.socket, self.numbers = socket, itertools.count(1)
        self.events: list[dict[str, Any]] = []
        self.session = ""

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its result; raises `AssertionError` when the browser refuses it."""
        number = next(self.numbers)
        told = {"id": number, "method": method, "params": params}
        self.socket.send(json.dumps(told | ({"sessionId": self.session} if self.session else {})))
        while (said := json.loads(self.socket.recv(timeout=START_S))).get("id") != number:
            self.events.append(said)
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is on the page."""
        made = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in made, made
        return made["result"].get("value")

    def visit(self, url: str) -> None:
        """Opens an address, and forgets what was said before."""
        self.events.clear()
        self("Page.navigate", url=url)
        self.value("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")

    def press(self, key: str, code: int) -> None:
        """A key down and up."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def said(self, method: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event["params"] for event in self.events if event.get("method") == method]


@contextmanager
def opened(program: str, profile: Path) -> Iterator[Page]:
    """An empty page in a browser of its own; its profile is a folder that it may fill."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"]
    command = [program, *flags, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        assert process.stderr is not None
        lines = (line.decode(errors="replace") for line in process.stderr)
        address = next(line.split()[-1] for line in lines if line.startswith("DevTools listening on"))
        with connect(address, max_size=None, open_timeout=START_S, proxy=None) as socket:
            page = Page(socket)
            target = page("Target.createTarget", url="about:blank")["targetId"]
            page.session = page("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for name in ("Page", "Runtime", "Network", "Log"):
                page(f"{name}.enable")
            yield page
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
