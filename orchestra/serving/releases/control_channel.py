"""Where a release talks to a running gateway: a port of its own on this machine, and a token in a private file."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from orchestra.files import atomic
from orchestra.system.processes import alive
from orchestra.types import Record

FOLDER = ".state/control"


class ControlChannel(Record):
    """Of one gateway, named by its process."""

    url: str
    token: str


def open_channel(root: Path, url: str) -> ControlChannel:
    """Make this process's channel known to its user, and forget those of gateways that are gone."""
    for file in (root / FOLDER).glob("*.json"):
        if not file.stem.isdigit() or not alive(int(file.stem)):
            file.unlink(missing_ok=True)
    channel = ControlChannel(url=url, token=secrets.token_urlsafe(32))
    atomic.write_private(_file(root, os.getpid()), channel.model_dump_json())
    return channel


def close_channel(root: Path) -> None:
    with contextlib.suppress(OSError):
        _file(root, os.getpid()).unlink()


def live_channels(root: Path) -> dict[int, ControlChannel]:
    """The channels of this workspace's gateways on this machine, by process. One may have ended by now."""
    found = {}
    for file in sorted((root / FOLDER).glob("*.json")):
        if file.stem.isdigit() and alive(int(file.stem)):
            with contextlib.suppress(OSError, ValidationError):
                found[int(file.stem)] = ControlChannel.model_validate_json(file.read_bytes())
    return found


def _file(root: Path, pid: int) -> Path:
    return root / FOLDER / f"{pid}.json"
