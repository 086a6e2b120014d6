"""The workspace a flow runs in: its settings and its Prefect API."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestra.errors import OrchestraError, ServiceError
from orchestra.files.atomic import make_folder
from orchestra.system.environment import quiet
from orchestra.system.processes import free_port, kill_tree, spawn, wait_until
from orchestra.system.servers import (
    PREFECT_GUARD,
    PREFECT_LOGIN,
    PREFECT_URL,
    answers,
    prefect_client,
    prefect_login,
)
from orchestra.system.storage import PREFECT, blame_storage, check_database

API_START_TIMEOUT_S = 180.0
API_LOG = Path(".state/logs/prefect-api.log")


HEARTBEAT_S = 30
"""Between two signs of life that a flow gives to Prefect."""
PREFECT_SETTINGS = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
    # The flow prints its own lines; Prefect's copies go to the API, so that the UI shows them too.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}
"""Of every flow, whoever starts it."""


def settings(root: Path) -> None:
    """Environment for Prefect, before its first import: this workspace's database, its own lines off the screen."""
    quiet()
    state = root / ".state"
    make_folder(state)
    # Never the shell's: `orchestra up` keeps the history of flows here, too.
    os.environ["PREFECT_HOME"] = str(state / "prefect")
    for name, value in {"PREFECT_LOGGING_LEVEL": "INFO", **PREFECT_SETTINGS}.items():
        os.environ.setdefault(name, value)


def _end_with(child: "subprocess.Popen[str]", leaving: threading.Event, root: Path, log: Path) -> None:
    """End this process when its API dies: Prefect would ask a dead address for minutes.

    It ends as if it was killed, so that the next run closes its record and goes on from its checkpoints.
    """
    child.wait()
    if leaving.is_set():
        return
    error: OrchestraError = ServiceError(
        "Prefect's API ended", where=str(log.relative_to(root)), fix="run the same command again: it continues"
    )
    try:
        blame_storage(root, log)
    except OrchestraError as storage:
        error = storage
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(2)


@contextlib.contextmanager
def prefect_api(root: Path) -> Iterator[Callable[[], str]]:
    """A Prefect API for this process: the one that is set, that of `make up`, or a child that dies with us.

    Yields a function that waits until it answers and returns its address; meanwhile the caller can import.
    """
    if found := prefect_client(root):
        os.environ.update(found)
        yield lambda: found[PREFECT_URL]
        return
    check_database(root, PREFECT, beside=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    log = root / API_LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    # Not Prefect's own ephemeral server: that one outlives a flow that is killed.
    app = ["--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1", "--port", str(port)]
    switches = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    login = prefect_login(root)
    with log.open("w", encoding="utf-8") as out:
        child = spawn(
            [sys.executable, "-m", "uvicorn", *app, "--log-level", "error", "--timeout-keep-alive", "10"],
            cwd=root,
            env={**os.environ, **switches, PREFECT_GUARD: login},
            stdout=out,
        )
    os.environ.update({PREFECT_URL: url, PREFECT_LOGIN: login})

    leaving = threading.Event()

    def ready() -> str:
        page = f"{url}/health"
        if wait_until(lambda: answers(page), API_START_TIMEOUT_S, gone=lambda: child.poll() is not None):
            threading.Thread(target=_end_with, args=(child, leaving, root, log), daemon=True).start()
            return url
        blame_storage(root, log)
        raise ServiceError("Prefect's API does not start", where=str(log), fix="read that file; orchestra doctor")

    try:
        yield ready
    finally:
        leaving.set()
        for name in (PREFECT_URL, PREFECT_LOGIN):
            os.environ.pop(name, None)
        kill_tree(child.pid, grace_s=3)
