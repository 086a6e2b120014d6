"""Child processes that never outlive their parent, and servers that are found and ended by pid."""

import contextlib
import ctypes
import errno
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from orchestra.errors import ServiceError
from orchestra.files import atomic

LOCALHOST = "127.0.0.1"
"""Where every server of this workspace listens: on this machine only."""
PAUSE_S = 0.2
"""Between two looks at a server that starts."""
SAY_EVERY_S = 5.0
"""So often a person is told of what is waited for."""
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
LOG_BYTES = 32 * 2**20
"""Beyond so many a server's log is put aside at its start, in the place of the one that was put aside before."""
FLOW_PID = "ORCHESTRA_FLOW_PID"
"""Tells a stage which flow it belongs to: DVC stands between them."""


def die_with_parent(ancestor: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when the thread that started it ends; Linux only, elsewhere nothing.

    Called in the child: through `preexec_fn`, or first thing in its main. A parent that ended before that is not told
    of, so a child that knows the pid of an `ancestor` ends at once when that one is gone already.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(by), 0, 0, 0)
    if ancestor is not None and not alive(ancestor):
        os.kill(os.getpid(), signal.SIGKILL)


def spawn(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[str] | IO[bytes] | None = None,
    orphaned: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[str]:
    """Start a child in its own process group that dies with the calling thread; stderr joins stdout.

    `orphaned`: the signal by which it dies. By SIGTERM it can end children of its own.
    """
    return subprocess.Popen(
        list(command),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        bufsize=1,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid(), orphaned),
    )


def run_child(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], on_line: Callable[[str], None]) -> int:
    """Run a child to its end, each line that it prints to `on_line` with its line break; returns the exit code.

    When this is left early (a time limit, a cancellation, an error of `on_line`), the child and all below it are ended.
    """
    child = spawn(command, cwd=cwd, env=env, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        for line in child.stdout:
            on_line(line)
        return child.wait()
    finally:
        if child.poll() is None:
            kill_tree(child.pid)
        child.stdout.close()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) not in {"Z", "X"}


def lives(pid: int, started: str | None) -> bool:
    """Whether the process runs that had the pid when it started then."""
    return alive(pid) and started_at(pid) == started


def started_at(pid: int) -> str | None:
    """The kernel's start tick of a process: with the pid it names one process for ever. None when it does not run."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else None


def descendants(pid: int) -> list[int]:
    """Pids of the children of `pid` and of theirs, parents first."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def session_members(pid: int, started: str) -> list[int]:
    """Pids of the living processes of the session that a service began, its own among them.

    They have no parent to be found by once the service itself was killed. The kernel gives no process the number of a
    session that still has members, so they are the service's unless another process has its pid by now.
    """
    if started_at(pid) not in (None, started):
        return []
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if len(fields) > 19 and fields[3] == str(pid) and fields[0] not in "ZX" and int(fields[19]) >= int(started):
            found.append(int(entry.name))
    return found


def kill_tree(pid: int, *others: int, grace_s: float = 10.0) -> None:
    """End a process, its descendants, and other processes: SIGTERM, up to `grace_s` seconds, then SIGKILL; returns when
    all are gone."""
    victims = {victim: started_at(victim) for victim in (pid, *descendants(pid), *others)}
    for sig, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for victim in list(victims):
            # Children born since: their parent is one of ours.
            victims.update({child: started_at(child) for child in descendants(victim) if child not in victims})
        for victim, start in victims.items():
            if start is None or started_at(victim) == start:
                try:
                    os.kill(victim, sig)
                except ProcessLookupError:
                    continue
                except PermissionError:
                    what, fix = f"process {victim} belongs to another user", f"sudo kill {victim}"
                    raise ServiceError(what, where="stop", fix=fix) from None
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if not any(lives(victim, start) for victim, start in victims.items()):
                return
            time.sleep(0.05)
    raise ServiceError(f"process {pid} does not end", where="stop", fix=f"kill -9 {pid}")


def wait_until(
    ready: Callable[[], bool],
    timeout_s: float,
    *,
    gone: Callable[[], bool] = lambda: False,
    say: Callable[[float], None] = lambda _: None,
) -> bool:
    """Whether it becomes `ready` in time; what is `gone` never does. `say` gets the seconds that passed, at times."""
    began = said = time.monotonic()
    while not gone():
        if ready():
            return True
        now = time.monotonic()
        if now - began > timeout_s:
            break
        if now - said >= SAY_EVERY_S:
            said = now
            say(now - began)
        time.sleep(PAUSE_S)
    return False


