"""Names in a shared store, before they become paths here: the libraries write whatever file a listing names."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.errors import DataError
from orchestra.files import atomic

OF_A_FILE = re.compile(r"[0-9a-f]{32}")
"""DVC puts a hash into paths as it is."""
OF_AN_OUTPUT = re.compile(r"[0-9a-f]{32}(\.dir)?")
"""A folder's hash is that of its listing."""
TRUSTED = "orchestra push, on a machine that you trust"


@contextlib.contextmanager
def lock_file(file: Path, text: str) -> Iterator[None]:
    """Have DVC's lock file hold a text; the one before comes back where something of it is refused."""
    before = file.read_bytes() if file.is_file() else None
    atomic.write_text(file, text)
    try:
        yield
    except DataError:
        if before is None:
            file.unlink()
        else:
            atomic.write_bytes(file, before)
        raise


def check_inside(name: str, where: str) -> None:
    """Raises `DataError` for a relative path that leaves its folder."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise DataError(f"it names {name[:200]!r}, which leaves its folder", where=where, fix=TRUSTED)


def fetch_folder(files: Any, place: str, folder: Path) -> None:
    """Download all that lies below an address of the store; raises `DataError` before a name leaves the folder."""
    there = files.find(place)
    names = [one.removeprefix(f"{files._strip_protocol(place)}/") for one in there]
    for name in names:
        check_inside(name, place)
    folder.mkdir()
    files.get(there, [str(folder / name) for name in names])


def fetch_listings(repo: Any, remote: str, where: str) -> None:
    """Bring the listing of every output that is a folder into DVC's cache, and check it: no file is written yet.

    What follows reads them there. Raises `DataError` for one that is missing, or names what no output has.
    """
    for out in repo.index.outs:
        if not out.use_cache or not out.hash_info or out.stage.is_repo_import:
            continue
        if not OF_AN_OUTPUT.fullmatch(out.hash_info.value):
            raise DataError(f"{out.hash_info.value[:200]!r} is no hash", where=where, fix=TRUSTED)
        if not out.is_dir_checksum:
            continue
        listing = out.get_dir_cache(remote=remote)
        if listing is None:
            what = "files of outputs are not in the store"
            raise DataError(what, where=where, fix="orchestra push, on a machine that has them")
        for parts, _, file in listing:
            check_inside("/".join(parts), where)
            if not file or not OF_A_FILE.fullmatch(file.value):
                raise DataError(f"a file of {out} has no hash", where=where, fix=TRUSTED)
