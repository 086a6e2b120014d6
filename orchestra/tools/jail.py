"""The way into the sandbox: namespaces, limits and a system-call filter, then the program. Run as a process of its own.

`python -I -S -c <this file> enter|confine '<json>'`: `enter` makes the namespaces with the kernel's calls; `confine`
(inside bubblewrap) only sets limits and the filter. It imports the standard library alone, as there is nothing else
inside. Once all is in place it writes `ready` to the descriptor `status`; a failure before that is not the program's.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

PROGRAM_ID = 1000
"""User and group id inside."""
NOBODY = 65534
"""Id outside, where the sandbox is started by root: the kernel does not limit root's processes."""

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
EVERY_NAMESPACE = (
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE = 1, 22, 24, 38, 4

# Calls that reach beyond what the limits bound: new namespaces and mounts, memory outside the process, other processes'
# memory, keyrings, kernel programming interfaces. Numbers by machine: (x86_64, aarch64).
DENIED = {
    "ptrace": (101, 117), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "socket": (41, 198), "personality": (135, 92), "syslog": (103, 116),
}  # fmt: skip
MACHINES = {"x86_64": (0, 0xC000003E, 56, 435), "aarch64": (1, 0xC00000B7, 220, 435)}
"""Column of `DENIED`, audit name of the machine, numbers of clone and clone3."""


class SetupError(Exception):
    """The kernel does not grant what the sandbox needs."""


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def must(result: int, what: str) -> int:
    """Raise when a C call failed."""
    if result < 0:
        raise SetupError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(option: int, value: int, what: str) -> None:
    must(libc().prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)), what)


def die_with_parent() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, "death signal")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    encoded = [text.encode() if text else None for text in (source, target, kind, data)]
    must(
        libc().mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
        f"mounting {kind or source}",
    )


def enter(spec: dict[str, Any]) -> None:
    """Fork into new namespaces; this process stays outside, writes the id maps, waits, and exits as the program did."""
    die_with_parent()
    os.umask(0o022)
    ready_read, ready_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    child = os.fork()
    if child == 0:
        guarded(lambda: inside(spec, ready_write, mapped_read, mapped_write))
    os.close(ready_write)
    os.close(mapped_read)
    if os.read(ready_read, 1):
        write_id_maps(child)
        os.write(mapped_write, b"1")
    os._exit(exit_status(os.waitpid(child, 0)[1]))


def write_id_maps(child: int) -> None:
    if os.geteuid() == 0:
        files = dict.fromkeys(("uid_map", "gid_map"), f"0 0 1\n{PROGRAM_ID} {NOBODY} 1")
    else:  # without privileges the kernel maps only one's own ids, and groups must be given up first
        files = {"setgroups": "deny"}
        files |= {"uid_map": f"{PROGRAM_ID} {os.geteuid()} 1", "gid_map": f"{PROGRAM_ID} {os.getegid()} 1"}
    for name, text in files.items():
        with open(f"/proc/{child}/{name}", "w", encoding="ascii") as file:
            file.write(text)


def inside(spec: dict[str, Any], ready_write: int, mapped_read: int, mapped_write: int) -> None:
    """In the new namespaces: fork once more to become process 1 of the new tree, whose end ends all that it started."""
    die_with_parent()
    os.close(mapped_write)
    must(libc().unshare(EVERY_NAMESPACE), "unsharing namespaces")
    os.write(ready_write, b"1")
    if not os.read(mapped_read, 1):
        raise SetupError("the id maps were refused")
    first = os.fork()
    if first == 0:
        guarded(lambda: process_one(spec))
    os._exit(exit_status(os.waitpid(first, 0)[1]))


def process_one(spec: dict[str, Any]) -> None:
    die_with_parent()
    build_root(spec)
    program = os.fork()
    if program == 0:
        guarded(lambda: confine(spec))
    while True:
        pid, status = os.wait()
        if pid == program:
            os._exit(exit_status(status))


def build_root(spec: dict[str, Any]) -> None:
    """A root of its own: an empty file system with what the interpreter needs, read-only, and a small scratch."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    root = spec["mount_point"]
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=400,mode=755")
    for path in spec["readable"]:
        place = root + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(os.readlink(path), place)
        elif os.path.isdir(path):
            os.makedirs(place, exist_ok=True)
            mount(path, place, "", MS_BIND)
            mount("none", place, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.makedirs(root + "/dev")
    for device in ("/dev/null", "/dev/urandom"):
        os.close(os.open(root + device, os.O_CREAT | os.O_WRONLY))
        mount(device, root + device, "", MS_BIND)
    os.makedirs(root + "/scratch")
    size = f"size={spec['scratch_bytes']},nr_inodes={spec['scratch_files']},mode=777"
    mount("tmpfs", root + "/scratch", "tmpfs", MS_NOSUID | MS_NODEV, size)
    os.chdir(root)
    must(libc().pivot_root(b".", b"."), "changing the root")
    must(libc().umount2(b".", MNT_DETACH), "leaving the old root")
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def confine(spec: dict[str, Any]) -> None:
    """Limits, no privileges, the filter; then the program."""
    status: int = spec["status"]
    os.chdir("/scratch")
    os.umask(0o077)
    for name, limit in spec["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    if spec["namespaces"]:
        for capability in range(64):
            libc().prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)  # fails beyond the last capability
        if os.getuid() == 0:
            os.setgroups([])
        os.setresgid(PROGRAM_ID, PROGRAM_ID, PROGRAM_ID)
        os.setresuid(PROGRAM_ID, PROGRAM_ID, PROGRAM_ID)  # the capabilities end with the exec below
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no new privileges")
    die_with_parent()
    filtered = install_filter()
    os.set_inheritable(status, False)
    os.write(status, b"ready, system calls filtered" if filtered else b"ready")
    os.execve(spec["program"][0], spec["program"], spec["environment"])


def install_filter() -> bool:
    """A seccomp filter that refuses `DENIED`; False on a machine whose numbers are not known here."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        return False
    column, audit, clone, clone3 = machine
    load, equal, bits, back = 0x20, 0x15, 0x45, 0x06
    refuse, absent, allow, kill = 0x00050001, 0x00050026, 0x7FFF0000, 0x80000000  # EPERM, ENOSYS
    code = [(load, 0, 0, 4), (equal, 1, 0, audit), (back, 0, 0, kill), (load, 0, 0, 0)]
    code += [(0x35, 0, 1, 0x40000000), (back, 0, 0, refuse)]  # the x32 calling convention
    for numbers in DENIED.values():
        code += [(equal, 0, 1, numbers[column]), (back, 0, 0, refuse)]
    code += [(equal, 0, 1, clone3), (back, 0, 0, absent)]  # its flags cannot be read; libc falls back to clone
    code += [(equal, 0, 3, clone), (load, 0, 0, 16), (bits, 0, 1, EVERY_NAMESPACE), (back, 0, 0, refuse)]
    code += [(back, 0, 0, allow)]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = struct.pack("HL", len(code), ctypes.addressof(instructions))
    must(libc().prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.c_char_p(program), 0, 0), "filtering system calls")
    return True


def exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def guarded(step: Callable[[], object]) -> None:
    """Run a step of a forked child that must never return into the parent's code."""
    try:
        step()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
    os._exit(125)


if __name__ == "__main__":
    guarded(lambda: {"enter": enter, "confine": confine}[sys.argv[1]](json.loads(sys.argv[2])))
