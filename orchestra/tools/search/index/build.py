"""An index from files of passages: one pass over them, memory that hardly grows, whole or not at all."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from orchestra.errors import ConfigError, DataError
from orchestra.files import atomic
from orchestra.files.tables import Row, read_rows
from orchestra.text import is_text
from orchestra.tools.search.corpus import Document
from orchestra.tools.search.index import dense, lexical, passages
from orchestra.tools.search.index.manifest import MANIFEST, IndexManifest, Settings

SAID_EVERY = 1000
"""Passages between two calls of `on_progress`."""


def settings_of(out: Path, *, id_: str = "id", title: str = "title", text: str = "text", model: str | None) -> Settings:
    """What an index at `out` is to be: fields of the source's rows, and a model's name or folder for vectors.

    A row without the field `id_` is known by its number, one without `title` has none.
    """
    if model is not None and (model.startswith(".") or Path(model).is_dir()):
        model = os.path.relpath(model, out)
    return Settings(id=id_, title=title, text=text, model=model)


def current(sources: Sequence[Path], out: Path, settings: Settings) -> IndexManifest | None:
    """The index at `out` where it is whole and of these sources and settings; None where it has to be built."""
    try:
        manifest = IndexManifest.read(out)
        manifest.check(out)
    except DataError:
        return None
    same = [source.path for source in manifest.sources] == [os.path.relpath(source, out) for source in sources]
    there = all(source.is_file() for source in sources)
    return manifest if same and there and manifest.settings == settings else None


def build(
    sources: Sequence[Path], out: Path, settings: Settings, *, on_progress: Callable[[int], None] = lambda _: None
) -> IndexManifest:
    """Index the rows of `sources` (JSON lines, Parquet and what else `read_rows` reads) in the folder `out`.

    Raises `DataError` naming file, line and field for a row that is no passage; then `out` stays as it was.
    """
    if out.exists() and not (out / MANIFEST).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("this folder holds something other than an index", where=str(out), fix="name another folder")
    with atomic.whole_folder(out) as partial:
        names = [*passages.FILES, *lexical.FILES, *(dense.FILES if settings.model is not None else ())]
        count, dimension = _write(sources, partial, out, settings, on_progress)
        manifest = IndexManifest.of(
            partial, names, passages=count, dimension=dimension, sources=sources, at=out, settings=settings
        )
        manifest.write(partial)
    return manifest


def _write(
    sources: Sequence[Path], folder: Path, out: Path, settings: Settings, on_progress: Callable[[int], None]
) -> tuple[int, int]:
    """Write every file but the manifest; returns how many passages there are, and the dimension of their vectors."""
    with ExitStack() as stack:
        kept = stack.enter_context(closing(passages.PassageWriter(folder)))
        by_words = stack.enter_context(closing(lexical.LexicalWriter(folder)))
        by_meaning = None
        if settings.model is not None:
            embedder = dense.Embedder(settings.located(out))
            by_meaning = stack.enter_context(closing(dense.DenseWriter(folder, embedder)))
        for number, passage in enumerate(_passages(sources, settings), start=1):
            searched = passages.searched(passage)
            kept.add(passage)
            by_words.add(searched)
            if by_meaning is not None:
                by_meaning.add(searched)
            if number % SAID_EVERY == 0:
                on_progress(number)
        count = kept.finish()
        if not count:
            raise DataError("no row in it", where=", ".join(map(str, sources)), fix="name files that hold passages")
        by_words.finish()
        (folder / lexical.SPILL).unlink()
        if by_meaning is not None:
            by_meaning.finish()
    return count, by_meaning.dimension if by_meaning is not None else 0


def _passages(sources: Sequence[Path], settings: Settings) -> Iterator[Document]:
    number = 0
    for source in sources:
        for where, row in read_rows(source, {settings.id, settings.title, settings.text}):
            number += 1
            yield _passage(row, number, where, settings)


def _passage(row: Row, number: int, where: str, settings: Settings) -> Document:
    text, title = row.get(settings.text), row.get(settings.title)
    for field, value in ((settings.text, text), (settings.title, title or "")):
        if not isinstance(value, str) or not is_text(value):
            fix = f"fix the row, or name the fields: --text (there are: {', '.join(map(str, row))})"
            raise DataError(f"field {field}: not text (got {value!r:.60})", where=where, fix=fix)
    name = row.get(settings.id)
    return Document(id=str(number if name is None else name), title=title or "", text=text or "")
