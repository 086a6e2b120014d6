"""`.state` holds keys, conversations and addresses of webhooks: it is closed to other users of the machine."""

import contextlib
import os
import stat
from pathlib import Path

STATE = ".state"


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; a `.state` among them is closed, also one that was there, if it is ours.

    One that a group shares keeps its group: it is setgid, as Kubernetes' fsGroup makes it.
    """
    for state in (folder, *folder.parents):
        if state.name == STATE:
            state.parent.mkdir(parents=True, exist_ok=True)
            state.mkdir(mode=0o770, exist_ok=True)
            found = state.stat()
            mode = stat.S_IMODE(found.st_mode)
            closed = mode & ~(0o007 if mode & stat.S_ISGID else 0o077)
            if closed != mode and found.st_uid == os.geteuid():
                with contextlib.suppress(OSError):  # A disk that is read-only, or that has no modes.
                    state.chmod(closed)
            break
    folder.mkdir(parents=True, exist_ok=True)
