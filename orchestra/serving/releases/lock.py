"""One change of what serves at a time in a workspace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from orchestra.errors import ServiceError
from orchestra.files.atomic import make_folder

RETIRING_S = 70.0
"""That a release may hold it to end a server that hangs: it asks the gateways, then kills the server after 35 s."""


@contextlib.contextmanager
def alone(root: Path, wait_s: float = 0) -> Iterator[None]:
    """Hold the lock of releases, which ends with the process; raises `ServiceError` when another has it for so long."""
    file = root / ".state/deploy.lock"
    make_folder(file.parent)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        what = "another release runs, or a gateway starts its vLLM again"
        raise ServiceError(what, where=str(file), fix="wait for it to end") from None
    try:
        yield
    finally:
        lock.release()
