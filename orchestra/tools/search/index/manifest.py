"""The manifest of an index, its sources and settings: a damaged or outdated index is refused."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from orchestra.errors import DataError
from orchestra.tools.search.index import lexical
from orchestra.types import Record

MANIFEST = "manifest.json"
FORMAT = 1
REBUILD = "build it again: orchestra index build"


class Hashed(Record):
    """A file as it was when the index was built."""

    path: str
    """Relative to the index's folder."""
    size: int
    """Bytes."""
    sha256: str

    @classmethod
    def of(cls, path: Path, folder: Path) -> Hashed:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path=os.path.relpath(path, folder), size=path.stat().st_size, sha256=digest)


class Settings(Record):
    """What was asked for."""

    id: str
    title: str
    text: str
    """Names of the source's fields."""
    tokens: str = lexical.TOKENS
    k1: float = lexical.K1
    b: float = lexical.B
    model: str | None = None
    """Of the vectors: a name, or a folder (relative to the index's, so it begins with a dot); None: there are none."""

    def located(self, folder: Path) -> str:
        """The model as it is loaded for the index in `folder`."""
        assert self.model is not None
        return str(beside(folder, self.model)) if self.model.startswith(".") else self.model


class IndexManifest(Record):
    """manifest.json."""

    format: int
    version: str
    """Hash of all that follows: two indexes of one version give the same results."""
    passages: int
    dimension: int
    """Of a vector; 0 without."""
    sources: tuple[Hashed, ...]
    settings: Settings
    libraries: dict[str, str]
    files: tuple[Hashed, ...]

    @classmethod
    def of(
        cls, folder: Path, names: Iterable[str], *, passages: int, dimension: int, sources: Sequence[Path], at: Path,
        settings: Settings,
    ) -> IndexManifest:  # fmt: skip
        """The manifest of files in `folder`, which will stand at `at`."""
        made = cls(
            format=FORMAT,
            version="",
            passages=passages,
            dimension=dimension,
            sources=tuple(Hashed.of(source, at) for source in sources),
            settings=settings,
            libraries=libraries(dense=settings.model is not None),
            files=tuple(Hashed.of(folder / name, folder) for name in names),
        )
        return made.model_copy(update={"version": made.digest})

    @classmethod
    def read(cls, folder: Path) -> IndexManifest:
        """Raises `DataError` where there is no index, or none that this version can read."""
        try:
            text = (folder / MANIFEST).read_text(encoding="utf-8")
            raw = json.loads(text)
            if isinstance(raw, dict) and raw.get("format") != FORMAT:
                what = f"stale: an index of format {raw.get('format')}, and {FORMAT} is read here"
                raise DataError(what, where=str(folder), fix=REBUILD)
            made = cls.model_validate_json(text)
        except (FileNotFoundError, NotADirectoryError):
            fix = f"orchestra index build SOURCE --out {folder}"
            raise DataError("no index here", where=str(folder), fix=fix) from None
        except (UnicodeDecodeError, ValueError, ValidationError):
            raise DataError(f"damaged: {MANIFEST} cannot be read", where=str(folder), fix=REBUILD) from None
        if made.version != made.digest:
            raise DataError(f"damaged: {MANIFEST} was changed", where=str(folder), fix=REBUILD)
        return made

    @property
    def digest(self) -> str:
        rest = json.dumps(self.model_dump(mode="json", exclude={"version"}), sort_keys=True)
        return hashlib.sha256(rest.encode()).hexdigest()[:16]

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def check(self, folder: Path, *, contents: bool = True) -> None:
        """Raises `DataError` where a file is missing or changed, a source has changed, or words are cut differently.

        `contents=False` spares reading the files: then only their sizes are compared. Sources that are not there are
        not missed: an index stands alone.
        """
        if (self.settings.tokens, self.settings.k1, self.settings.b) != (lexical.TOKENS, lexical.K1, lexical.B):
            raise DataError("stale: words are cut or weighed in another way now", where=str(folder), fix=REBUILD)
        built, here = self.libraries["bm25s"], importlib.metadata.version("bm25s")
        if built.split(".")[:2] != here.split(".")[:2]:
            raise DataError(f"stale: built with bm25s {built}, and {here} is here", where=str(folder), fix=REBUILD)
        for file in self.files:
            if not (folder / file.path).is_file():
                raise DataError(f"damaged: {file.path} is missing", where=str(folder), fix=REBUILD)
            if _changed(file, folder, contents):
                raise DataError(f"damaged: {file.path} is not what was built", where=str(folder), fix=REBUILD)
        for source in self.sources:
            if beside(folder, source.path).is_file() and _changed(source, folder, contents):
                raise DataError(f"stale: {source.path} has changed since", where=str(folder), fix=REBUILD)


def _changed(file: Hashed, folder: Path, contents: bool) -> bool:
    path = beside(folder, file.path)
    return path.stat().st_size != file.size or (contents and Hashed.of(path, folder) != file)


def beside(folder: Path, path: str) -> Path:
    """What a path relative to the index's folder means; the folder need not be there yet."""
    return Path(os.path.normpath(folder / path))


def libraries(*, dense: bool) -> dict[str, str]:
    """Versions of what writes an index."""
    names = ["bm25s", "numpy", *(["sentence-transformers", "transformers", "torch"] if dense else [])]
    return {name: importlib.metadata.version(name) for name in names}
