"""Faults of a shared store on S3: a proxy before a real server that is down, silent, slow, refuses, or cuts uploads."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import yaml

from benchmarks.fault_cases import FaultOutcome, Reference, ended, finished, last, plain, typed
from orchestra.files.yaml import load_yaml
from orchestra.system.processes import LOCALHOST
from tests.flows.workspace import Workspace, commit
from tests.support.stores import BUCKET, KEYS, s3_server

Mode = Literal["down", "silent", "slow", "403", "503", "cut"]
STORE_FAULTS: dict[Mode, str] = {
    "down": "the S3 store is down",
    "silent": "the S3 store accepts and never answers",
    "slow": "the S3 store answers each request a second late",
    "403": "the S3 store refuses (403)",
    "503": "the S3 store is overloaded (503)",
    "cut": "the S3 store cuts every upload half-way",
}
REFUSED = (
    "HTTP/1.1 {code} no\r\nContent-Type: application/xml\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{body}"
)
BODY = "<Error><Code>{name}</Code><Message>{name}</Message></Error>"
NAMES = {"403": "AccessDenied", "503": "SlowDown"}
SLOW_S, LARGE, PIECE = 1.0, 32 * 2**10, 2**16


class FaultyStore:
    """Passes connections on to a server of S3; each that begins while there is a `mode` meets that fault."""

    def __init__(self, behind: str) -> None:
        self.behind = urlsplit(behind)
        self.mode: Mode | None = None
        self.struck = 0
        """Connections that met a fault."""
        self._held: list[socket.socket] = []
        self._listen(0)
        self.url = f"http://{LOCALHOST}:{self._listener.getsockname()[1]}"

    def strike(self, mode: Mode) -> None:
        self.mode = mode
        if mode == "down":
            self._hang_up()
            self.struck += 1

    def heal(self) -> None:
        if self.mode == "down":
            self._listen(int(self.url.rpartition(":")[2]))
        self.mode = None

    def close(self) -> None:
        self._hang_up()
        for one in self._held:
            with contextlib.suppress(OSError):
                one.close()

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server((LOCALHOST, port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        """One connection; a fault ends it, so that the next request meets what holds then."""
        mode = self.mode
        self.struck += mode is not None
        with contextlib.suppress(OSError):
            if mode == "silent":
                self._held.append(caller)
                return
            if mode in NAMES:
                asked, body = caller.recv(PIECE), BODY.format(name=NAMES[mode])
                told = "" if asked.startswith(b"HEAD") else body
                caller.sendall(REFUSED.format(code=mode, size=len(body), body=told).encode())
                caller.close()
                return
            server = socket.create_connection((self.behind.hostname or LOCALHOST, self.behind.port or 80))
            threading.Thread(target=self._answers, args=(server, caller, mode), daemon=True).start()
            self._requests(caller, server, mode)

    def _requests(self, caller: socket.socket, server: socket.socket, mode: Mode | None) -> None:
        """What the caller says, as far as the fault lets it: half of a large upload, or all."""
        passed = 0
        with contextlib.suppress(OSError):
            while piece := caller.recv(PIECE):
                passed += len(piece)
                if mode == "cut" and passed > LARGE:
                    server.sendall(piece[: len(piece) // 2])
                    reset(caller)
                    break
                server.sendall(piece)
        server.close()

    def _answers(self, server: socket.socket, caller: socket.socket, mode: Mode | None) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(PIECE):
                if mode == "slow":
                    time.sleep(SLOW_S)
                caller.sendall(piece)
        caller.close()


def reset(connection: socket.socket) -> None:
    """Close it without a farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextlib.contextmanager
def store() -> Iterator[FaultyStore]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # One line a request.
    with s3_server() as behind:
        found = FaultyStore(behind)
        try:
            yield found
        finally:
            found.close()


def sharing(reference: Reference, folder: Path, found: FaultyStore) -> Workspace:
    """A finished workspace that shares with that store."""
    workspace = Workspace(finished(reference, folder).root, KEYS)
    params = load_yaml(workspace.root / "params.yaml", if_missing="make setup")
    params["storage"] = {"url": f"s3://{BUCKET}/{folder.name}", "endpoint": found.url}
    (workspace.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    commit(workspace.root)
    return workspace


def clone(workspace: Workspace, folder: Path) -> Workspace:
    """Another machine."""
    command = ["git", "clone", "-q", str(workspace.root), str(folder)]
    subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
    return Workspace(folder, KEYS)


def shared(outcome: FaultOutcome, workspace: Workspace, other: Workspace, reference: Reference) -> None:
    """What another machine pulls in the end is all of it; nothing differs here or there."""
    pulled = typed(other, "pull")
    outcome.problems += [] if pulled.returncode == 0 else [f"the pull: {last(pulled.stdout)}"]
    outcome.problems += reference.differences(workspace) + reference.differences(other)


def faulty_store(mode: Mode, template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """A push meets the fault; another machine must see all of it, or nothing; the same command then pushes."""
    outcome = FaultOutcome(STORE_FAULTS[mode], "push")
    with store() as found:
        workspace = sharing(reference, folder, found)
        other = clone(workspace, folder.with_name(f"{folder.name}-other"))
        found.strike(mode)
        pushed = typed(workspace, "push")
        found.heal()
        outcome.problems += plain(pushed.stdout) + ([] if found.struck else ["the fault met no request"])
        outcome.told = last(pushed.stdout).replace(found.url, "http://STORE")
        if mode == "slow":
            outcome.problems += [] if pushed.returncode == 0 else [f"a slow store ends it with {pushed.returncode}"]
        else:
            outcome.recovery = "`orchestra push`"
            half = typed(other, "pull")
            if pushed.returncode != 2 or not outcome.told.startswith("error: "):
                outcome.problems.append(f"the push ends with {pushed.returncode} and no error line")
            if "the store is empty" not in half.stdout:
                outcome.problems.append(f"another machine takes the half for the whole: {last(half.stdout)}")
            again = typed(workspace, "push")
            outcome.problems += [] if again.returncode == 0 else [f"the second push: {last(again.stdout)}"]
        shared(outcome, workspace, other, reference)
    ended(workspace)
    ended(other)
    return outcome


def retried_push(template: Path, folder: Path, reference: Reference) -> FaultOutcome:
    """The push of a run meets a store that cuts uploads, which is well when the run tries again."""
    outcome = FaultOutcome("the S3 store cuts the uploads of a run, and is well a moment later", "push")
    with store() as found:
        workspace = sharing(reference, folder, found)
        found.strike("cut")
        run = workspace.start("run")
        while run.poll() is None and found.struck < 3:
            time.sleep(0.05)
        time.sleep(5)
        found.heal()
        said, _ = run.communicate(timeout=1200)
        outcome.told = last(said)
        outcome.problems += plain(said) + ([] if found.struck else ["the fault met no request"])
        if run.returncode != 0:
            outcome.problems.append(f"the run was not retried: {last(said)}")
        other = clone(workspace, folder.with_name(f"{folder.name}-other"))
        shared(outcome, workspace, other, reference)
    ended(workspace)
    ended(other)
    return outcome
