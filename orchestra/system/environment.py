"""Process-wide switches that every entry point sets before it imports a slow library."""

import contextlib
import gc
import io
import os
import platform
import pwd
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from orchestra.errors import ConfigError

SWITCHES = {
    # No library may phone home; each has its own name for it.
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLIENT_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_DISABLED": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # The embedded profile needs no network; a profile that downloads sets HF_HUB_OFFLINE=0 in the environment.
    "HF_HUB_OFFLINE": "1",
    # Tokenizers warn at every fork otherwise, and their threads compete with torch's for the same cores.
    "TOKENIZERS_PARALLELISM": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    # Their bars redraw lines; stages say their own progress.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "ALEMBIC_LOG_LEVEL": "WARNING",
    "PYTHONUNBUFFERED": "1",
}

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""Names of this machine that no proxy is asked for."""
LOGINS = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""Variables that Python takes the login from, before it looks for the account."""
SPINS = "2000"
"""Turns of the loop in which a thread of torch waits for another one before it sleeps. By default far more, which
take the core that the other one needs where both share it or other work runs: steps took up to four times as long."""
GARBAGE = 10_000
"""Objects that come before garbage is looked for. At Python's 700 it took a fifth of the time of loading libraries."""


def quiet() -> None:
    """Set every switch that the user has not set already, for this process and its children; cheap, and safe to call
    again."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    # `python -m`, by which commands and stages continue, finds them in the working directory.
    os.environ.pop("PYTHONSAFEPATH", None)
    _ask_this_machine_directly()
    _name_the_nameless()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal or the log cannot show is spelled out, as on stderr, and ends nothing.
        sys.stdout.reconfigure(errors="backslashreplace")
    gc.set_threshold(GARBAGE)


def _ask_this_machine_directly() -> None:
    """Our servers are no business of a proxy's, which would also read their passwords.

    Libraries read either spelling. Where both are set, the small letters count, as for Python and curl.
    """
    told = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if told.strip() != "*":
        hosts = [host for host in (one.strip() for one in told.split(",")) if host]
        told = ",".join(dict.fromkeys([*hosts, *THIS_MACHINE]))
    os.environ.update(no_proxy=told, NO_PROXY=told)


def _name_the_nameless() -> None:
    """Let libraries find a login and a home where a container runs as a number that no account has: they end without.

    The home is Docker's for such a number; nothing is written there.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        if not any(map(os.environ.get, LOGINS)):
            os.environ[LOGINS[-1]] = nameless()
        os.environ.setdefault("HOME", "/")


def nameless() -> str:
    """What stands for the login of a user without one. It names nobody."""
    return f"uid-{os.getuid()}"


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """What is made within lives as long as the process: looking through it for garbage, over and over, finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def keep_loaded() -> None:
    """Have garbage be looked for among later objects alone: what is loaded now stays. What went before is freed."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def raise_file_limit() -> None:
    """Let this process open as many files as the system lets it: many start it with 1,024 at first."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(processes: int) -> dict[str, str]:
    """The variable that bounds the threads of each of so many processes: the user's, else an equal share of cores."""
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores() // processes))}


def unified_group(proc: Path = Path("/proc/self")) -> tuple[Path, Path] | None:
    """Where cgroup v2 is mounted, and this process's group in it; None without either."""
    try:
        mounted = re.search(r"^(?:\S+ ){4}(\S+) .* - cgroup2 ", (proc / "mountinfo").read_text(encoding="utf-8"), re.M)
        own = re.search(r"^0::(/.*)$", (proc / "cgroup").read_text(encoding="utf-8"), re.M)
    except OSError:
        return None
    if mounted is None or own is None:
        return None
    root = Path(mounted[1])
    here = root / own[1].strip("/")
    return (root, here) if here.is_relative_to(root) else None


