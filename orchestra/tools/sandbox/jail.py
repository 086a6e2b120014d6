"""The way into the sandbox: namespaces, limits and a filter of system calls, then an interpreter that waits.

Run as a process of its own, `python -I -S -c <this file and a call of enter(…)>`: the source is handed over, as inside
there is nothing but the standard library, and it imports little of that, as every program waits for it. `enter` makes
the namespaces with the kernel's calls, or leaves that to bubblewrap, inside which `confine` sets limits and the filter.
What it says on the descriptor `status`: the pid of the first process inside, whether system calls are filtered, and
`ready` once the interpreter waits; a failure before that is not the program's.
"""

from __future__ import annotations

import contextlib
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
MAP_SHARED, MAP_ANONYMOUS = 0x01, 0x20
EMPTY, OVERLAY = "/.empty", "/.overlay"
"""Folders of the sandbox's root that are used while it is built."""
STATUS = 3
"""Where the interpreter finds the descriptor `status`; it has no other but the three standard ones."""

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
    if spec["group"]:
        with open(spec["group"], "w", encoding="ascii") as file:
            file.write("0")  # before the first fork: what is started later is in the group too
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
    let_go()
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
    let_go()
    os._exit(exit_status(os.waitpid(first, 0)[1]))


def let_go() -> None:
    """Close the program's pipes here: they end with the program, whatever becomes of this process."""
    os.closerange(0, 3)


def process_one(spec: dict[str, Any]) -> None:
    die_with_parent()
    os.setsid()  # a signal to one's process group reaches members outside the process namespace too
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing that the program sends may end this process
    bubblewrap: list[str] = spec["bubblewrap"]
    if not bubblewrap:
        build_root(spec)
    program = os.fork()
    if program == 0:
        guarded(lambda: os.execv(bubblewrap[0], bubblewrap) if bubblewrap else confine(spec))
    let_go()
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
    for folder in (EMPTY, OVERLAY):
        os.mkdir(root + folder)
    private = [own_image(path, root) for path in spec["readable"]]
    spec["calls"] = spec["private_calls" if all(private) else "calls"]
    for path in spec["hidden"]:
        mount("tmpfs", root + path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,nr_inodes=2,mode=755")
    for device in spec["devices"]:
        bind(device, root + device)
    os.makedirs(root + "/scratch")
    os.chdir(root)
    must(libc().pivot_root(b".", b"."), "changing the root")
    must(libc().umount2(b".", MNT_DETACH), "leaving the old root")
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def own_image(path: str, root: str) -> bool:
    """Make a path readable below the root; whether its files are this sandbox's alone.

    They are where the kernel lays an overlay over them: nobody else has its locks and watches. A single file is taken
    from an overlay of its folder, which goes away again.
    """
    place, source, over = root + path, os.path.realpath(path), root + OVERLAY
    whole = os.path.isdir(source)
    folder = source if whole else os.path.dirname(source)
    if whole:
        os.makedirs(place, exist_ok=True)
        over = place
    try:
        if set(folder) & set(":,\\"):
            raise SetupError("not a path for the options of a mount")
        mount("overlay", over, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, f"lowerdir={root}{EMPTY}:{folder}")
    except SetupError:
        bind(path, place)
        private = False
    else:
        if not whole:
            bind(over + "/" + os.path.basename(source), place)
            must(libc().umount2(over.encode(), MNT_DETACH), "leaving a folder")
        private = True
    mount("none", place, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    return private


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
    if install_filter(spec["calls"]):
        os.write(spec["status"], b"filtered\n")
    os.dup2(spec["status"], STATUS)
    os.closerange(STATUS + 1, 4096)
    os.execve(spec["program"][0], spec["program"], spec["environment"])


def install_filter(calls: dict[str, Any]) -> bool:
    """A seccomp filter that grants these calls alone; False on a machine whose numbers are not known.

    Memory is mapped for one process alone: what several share stays when it leaves their page tables, where neither
    their limits nor a look at what they hold would find it.
    """
    if not calls:
        return False
    load, equal, least, bits, back = 0x20, 0x15, 0x35, 0x45, 0x06
    refuse, absent, allow, kill = 0x00050001, 0x00050026, 0x7FFF0000, 0x80000000  # EPERM, ENOSYS
    no, yes = (back, 0, 0, refuse), (back, 0, 0, allow)
    code = [(load, 0, 0, 4), (equal, 1, 0, calls["audit"]), (back, 0, 0, kill), (load, 0, 0, 0)]
    code += [(least, 0, 1, 0x40000000), no]  # the x32 calling convention
    for number in calls["allowed"]:
        code += [(equal, 0, 1, number), yes]
    code += [(equal, 0, 1, calls["clone3"]), (back, 0, 0, absent)]  # its flags cannot be read; libc falls back to clone
    for number, argument, value in calls["only"]:
        code += [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * argument), (equal, 1, 0, value), no, yes]
    for number, argument, values in calls["except"]:
        code += [(equal, 0, 2 * len(values) + 2, number), (load, 0, 0, 16 + 8 * argument)]
        code += [line for value in values for line in ((equal, 0, 1, value), no)] + [yes]
    code += [(equal, 0, 5, calls["mmap"]), (load, 0, 0, 16 + 8 * 3)]
    code += [(bits, 0, 2, MAP_ANONYMOUS), (bits, 0, 1, MAP_SHARED), no, yes]
    code += [(equal, 0, 4, calls["clone"]), (load, 0, 0, 16), (bits, 0, 1, EVERY_NAMESPACE), no, yes, no]
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
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}".encode())
    os._exit(125)
