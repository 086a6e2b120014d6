"""Files and folders written whole: a reader finds the old one or the new one, whatever ends the writer.

Each write makes a hidden partial one with a name of its own, flushes it to the disk, renames it and flushes the folder.
A partial one is locked while its writer lives; the next writer removes those that a kill left.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from orchestra.errors import ConfigError

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2."""
CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
STATE = ".state"
"""A workspace's own folder."""


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; a `.state` among them is closed to other users, also one that was there.

    It holds keys, conversations and addresses of webhooks. One that a group shares keeps its group: it is setgid, as
    Kubernetes' fsGroup makes it. One of another user stays as it is.
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


def try_writing(folder: Path) -> None:
    """Raises `OSError` where a disk takes no files. The file has no name, so that others may try at the same moment."""
    make_folder(folder)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\0" * 4096)
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Replace a file by UTF-8 text, and make the folders above it."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file, and make the folders above it."""
    with whole_file(path) as partial:
        partial.write_bytes(content)


def edit_bytes(path: Path, content: bytes) -> None:
    """Replace what a person's file holds; where it is a link, it stays, and what it leads to is replaced.

    Raises `ConfigError` where that cannot be: a link may lead to what is another user's.
    """
    file = Path(os.path.realpath(path))
    try:
        write_bytes(file, content)
    except OSError as error:
        fix = "let this user write it and its folder" + (", or put a file in place of the link" if file != path else "")
        raise ConfigError(f"cannot be written: {error.strerror}", where=str(file), fix=fix) from None


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its user may read: a key, a token."""
    with whole_file(path, private=True) as partial:
        partial.write_text(text, encoding="utf-8")


def private_once(path: Path, text: str) -> str:
    """The text of a file that only its user may read; it is made of `text` where there is none.

    Of several who make it at the same moment, the first one's holds for all.
    """
    if not path.is_file():
        with _beside(path, folder=False) as partial:
            partial.chmod(0o600)
            partial.write_text(text, encoding="utf-8")
            _sync_one(partial)
            try:
                os.link(partial, path)
                _sync_one(path.parent)
            except FileExistsError:
                pass
            except OSError:
                replace(partial, path)  # A file system without links.
    return path.read_text(encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    """Add UTF-8 text to a file, which may be new, and wait until the disk has it.

    A kill may leave part of the text: readers take whole lines only.
    """
    new = not path.exists()
    make_folder(path.parent)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync_one(path.parent)


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file to write to; it takes the place of `path` only if the block ends well."""
    with whole_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        yield file


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool = True, private: bool = False) -> Iterator[Path]:
    """The path of an empty file to fill; it takes the place of `path`, with its mode, only if the block ends well.

    One that is not `durable` may be lost when the machine stops, and does not wait for the disk. A `private` one only
    its user may read, from the first byte on and whatever mode the one before had.
    """
    with _beside(path, folder=False) as partial:
        if private:
            partial.chmod(0o600)
        yield partial
        # Where a link leads to may be another user's.
        if not private and not path.is_symlink() and path.is_file():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        if durable:
            replace(partial, path)
        else:
            os.replace(partial, path)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill; it takes the place of `path` only if the block ends well."""
    with _beside(path, folder=True) as partial:
        yield partial
        replace(partial, path)


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path` for work on it, which only its user may read; it goes at the end of the block, or
    with the next one after a kill."""
    with _beside(path, folder=True) as partial:
        partial.chmod(0o700)
        yield partial


def whole_entries(folder: Path) -> list[Path]:
    """What lies in a folder, sorted, but the hidden partial ones; empty where there is no folder."""
    return sorted(one for one in folder.iterdir() if not one.name.startswith(".")) if folder.is_dir() else []


def replace(source: Path, target: Path) -> None:
    """Rename a file or folder, with what it holds on the disk before and its new name on the disk after.

    A folder takes the place of another in one step, as a file does; the other is removed. Where the file system has no
    such step, a kill between two renames leaves no `target`, and the next write puts the old one back first.
    """
    _sync(source)
    if not (source.is_dir() and target.is_dir()):
        os.replace(source, target)
    elif _exchange(source, target):
        _sync_one(target.parent)
        _remove(source)
    else:
        old = _hidden(target, "old")
        with _locked(target):
            os.rename(target, old)
            os.rename(source, target)
        _remove(old)
    _sync_one(target.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file, or copy it where a link or a mount leads to another disk; the copy is whole before the first goes.

    The folders above the target are made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with whole_file(target, private=True) as partial:
            shutil.copy2(source, partial)  # With its mode, once all of it is there.
        source.unlink()


@contextlib.contextmanager
def _beside(target: Path, *, folder: bool) -> Iterator[Path]:
    """A new hidden file or folder beside the target, locked; it goes at the end, unless it was renamed."""
    make_folder(target.parent)
    _clear(target)
    with contextlib.ExitStack() as stack:
        path = None
        # Another writer may take it for a leftover in the moment before it is locked.
        while path is None or not path.exists():
            path = _hidden(target, "partial")
            if folder:
                path.mkdir()
            else:
                path.touch()
            with contextlib.suppress(FileNotFoundError):
                stack.enter_context(_locked(path))
        try:
            yield path
        finally:
            _remove(path)


def _hidden(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(5)}.{kind}")


def _clear(target: Path) -> None:
    """Remove what killed writers left beside the target; an old folder that nothing replaced goes back to its place."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{10}}\.(partial|old)")
    with os.scandir(target.parent) as entries:
        found = {Path(entry.path): match[1] for entry in entries if (match := pattern.fullmatch(entry.name))}
    for path, kind in found.items():
        if path.is_symlink():
            path.unlink(missing_ok=True)
            continue
        with contextlib.suppress(OSError), _locked(path, wait=False) as left:
            if left and kind == "old" and not target.exists():
                os.rename(path, target)
            elif left:
                _remove(path)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the kernel's lock on a file or folder, which ends with its holder; gives whether it was to be had.

    Some network file systems lock no folder: there a leftover is never sure to be one, and stays.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            had = True
        except OSError:
            had = False
        yield had
    finally:
        # Closing alone would leave the lock with a child that another thread forked meanwhile.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or a folder and all that is below it; links are not followed."""
    if path.is_file():
        _sync_one(path)
    for folder, _, names in os.walk(path, topdown=False):
        for file in (Path(folder, name) for name in sorted(names)):
            if file.is_file() and not file.is_symlink():
                _sync_one(file)
        _sync_one(Path(folder))


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the kernel or the file system cannot."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    names = (os.fsencode(one), os.fsencode(other))
    if library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))
