"""The workspace a run works in: its lock, and the screen that a person reads."""

import contextlib
import fcntl
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO
from urllib.request import getproxies

from orchestra.errors import ConfigError, ServiceError
from orchestra.files.atomic import make_folder, private_once
from orchestra.text import digest, plain

LOCK = ".state/flow.lock"
ID = ".state/workspace.id"
IN_PLACE = re.compile(r"\(\d+%\)")

CERTIFICATES = "SSL_CERT_FILE"
"""A variable of OpenSSL, which every HTTP client reads, also where it speaks plain HTTP."""
WORKERS_RUN = "PREFECT__FLOW_RUN_ID"
"""Set where a worker of Prefect started this process, and reads what it prints."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy")

_held: dict[Path, contextlib.ExitStack] = {}
"""The lock files that this process holds, each with what is to be done when it is free."""


def workspace_id(root: Path) -> str:
    """Names a workspace among others that use the same MLflow or Prefect.

    It is of its folder and of a file in it: a container has another host name after each start, and other machines have
    the same path. A copy of the file has another inode, so a copied workspace has an id of its own.
    """
    file = root.resolve() / ID
    kept = private_once(file, secrets.token_hex(16))
    return digest(f"{kept}\0{file.stat().st_ino}\0{file}")


def check_surroundings(root: Path) -> None:
    """Raises `ConfigError` for a path of the workspace or certificates with which libraries fail later on."""
    check_path(root)
    check_certificates()


def check_path(root: Path) -> None:
    """Raises `ConfigError` for a path that an address of a database, or a command of DVC, cannot hold."""
    path = str(root)
    named = [f"the character {mark}" for mark in "?%" if mark in path]
    if "'" in path and '"' in path:
        named.append("both kinds of quotes")
    if named:
        what = f"the path of the workspace holds {named[0]}"
        raise ConfigError(what, where=path, fix="move it to a folder with a plain name")
    try:
        path.encode()
    except UnicodeEncodeError:
        fix = "export LC_ALL=C.UTF-8, or move it to a folder with a plain name"
        raise ConfigError("the path of the workspace cannot be read here", where=ascii(path), fix=fix) from None


def check_certificates() -> None:
    """Raises `ConfigError` where the variable for certificates names no file of them."""
    file = os.environ.get(CERTIFICATES)
    if not file:
        return
    import ssl

    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        what = f"{file} is no file of certificates: {error.strerror or error}"
        raise ConfigError(what, where=CERTIFICATES, fix=f"unset {CERTIFICATES}, or name a PEM file") from None


def check_proxies() -> None:
    """Raises `ConfigError` for a SOCKS proxy without its package: Prefect's client then asks nobody, us included."""
    if "*" in (host.strip() for host in getproxies().get("no", "").split(",")):
        return  # Every client then goes past the proxies.
    for name, address in os.environ.items():
        if name.lower() in PROXIES and address.lower().startswith("socks") and find_spec("socksio") is None:
            fix = f".venv/bin/uv pip install socksio, or unset {name}"
            raise ConfigError("it is a SOCKS proxy, for which a package is missing", where=name, fix=fix)


def git_refusal(root: Path) -> tuple[str, str] | None:
    """Why git tells nothing of the workspace, and the fix; None where it does."""
    command = ["git", "-C", str(root), "rev-parse", "--is-inside-work-tree"]
    try:
        english = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, env=english, capture_output=True, text=True, errors="replace", timeout=20)
    except OSError:
        return "not installed", "sudo apt-get install git"
    if done.stdout.strip() == "true":
        return None
    if "dubious ownership" in done.stderr:
        fix = f"git config --global --add safe.directory {shlex.quote(str(root))}"
        return "the folder belongs to another user, so git refuses it", fix
    return "this folder is not a repository", "git init && git add . && git commit -m start"


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """One run at a time in a workspace; the kernel frees the lock however its holder ends, who may enter again.

    Values that a killed run left in params.yaml are taken back: whoever comes next works with the person's own.
    """
    from orchestra.config.overrides import undo

    file = root.resolve() / LOCK
    inside = file in _held
    with alone(file, root, "in this workspace"):
        if not inside:
            undo(root)
        yield


@contextlib.contextmanager
def alone(file: Path, where: Path, at: str) -> Iterator[None]:
    """One run at a time holds a lock file; `where` and `at` tell the others what is held: "in this workspace"."""
    if file in _held:
        yield
        return
    make_folder(file.parent)
    with contextlib.ExitStack() as afterwards, file.open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            pid = handle.read().strip() or "?"
            what = f"a run with pid {pid} works {at}"
            raise ServiceError(what, where=str(where), fix=f"wait for it, or end it: kill {pid}") from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        _held[file] = afterwards
        try:
            yield
        finally:
            del _held[file]


def after_run(root: Path, work: Callable[[], object]) -> None:
    """Do it when this process has given back the workspace's lock, however its run ends; at once where it has none."""
    held = _held.get(root.resolve() / LOCK)
    if held is None:
        work()
    else:
        held.callback(work)


def locked_elsewhere(root: Path) -> bool:
    """Whether another process has that lock, on this machine or on one that shares the workspace."""
    file = root.resolve() / LOCK
    if file in _held or not file.is_file():
        return False
    with file.open(encoding="utf-8") as handle:
        try:
            # Shared: two that ask do not see each other. It is gone when the file is closed.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Screen:
    """Lines for a person; progress stays on one line of a terminal, and is thinned out elsewhere. Errors go to stderr.

    Lines may quote anybody: what would steer the terminal is spelled out. `out`: where they go instead of stdout.
    """

    def __init__(self, out: TextIO | None = None, *, every_s: float = 15.0) -> None:
        self._out = out
        self._in_place = False
        self._every_s = every_s
        self._last_progress = 0.0

    def __call__(self, line: str) -> None:
        progress = bool(IN_PLACE.search(line))
        out = self._out or sys.stdout
        terminal = out.isatty()
        if progress and not terminal:
            now = time.monotonic()
            if now - self._last_progress < self._every_s and "(100%)" not in line:
                return
            self._last_progress = now
        start = "\r\033[K" if self._in_place else ""
        self._in_place = progress and terminal and "(100%)" not in line
        where = sys.stderr if line.startswith("error: ") else out
        end = "" if self._in_place else "\n"
        try:
            # As one text, which no line of another thread can divide.
            print(start + plain(line) + end, end="", file=where, flush=True)
        except BrokenPipeError:
            if WORKERS_RUN not in os.environ:
                raise
            # The worker was killed; its run goes on, and Prefect has each line through its API.