def server_socket(host: str = LOCALHOST) -> socket.socket:
    """A TCP socket for a server on an address or name, neither bound nor listening.

    It names its protocol, since asyncio turns Nagle's algorithm off only then: with it, an answer of two writes waits
    40 ms on a kept connection for the other side's acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def url_host(host: str) -> str:
    """A host as addresses and Host headers name it: in lower case; IPv6 in its short form and in brackets."""
    with contextlib.suppress(ValueError):
        return f"[{ipaddress.IPv6Address(host.removeprefix('[').removesuffix(']'))}]"
    return host.lower()


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as sock:
        sock.bind((LOCALHOST, 0))
        return int(sock.getsockname()[1])


def listeners() -> list[Any]:
    """This machine's TCP sockets that listen, as psutil tells them: `laddr` (ip, port), `pid` where it may be seen."""
    import psutil

    return [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]


def port_busy(port: int, host: str = LOCALHOST) -> bool:
    """Whether a server could not bind the port; of an address that this machine lacks, nothing is known."""
    try:
        with server_socket(host) as sock:
            sock.bind((host, port))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return False


@dataclass(frozen=True)
class Service:
    """A detached server: one JSON file `.state/<name>.pid.json`."""

    name: str
    pid: int
    started: str
    """Kernel start tick: a recycled pid is another process."""
    port: int
    url: str
    log: str
    """Log file, relative to the root."""

    @property
    def running(self) -> bool:
        return lives(self.pid, self.started)

    @property
    def members(self) -> list[int]:
        """Every living process of it, also those that a kill of the first one left behind."""
        return session_members(self.pid, self.started) if self.started else []

    def end(self, *, grace_s: float = 10.0) -> bool:
        """End all of it; whether there was anything to end."""
        members = self.members
        if members:
            kill_tree(members[0], *members[1:], grace_s=grace_s)
        elif self.running:
            kill_tree(self.pid, grace_s=grace_s)
        else:
            return False
        return True


def start_service(
    root: Path,
    name: str,
    command: Sequence[str],
    *,
    port: int,
    url: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Service:
    """Start a server that outlives this process, its output in `.state/logs/<name>.log`, and remember it.

    It runs in `cwd`, or in `root`.
    """
    state = root / ".state"
    log = state / "logs" / f"{name}.log"
    atomic.make_folder(log.parent)
    if log.is_file() and log.stat().st_size > LOG_BYTES:
        atomic.replace(log, log.with_name(f"{log.name}.1"))
    with log.open("ab") as out:
        child = subprocess.Popen(
            list(command),
            cwd=cwd or root,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    service = Service(name, child.pid, started_at(child.pid) or "", port, url, str(log.relative_to(root)))
    remember(root, service)
    return service


def remember(root: Path, service: Service) -> None:
    """Write the pid file, whole or not at all."""
    atomic.write_text(root / ".state" / f"{service.name}.pid.json", json.dumps(asdict(service), indent=2))


def services(root: Path) -> list[Service]:
    """Every remembered server that still runs.

    Only reads: a release may replace a server, and its pid file, while another process asks who serves.
    """
    return [service for service in all_remembered(root) if service.running]


def running(root: Path, name: str) -> Service | None:
    """The remembered server of this name, where it runs."""
    return next((service for service in services(root) if service.name == name), None)


def remembered(root: Path, name: str) -> Service | None:
    """A server with a pid file, dead or alive."""
    return next((service for service in all_remembered(root) if service.name == name), None)


def all_remembered(root: Path) -> Iterator[Service]:
    """Every server with a pid file: also one that died, which nobody stopped."""
    files: list[Path] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(root / ".state") as entries:  # `glob` hides a closed one.
        files = sorted(Path(entry.path) for entry in entries if entry.name.endswith(".pid.json"))
    for file in files:
        try:
            yield Service(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue  # Its server was ended since the folder was listed.
        except (ValueError, TypeError):
            raise ServiceError("not a pid file", where=str(file), fix=f"rm {file}") from None


def stop_services(root: Path, *names: str, grace_s: float = 10.0) -> list[Service]:
    """End the remembered servers (all, or those named) with their children and forget them; returns those that ran."""
    ended = []
    for service in all_remembered(root):
        if not names or service.name in names:
            if service.end(grace_s=grace_s):
                ended.append(service)
            (root / ".state" / f"{service.name}.pid.json").unlink(missing_ok=True)
    return ended


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state letter on; empty when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _state(pid: int) -> str:
    return (_stat(pid) or ["?"])[0]
