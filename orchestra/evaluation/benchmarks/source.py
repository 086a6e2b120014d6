"""The published files of a benchmark: the user's own copies, or the hub's at the pinned revision."""

import os
from collections.abc import Sequence
from pathlib import Path

from orchestra.errors import ConfigError, DataError, ServiceError
from orchestra.evaluation.benchmarks.base import Protocol
from orchestra.files.checkpoint import hash_dir, hash_file
from orchestra.text import one_line


def files_of(protocol: Protocol, root: Path, named: Sequence[Path]) -> tuple[Path, ...]:
    """The files to read: those that are named, else the workspace's own, else the hub's. Raises `OrchestraError`."""
    own = protocol.settings.get("file")
    found = tuple(named) or ((root / str(own),) if own else ())
    found = found or _downloaded(protocol)
    for file in found:
        if not file.exists():
            fix = None if named else protocol.settings.get("setup")
            raise DataError("no such file", where=str(file), fix=str(fix or "name the published files: --data FILE"))
    return found


def hashes(files: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each file or folder by its name, without the folders of this machine."""
    return {file.name: hash_file(file) if file.is_file() else hash_dir(file) for file in files}


def _downloaded(protocol: Protocol) -> tuple[Path, ...]:
    """The files from the hub, kept in its cache; the token is $HF_TOKEN, or that of its own login."""
    source = protocol.source
    fix = "bring the published files: --data FILE"
    if source is None:
        raise ConfigError("the benchmark has no files on the hub", where=protocol.benchmark, fix=fix)
    if os.environ.get("HF_HUB_OFFLINE", "1") != "0":
        what = f"{source.name} is not here, and downloads are off"
        raise ConfigError(what, where=protocol.benchmark, fix=f"{fix}, or set HF_HUB_OFFLINE=0")
    from huggingface_hub import hf_hub_download

    try:
        return tuple(
            Path(hf_hub_download(source.name, name, repo_type="dataset", revision=source.revision))
            for name in source.files
        )
    except Exception as error:
        gate = ", accept its terms and set HF_TOKEN" if source.gated else ""
        what = f"cannot be downloaded: {type(error).__name__}: {one_line(str(error))[:200]}"
        raise ServiceError(what, where=f"{source.name} at {source.revision}", fix=fix + gate) from None
