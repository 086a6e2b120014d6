"""A checkpoint directory: its hash, its manifest, and a content-addressed store that keeps it."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue, ValidationError

from orchestra.errors import DataError
from orchestra.files import atomic
from orchestra.types import Record

MANIFEST = "manifest.json"


class CheckpointManifest(Record):
    """What a checkpoint was made from, and the SHA-256 of each of its files."""

    base: str | None
    """Checkpoint it started from; None for random weights."""
    data_hash: str
    """Hash of the data it was trained on."""
    params: dict[str, JsonValue]
    git_commit: str
    price_date: str
    """ISO date of the price book."""
    extra: dict[str, JsonValue]
    """Anything else worth keeping beside the weights, such as an evaluation summary."""
    files: dict[str, str]
    """SHA-256 by relative path, the manifest itself left out."""


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal; raises `DataError` when it is missing."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path), fix="make it again") from None


def hash_dir(path: Path) -> str:
    """SHA-256 over the sorted relative names and contents of every file below `path`, hexadecimal.

    Nothing is ignored; links to files count as their content, so that a DVC link type does not change the hash. Raises
    `DataError` when there is no such directory, it is empty, or it holds something that is neither file nor directory.
    """
    digest = hashlib.sha256()
    for name, file_hash in _hashes(path).items():
        digest.update(f"{name}\0{file_hash}\n".encode())
    return digest.hexdigest()


def write_manifest(
    folder: Path,
    *,
    base: str | None,
    data_hash: str,
    params: Mapping[str, JsonValue],
    git_commit: str,
    price_date: str,
    extra: Mapping[str, JsonValue] | None = None,
) -> CheckpointManifest:
    """Write `folder`/manifest.json over the files that are there now; write it last."""
    files = {name: file_hash for name, file_hash in _hashes(folder).items() if name != MANIFEST}
    manifest = CheckpointManifest(
        base=base,
        data_hash=data_hash,
        params=dict(params),
        git_commit=git_commit,
        price_date=price_date,
        extra=dict(extra or {}),
        files=files,
    )
    atomic.write_text(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest as written; `DataError` when it is missing or unreadable."""
    file = folder / MANIFEST
    try:
        return CheckpointManifest.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"no manifest: {error.strerror}", where=str(file), fix="train the checkpoint again") from None
    except (ValidationError, UnicodeDecodeError):
        raise DataError("the manifest is corrupt", where=str(file), fix="train the checkpoint again") from None


def verify_manifest(folder: Path) -> CheckpointManifest:
    """Check every file against the manifest; `DataError` names the first that is missing, changed or unknown."""
    manifest = read_manifest(folder)
    found = {name: file_hash for name, file_hash in _hashes(folder).items() if name != MANIFEST}
    fix = "restore it (`dvc checkout`) or train it again"
    for name in sorted(manifest.files.keys() | found.keys()):
        if name not in found:
            raise DataError("missing, though the manifest names it", where=str(folder / name), fix=fix)
        if name not in manifest.files:
            raise DataError("not in the manifest", where=str(folder / name), fix=fix)
        if found[name] != manifest.files[name]:
            raise DataError("does not match the manifest's hash", where=str(folder / name), fix=fix)
    return manifest


def keep(folder: Path, store: Path) -> Path:
    """Copy a checkpoint to `store`/<hash>, so that nothing that happens to `folder` can lose it; returns the copy.

    The copy appears whole or not at all. One that is already there is used again when its hash still holds, and
    replaced when it does not.
    """
    wanted = hash_dir(folder)
    kept = store / wanted
    if kept.is_dir() and _hash_or_none(kept) == wanted:
        return kept
    # Another process may keep the same checkpoint meanwhile; equal names mean equal contents.
    with atomic.whole_folder(kept) as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True, copy_function=_copy)
        if hash_dir(copy) != wanted:
            raise DataError("changed while it was copied", where=str(folder), fix="try again when nothing writes to it")
    return kept


def verify_kept(kept: Path) -> Path:
    """Check that a kept checkpoint still is what its name says; `DataError` when it is lost or damaged."""
    if not kept.is_dir():
        raise DataError("the kept checkpoint is gone", where=str(kept), fix="promote it again")
    if _hash_or_none(kept) != kept.name:
        raise DataError("the kept checkpoint is damaged", where=str(kept), fix="delete it and promote it again")
    return kept


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 by relative POSIX path, sorted by path."""
    if not folder.is_dir():
        raise DataError("no such directory", where=str(folder), fix="run the stage that makes it")
    files: dict[str, Path] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path
        elif path.is_symlink() or not path.is_dir():
            raise DataError("neither a file nor a directory", where=str(path), fix="remove it")
    if not files:
        raise DataError("the directory is empty", where=str(folder), fix="run the stage that makes it")
    return {name: hash_file(files[name]) for name in sorted(files)}


def _hash_or_none(folder: Path) -> str | None:
    try:
        return hash_dir(folder)
    except DataError:
        return None


def _copy(source: str, target: str) -> str:
    # DVC's outputs may be read-only links; the copy is a file of its own that its owner may delete.
    shutil.copyfile(source, target)
    return target
