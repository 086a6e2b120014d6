"""Servers that end with their process: what a killed one leaves of them is found by a record, and ended."""

import os
import socket
from dataclasses import replace
from pathlib import Path

from orchestra.system.processes import Service, all_remembered, lives, remember, started_at, stop_services

GRACE_S = 2.0
"""How long an orphan may take to end by itself."""


def remember_own(root: Path, service: Service) -> None:
    """Write down a server that ends with this process."""
    owner = os.getpid()
    remember(_records(root), replace(service, name=f"{owner}-{started_at(owner)}-{service.port}"))


def forget_own(root: Path, port: int) -> None:
    """End what is left of one of this process's servers, and forget it."""
    owner = os.getpid()
    stop_services(_records(root), f"{owner}-{started_at(owner)}-{port}", grace_s=GRACE_S)


def end_orphans(root: Path) -> None:
    """End what is left of the servers whose process was killed: the engines of vLLM, which hold a GPU's memory."""
    for service in all_remembered(_records(root)):
        owner, started, _ = service.name.split("-")
        if not lives(int(owner), started):
            stop_services(_records(root), service.name, grace_s=GRACE_S)


def _records(root: Path) -> Path:
    # Machines may share a workspace, and each has pids of its own.
    return root / ".state/servers" / socket.gethostname()
