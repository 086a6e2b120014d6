"""Supervises a server: it and all that it started end when we do, however we end. A process of its own.

`python -I -S supervisor.py OWNER COMMAND…`: OWNER is the pid that must stay alive. The kernel tells of its death;
whatever the server started and abandoned comes back to this process (it is their subreaper) and ends too. It imports
the standard library alone: it is started in the bare environment that servers get. Linux only.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 1.0
"""For a server that was told to end; shorter than `stdio.GRACE_S`, after which this process is killed."""
TOLD = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WATCHED = TOLD | {signal.SIGCHLD}


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def main(owner: int, command: list[str]) -> int:
    """Run the command; its exit status, 128 + n when signal n ended it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    server = os.fork()
    if server == 0:
        become(command)
    # The pipes are the server's alone, so that its end is their end.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    # An owner that died before the kernel was asked is not told of.
    status = watch(server, told=os.getppid() != owner)
    end_all()
    return 0 if status is None else exit_status(status)


def become(command: list[str]) -> None:
    """In the child: be the server, never return."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def watch(server: int, *, told: bool) -> int | None:
    """Wait until the server ended (its wait status), or did not although it was told to."""
    deadline = None
    while True:
        if told and deadline is None:
            deadline = time.monotonic() + GRACE_S
            os.kill(server, signal.SIGTERM)
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return None
        got = signal.sigtimedwait(WATCHED, left) if left is not None else signal.sigwaitinfo(WATCHED)
        told = told or (got is not None and got.si_signo in TOLD)
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == server:
                return status
            if pid == 0:
                break


def end_all() -> None:
    """Kill every child, and theirs, which come to this process as their parents end, until there is none."""
    while True:
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Pids of the direct children."""
    own, found = str(os.getpid()), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    if file.read().rpartition(")")[2].split()[1] == own:
                        found.append(int(name))
            except (OSError, IndexError):
                continue
    return found


def exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
