"""The way into the sandbox: namespaces, limits and a filter of system calls, then an interpreter that waits.

Run as a process of its own, `python -I -S -c <this file and a call of enter(…)>`: the source is handed over, as inside
there is nothing but the standard library, and it imports little of that, as every program waits for it. `enter` makes
the namespaces with the kernel's calls, or leaves that to bubblewrap, inside which `confine` sets limits and the filter.
What it says on the descriptor `status`: the pid of the first process inside, whether system calls are filtered, and
`ready` once the interpreter waits; a failure before that is not the program's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to load than all the rest
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
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 22, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
AF_UNIX = 1
STATUS = 3
"""Where the interpreter finds the descriptor `status`; it has no other but the three standard ones."""

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
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457),
    "listmount": (458, 458), "open_tree_attr": (467, 467), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "delete_module": (176, 106),
    "kexec_file_load": (320, 294), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "process_madvise": (440, 440),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "socket": (41, 198), "personality": (135, 92), "syslog": (103, 116),
}  # fmt: skip
ONLY = {"socketpair": ((53, 199), AF_UNIX), "prlimit64": ((302, 261), 0)}
"""Granted with this first argument alone: pipes of one's own family, one's own limits."""
MACHINES = {"x86_64": (0, 0xC000003E, 56, 435), "aarch64": (1, 0xC00000B7, 220, 435)}
"""Column of `DENIED`, audit name of the machine, numbers of clone and clone3."""

WAIT = """
def program():
    import os
    os.write(3, b"ready\\n")
    os.close(3)
    code = b""
    while part := os.read(0, 65536):
        code += part
    if not code.endswith(b"\\0"):  # whoever started this interpreter is gone
        os._exit(1)
    os.close(0)
    os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
    return compile(code[:-1].decode(), "<string>", "exec", dont_inherit=True)

exec(globals().pop("program")())
"""
"""What the interpreter runs: it takes a program, closed by a zero byte, from standard input, and becomes that."""


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
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # a machine that runs out of memory ends the untrusted first
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
    """In the new namespaces: fork once more to become process 1 of the new tree, whose end ends all that it started.

    Bubblewrap makes its own inside two of ours. Users: the kernel does not limit root's processes, so that root needs a
    second one. Processes: bubblewrap, killed while it starts, leaves a child behind.
    """
    die_with_parent()
    os.close(mapped_write)
    ours = CLONE_NEWUSER | CLONE_NEWPID if spec["bubblewrap"] else EVERY_NAMESPACE
    must(libc().unshare(ours), "unsharing namespaces")
    os.write(ready_write, b"1")
    if not os.read(mapped_read, 1):
        raise SetupError("the id maps were refused")
    first = os.fork()
    if first == 0:
        guarded(lambda: process_one(spec))
    os.write(spec["status"], b"first %d\n" % first)
    os._exit(exit_status(os.waitpid(first, 0)[1]))


def process_one(spec: dict[str, Any]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing that the program sends may end this process
    bubblewrap: list[str] = spec["bubblewrap"]
    if not bubblewrap:
        build_root(spec)
    program = os.fork()
    if program == 0:
        guarded(lambda: os.execv(bubblewrap[0], bubblewrap) if bubblewrap else confine(spec))
    while True:
        pid, status = os.wait()
        if pid == program:
            os._exit(exit_status(status))


def build_root(spec: dict[str, Any]) -> None:
    """A root of its own: an empty file system with what the interpreter needs, read-only, and a small scratch."""
    name = spec["host_name"].encode()
    must(libc().sethostname(name, len(name)), "naming the host")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    root = spec["mount_point"]
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=400,mode=755")
    for path in spec["readable"]:
        bind(path, root + path)
        mount("none", root + path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    for path in spec["hidden"]:
        mount("tmpfs", root + path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,nr_inodes=2,mode=755")
    for device in spec["devices"]:
        bind(device, root + device)
    os.makedirs(root + "/scratch")
    os.chdir(root)
    must(libc().pivot_root(b".", b"."), "changing the root")
    must(libc().umount2(b".", MNT_DETACH), "leaving the old root")
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def bind(path: str, place: str) -> None:
    """Make a file or folder appear at another place too."""
    if os.path.isdir(path):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
    mount(path, place, "", MS_BIND)


def confine(spec: dict[str, Any]) -> None:
    """The scratch, limits, no privileges, the filter; then the interpreter, with no descriptor but its own four."""
    size = f"size={spec['scratch_bytes']},nr_inodes={spec['scratch_files']},mode=777"
    mount("tmpfs", "/scratch", "tmpfs", MS_NOSUID | MS_NODEV, size)
    os.chdir("/scratch")
    os.umask(0o077)
    for name, limit in spec["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    for capability in range(64):
        libc().prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)  # fails beyond the last capability
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, "no ambient capabilities")
    if os.getuid() == 0:
        os.setgroups([])
    os.setresgid(PROGRAM_ID, PROGRAM_ID, PROGRAM_ID)
    os.setresuid(PROGRAM_ID, PROGRAM_ID, PROGRAM_ID)  # the capabilities end with the exec below
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no new privileges")
    die_with_parent()
    if install_filter():
        os.write(spec["status"], b"filtered\n")
    os.dup2(spec["status"], STATUS)
    os.closerange(STATUS + 1, 4096)
    os.execve(spec["program"][0], spec["program"], spec["environment"])


def install_filter() -> bool:
    """A seccomp filter that refuses `DENIED`; False on a machine whose numbers are not known here."""
    machine = MACHINES.get(os.uname().machine)
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
    for numbers, only in ONLY.values():
        code += [(equal, 0, 4, numbers[column]), (load, 0, 0, 16), (equal, 1, 0, only), (back, 0, 0, refuse)]
        code += [(back, 0, 0, allow)]
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
