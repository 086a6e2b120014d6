"""Where a release talks to a running gateway: a port of its own on this machine, and a token in a private file.

The file also tells where callers reach the gateway, so that one is found which no release started.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from orchestra.files import atomic
from orchestra.system.processes import LOCALHOST, Service, alive, running, services, started_at, url_host
from orchestra.types import Record

FOLDER = ".state/control"
GATEWAY = "gateway"
"""The gateway's name among the services."""


class ControlChannel(Record):
    """Of one gateway, named by its process."""

    url: str
    token: str
    address: str = ""
    """Where callers reach the gateway."""
    started: str = ""
    """Kernel start tick of its process: another process may get its number."""
    model_servers: tuple[str, ...] = Field(default=(), exclude_if=lambda urls: not urls)
    """Those that it asks and others keep up."""


def address(host: str, port: int, *, tls: bool) -> str:
    """Where this machine reaches a gateway that listens on an IP address; for every address, on the machine's own."""
    listened = ipaddress.ip_address(host)
    if listened.is_unspecified:
        host = LOCALHOST if listened.version == 4 else "::1"
    return f"http{'s' if tls else ''}://{url_host(host)}:{port}"


def open_channel(root: Path, url: str, address: str, model_servers: Sequence[str] = ()) -> ControlChannel:
    """Make this process's channel known to its user, and forget those of gateways that are gone."""
    for file in (root / FOLDER).glob("*.json"):
        if not file.stem.isdigit() or not alive(int(file.stem)):
            file.unlink(missing_ok=True)
    pid = os.getpid()
    channel = ControlChannel(
        url=url,
        token=secrets.token_urlsafe(32),
        address=address,
        started=started_at(pid) or "",
        model_servers=tuple(model_servers),
    )
    atomic.write_private(_file(root, pid), channel.model_dump_json())
    return channel


def close_channel(root: Path, pid: int | None = None) -> None:
    """Of this process, or of another one that is told nothing any more."""
    with contextlib.suppress(OSError):
        _file(root, pid or os.getpid()).unlink()


def live_channels(root: Path) -> dict[int, ControlChannel]:
    """The channels of this workspace's gateways on this machine, by process. One may have ended by now."""
    found = {}
    for file in sorted((root / FOLDER).glob("*.json")):
        if file.stem.isdigit() and alive(int(file.stem)):
            with contextlib.suppress(OSError, ValidationError):
                channel, pid = ControlChannel.model_validate_json(file.read_bytes()), int(file.stem)
                if channel.started in ("", started_at(pid)):
                    found[pid] = channel
    return found


def started_by_hand(root: Path) -> list[Service]:
    """This workspace's gateways that no release started: systemd's, or a second one. Nobody knows their logs."""
    known = {service.pid for service in services(root)}
    return [
        Service(GATEWAY, pid, channel.started, urlsplit(channel.address).port or 0, channel.address, log="")
        for pid, channel in live_channels(root).items()
        if channel.address and pid not in known
    ]


def gateways(root: Path) -> list[Service]:
    """All of this workspace that run, that of a release first."""
    return [*filter(None, (running(root, GATEWAY),)), *started_by_hand(root)]


def _file(root: Path, pid: int) -> Path:
    return root / FOLDER / f"{pid}.json"
