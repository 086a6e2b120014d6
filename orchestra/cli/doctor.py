"""Checks of this machine, each with the command that fixes it."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orchestra.cli.common import CheckResult
from orchestra.cli.readiness import examine_profile
from orchestra.config.profiles import profile_file
from orchestra.config.schema import load_params
from orchestra.errors import OrchestraError
from orchestra.serving.releases.control_channel import started_by_hand
from orchestra.system.artifacts import check_place
from orchestra.system.environment import cores, memory_free
from orchestra.system.processes import port_busy, services
from orchestra.system.servers import last_ports
from orchestra.system.storage import DATABASES, check_database, check_storage, check_used_database
from orchestra.system.workspace import (
    CERTIFICATES,
    check_certificates,
    check_path,
    check_proxies,
    git_refusal,
    locked_elsewhere,
)

MIN_DISK_GB = 5.0
MIN_MEMORY_GB = 3.0
PACKAGES = ("torch", "transformers", "trl", "prefect", "dvc", "mlflow", "great_expectations", "fastapi")


def examine(root: Path, profile: str | None = None) -> Iterator[CheckResult]:
    """Every check, those of the profile in force or of another one included, each as soon as it is known; none of them
    changes anything.

    Raises `ConfigError` for an unknown profile.
    """
    checks: list[Callable[[Path], Iterator[CheckResult]]] = [
        _python, _packages, _git, _dvc, _params, _vllm, _sandbox, _disk, _databases, _store, _memory, _ports,
    ]  # fmt: skip
    if found := list(_surroundings(root)):
        yield from found
        return  # Most other checks would fail by them.
    file = root / "params.yaml" if profile is None else profile_file(root, profile)
    for check in checks:
        yield from check(root)
    try:
        params = load_params(file)
    except OrchestraError:
        if profile is not None:
            raise
        return  # `_params` has said it.
    yield from examine_profile(root, params)


def _surroundings(root: Path) -> Iterator[CheckResult]:
    for what, check in (
        ("folder", partial(check_path, root)),
        (CERTIFICATES, check_certificates),
        ("proxy", check_proxies),
    ):
        try:
            check()
        except OrchestraError as error:
            yield CheckResult("error", what, error.what, error.fix)


def _python(_root: Path) -> Iterator[CheckResult]:
    good = (3, 11) <= sys.version_info[:2] <= (3, 12)
    found = f"{sys.version.split()[0]} at {sys.executable}"
    yield CheckResult("ok" if good else "error", "python", found, "" if good else "rm -rf .venv && make setup")


def _packages(root: Path) -> Iterator[CheckResult]:
    missing = [name for name in PACKAGES if _version(name) is None]
    if missing:
        yield CheckResult("error", "packages", f"missing: {', '.join(missing)}", "rm -f .venv/.stamp && make setup")
        return
    pinned = dict(
        line.split("==") for line in (root / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    other = [
        f"{name} {_version(name)}, not {pinned[name.replace('_', '-')]}"
        for name in PACKAGES
        if name.replace("_", "-") in pinned and (_version(name) or "").split("+")[0] != pinned[name.replace("_", "-")]
    ]
    fix = "rm -f .venv/.stamp && make setup"
    yield (
        CheckResult("warning", "packages", "; ".join(other), fix)
        if other
        else CheckResult("ok", "packages", "as pinned")
    )


def _git(root: Path) -> Iterator[CheckResult]:
    refused = git_refusal(root)
    yield CheckResult("error", "git", *refused) if refused else CheckResult("ok", "git", "in a repository")


def _dvc(root: Path) -> Iterator[CheckResult]:
    if (root / ".dvc" / "config").is_file():
        yield CheckResult("ok", "dvc", "initialised")
    else:
        yield CheckResult("error", "dvc", "no .dvc/config here", "git checkout .dvc")


def _params(root: Path) -> Iterator[CheckResult]:
    if os.environ.get("ORCHESTRA_PARAMS"):
        yield CheckResult("warning", "ORCHESTRA_PARAMS", "is set; the pipeline reads params.yaml only", "unset it")
    try:
        params = load_params(root / "params.yaml")
    except OrchestraError as error:
        yield CheckResult("error", "params.yaml", error.what, error.fix)
        return
    yield CheckResult("ok", "params.yaml", f"valid, profile {params.profile}")
    needed = [params.world.catalogue, params.world.prices, *(f"data/domains/{name}" for name in params.world.domains)]
    for path in [*needed, params.model.recipe]:
        if not (root / path).exists():
            yield CheckResult("error", path, "not there", f"git checkout {path}, or name another in params.yaml")


def _vllm(root: Path) -> Iterator[CheckResult]:
    if (root / ".venv-vllm" / ".orchestra-stamp").is_file():
        yield CheckResult("ok", "vllm", "its environment is ready")
    else:
        yield CheckResult("warning", "vllm", "no environment: serving runs in process", "make setup-vllm")


def _sandbox(_root: Path) -> Iterator[CheckResult]:
    import asyncio

    from orchestra.tools.sandbox.command import Isolation
    from orchestra.tools.sandbox.tool import Sandbox

    fix = "sudo apt-get install bubblewrap"
    try:
        used = asyncio.run(Sandbox().isolation())
    except OrchestraError as error:
        yield CheckResult("error", "code sandbox", f"refuses every program: {error.what}", error.fix)
        return
    if used is Isolation.BUBBLEWRAP:
        yield CheckResult("ok", "code sandbox", "isolated by bubblewrap")
    else:
        lacks = "does not work here" if shutil.which("bwrap") else "is not installed"
        yield CheckResult("warning", "code sandbox", f"isolated by the kernel's namespaces; bubblewrap {lacks}", fix)


def _disk(root: Path) -> Iterator[CheckResult]:
    try:
        check_storage(root)
    except OrchestraError as error:
        yield CheckResult("error", "disk", error.what, error.fix)
        return
    free_gb = shutil.disk_usage(root).free / 1e9
    good = free_gb >= MIN_DISK_GB
    fix = "" if good else "orchestra gc, or free some space"
    yield CheckResult("ok" if good else "warning", "disk", f"{free_gb:.0f} GB free", fix)


def _databases(root: Path) -> Iterator[CheckResult]:
    for name in DATABASES:
        try:
            used = locked_elsewhere(root) or bool(started_by_hand(root) or services(root))
            complete = check_used_database(root, name) if used else check_database(root, name)
        except OrchestraError as error:
            yield CheckResult("error", name, error.what, error.fix)
        else:
            found = "whole" if complete else "its size and schema are right; no room for a copy to read its pages in"
            yield CheckResult("ok", name, found if (root / name).is_file() else "not there yet")


def _store(root: Path) -> Iterator[CheckResult]:
    try:
        storage = load_params(root / "params.yaml").storage
    except OrchestraError:
        return
    if not storage.shared:
        return
    try:
        check_place(storage.artifacts, storage)
    except OrchestraError as error:
        yield CheckResult("error", storage.url, error.what, error.fix)
    else:
        yield CheckResult("ok", storage.url, "answers")


def _memory(_root: Path) -> Iterator[CheckResult]:
    free_gb = memory_free() / 1e9
    good = free_gb >= MIN_MEMORY_GB
    fix = "" if good else "end other programs: training and vLLM need about 3 GB"
    yield CheckResult("ok" if good else "warning", "memory", f"{free_gb:.1f} GB free, {cores()} cores", fix)


def _ports(root: Path) -> Iterator[CheckResult]:
    by_hand = {one.port: f"{one.name}, started by hand (process {one.pid})" for one in started_by_hand(root)}
    ours = by_hand | {service.port: service.name for service in services(root)}
    try:
        gateway = load_params(root / "params.yaml").deploy.gateway_port
    except OrchestraError:
        return
    wanted = {"gateway": gateway, **last_ports(root)}
    for name, port in wanted.items():
        if port in ours:
            yield CheckResult("ok", f"port {port}", f"ours: {ours[port]}")
        elif port and port_busy(port):
            fix = "--set deploy.gateway_port=…" if name == "gateway" else f"orchestra up --{name}-port …"
            yield CheckResult("warning", f"port {port}", f"taken by another program; {name} wants it", fix)
        else:
            yield CheckResult("ok", f"port {port}", f"free for {name}")
    for port in by_hand.keys() - wanted.values():
        yield CheckResult("ok", f"port {port}", f"ours: {by_hand[port]}")


def as_json(findings: Iterable[CheckResult]) -> str:
    """For scripts."""
    return json.dumps([finding.__dict__ for finding in findings], indent=2)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
