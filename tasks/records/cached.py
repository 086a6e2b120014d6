"""What DVC's cache keeps for the workspace, its branches and tags, and its sweeps."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestra.errors import DataError, OrchestraError
from orchestra.files.yaml import load_yaml
from orchestra.system.environment import quiet
from tasks.platform import dvc

CACHE, SWEEPS = ".dvc/cache/files/md5", "work/sweeps"
FOLDER = ".dir"
"""Ends the hash of a folder: its object lists the files in it."""


def check_listings(root: Path) -> None:
    """Raise `DataError` where the listing of a folder that the workspace or a sweep uses is lost or damaged.

    Its files would count as used by nothing. Of branches and tags that is so: nothing can restore such a folder.
    """
    for lock in (root / dvc.LOCK, *_of_copies(root)):
        names: list[str] = []
        # A file with marks of a merge is told by DVC, with what helps.
        with contextlib.suppress(OrchestraError):
            names = _stages(lock) if lock.is_file() else []
        for stage in names:
            for out, name in dvc.hashes(lock.parent, stage).outputs.items():
                if name.endswith(FOLDER) and not _whole(root, name):
                    where = str((lock.parent / out).relative_to(root))
                    fix = f"cd {lock.parent} && dvc commit --force {stage}"
                    raise DataError("DVC's listing of these files is lost or damaged", where=where, fix=fix)


def of_dvc(root: Path) -> Iterator[str]:
    """What DVC itself knows as used: in the workspace, in branches and in tags."""
    quiet()
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc_objects.errors import ObjectFormatError

    # dvc.lock is not committed, so DVC would warn of every output of every branch and tag.
    logger = logging.getLogger("dvc.output")
    logger.addFilter(_of_a_version)
    try:
        with Repo(str(root)) as repo:
            # A directory of an old version whose listing is neither here nor at the remote keeps nothing. Without
            # `force`, DVC asks about it on a terminal and refuses elsewhere.
            used = repo.used_objs(all_branches=True, all_tags=True, force=True)
    except ObjectFormatError as error:
        raise DataError(f"{error}, so DVC deleted it", where=CACHE, fix="the same command again") from None
    except DvcException as error:
        raise dvc.explained(error, root) from None
    finally:
        logger.removeFilter(_of_a_version)
    for hashes in used.values():
        yield from (str(one.value) for one in hashes if one.value)


def _of_a_version(record: logging.LogRecord) -> bool:
    """False of DVC's warning about an output that no dvc.lock tells of: nothing of it is in the cache."""
    return "missing version info" not in record.getMessage()


def of_sweeps(root: Path) -> Iterator[str]:
    """Copies of the workspace share its cache."""
    for lock in _of_copies(root):
        for name in _stages(lock):
            yield from dvc.hashes(lock.parent, name).outputs.values()


def _of_copies(root: Path) -> Iterator[Path]:
    """dvc.lock of every copy of the workspace that a sweep made."""
    return (root / SWEEPS).glob(f"*/{dvc.LOCK}")


def _stages(lock: Path) -> list[str]:
    return list((load_yaml(lock, if_missing="run the pipeline", of_dvc=True) or {}).get("stages", {}))


def _listing(root: Path, name: str) -> bytes:
    return (root / CACHE / name[:2] / name[2:]).read_bytes()


def _whole(root: Path, name: str) -> bool:
    """Whether a folder's object is there, with the contents that it is named after."""
    try:
        found = hashlib.md5(_listing(root, name), usedforsecurity=False).hexdigest()
    except OSError:
        return False
    return found == name.removesuffix(FOLDER)


def with_files(root: Path, names: Iterable[str]) -> set[str]:
    """Hashes, with those of the files of each folder among them."""
    found = set()
    for name in set(names):
        found.add(name.removesuffix(FOLDER))
        if name.endswith(FOLDER):
            with contextlib.suppress(OSError, ValueError):
                listed = json.loads(_listing(root, name))
                found |= {str(one["md5"]) for one in listed}
    return found