def old_memory_group(proc: Path = Path("/proc/self")) -> Path | None:
    """This process's memory group of cgroup v1; None without one. A container sees a part of the tree as its whole."""
    try:
        mounts, groups = ((proc / name).read_text(encoding="utf-8") for name in ("mountinfo", "cgroup"))
    except OSError:
        return None
    mounted = re.search(r"^(?:\S+ ){3}(\S+) (\S+) .* - cgroup \S+ (?:\S+,)?memory(?:,\S+)?$", mounts, re.M)
    own = re.search(r"^\d+:(?:[^:\n]+,)?memory(?:,[^:\n]+)?:(/.*)$", groups, re.M)
    if mounted is None or own is None:
        return None
    inside = Path(own[1]).relative_to(mounted[1]) if Path(own[1]).is_relative_to(mounted[1]) else Path()
    return Path(mounted[2]) / inside


NO_LIMIT = 1 << 60
"""Version 1 says "none" by the largest number of pages."""


def memory_limit(proc: Path = Path("/proc/self")) -> int | None:
    """Bytes that the groups of this process (a container's, a batch job's) leave it; None where they set no limit."""
    return min((limit for limit, _ in _memory_groups(proc)), default=None)


def memory_free() -> int:
    """Bytes that this process may take now: of the machine, and of what its groups leave it."""
    import psutil

    free: int = psutil.virtual_memory().available
    left = memory_left()
    return free if left is None else min(free, left)


def memory_left(proc: Path = Path("/proc/self")) -> int | None:
    """Bytes that its groups would still give this process, which the kernel ends beyond them; None without a limit."""
    left = min((limit - used for limit, used in _memory_groups(proc)), default=None)
    return None if left is None else max(0, left)


def _memory_groups(proc: Path) -> Iterator[tuple[int, int]]:
    """The limit of each group that has one, and what it uses beside files that nobody reads."""
    if (found := unified_group(proc)) is not None:
        root, here = found
        for folder in (here, *here.parents):
            told = _read(folder / "memory.max").strip() if folder.is_relative_to(root) else ""
            if told.isdecimal() and int(told) < NO_LIMIT:
                yield int(told), _number(folder / "memory.current") - _counted(folder, "inactive_file")
    if (old := old_memory_group(proc)) is not None:
        # The lowest of the group and of those above it.
        limit = _counted(old, "hierarchical_memory_limit")
        if 0 < limit < NO_LIMIT:
            yield limit, _number(old / "memory.usage_in_bytes") - _counted(old, "total_inactive_file")


def _number(file: Path) -> int:
    """What the file says; 0 without it."""
    return int(_read(file).strip() or 0)


def _counted(group: Path, name: str) -> int:
    """A number of the group's statistics; 0 where it has none."""
    found = re.search(rf"^{name} (\d+)$", _read(group / "memory.stat"), re.M)
    return int(found[1]) if found else 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""


def machine() -> str:
    """Processor, widest vectors and cores: where they differ, a training's last digits may, and then its choices."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = about.get("flags", "").split()
    wide = [name for name in ("avx512f", "avx2", "sse4_2") if name in flags][:1]
    return ", ".join([about.get("model name") or platform.machine(), *wide, f"{cores()} cores"])


def required(name: str, *, tool: str) -> str:
    """The value of an environment variable that a tool needs: a key or an address; raises `ConfigError` when it is
    unset, or when no request could carry it."""
    value, where = os.environ.get(name, ""), f"tool {tool}"
    if not value:
        raise ConfigError(f"{name} is not set", where=where, fix=f"export {name}=…")
    if not re.fullmatch("[!-~]+", value):
        what = f"{name} holds a space, a line break or a character beyond ASCII, which no key or address has"
        raise ConfigError(what, where=where, fix=f"export {name}=… again")
    try:
        port = urlsplit(value).port if "://" in value else None
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(f"{name} holds an address without a right port", where=where, fix=f"export {name}=… again")
    return value


def foreign() -> dict[str, str]:
    """The environment of a program that is not ours: without what may use Prefect's API, which runs commands."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
