"""One change of what serves at a time in a workspace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from orchestra.errors import ServiceError
from orchestra.files.atomic import make_folder


@contextlib.contextmanager
def alone(root: Path, wait_s: float = 0) -> Iterator[None]:
    """Hold the lock of releases, which ends with the process; raises `ServiceError` when another has it for so long."""
    file = root / ".state/deploy.lock"
    make_folder(file.parent)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise ServiceError("another release runs", where=str(file), fix="wait for it to end") from None
    try:
        yield
    finally:
        lock.release()
