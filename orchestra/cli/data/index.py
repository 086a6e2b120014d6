"""`orchestra index`: build a searchable index of passages, and search it."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli.common import can_be_written
from orchestra.errors import ConfigError
from orchestra.text import one_line

SAY_S = 15
"""Seconds between two lines of progress."""
app = typer.Typer(help="Build and search a local index of passages.", no_args_is_help=True)


@app.command("build")
def build_(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE…", help="JSON lines, Parquet, JSON, CSV or TSV.")],
    out: Annotated[
        Path, typer.Option(callback=can_be_written, help="The folder to write; an existing index is replaced.")
    ],
    dense: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Add vectors of this sentence-transformers model (folder or name)."),
    ] = None,
    id_: Annotated[
        str, typer.Option("--id", metavar="FIELD", help="The field of the id; rows without it are numbered.")
    ] = "id",
    title: Annotated[str, typer.Option(metavar="FIELD", help="The field of the title, optional.")] = "title",
    text: Annotated[str, typer.Option(metavar="FIELD", help="The field of the text.")] = "text",
) -> None:
    """Index passages, one per row; report `unchanged` where the folder already holds that index."""
    from orchestra.tools.search.index.build import build, current, settings_of

    said = time.monotonic()

    def progress(done: int) -> None:
        nonlocal said
        if time.monotonic() - said > SAY_S:
            said = time.monotonic()
            print(f"index: {done:,} passages so far", file=sys.stderr, flush=True)

    settings = settings_of(out, id_=id_, title=title, text=text, model=dense)
    made, word = current(sources, out, settings), "unchanged"
    if made is None:
        made = build(sources, out, settings, on_progress=progress)
        word = "built"
    print(f"{word}: {made.passages:,} passages in {out}, version {made.version}")


@app.command("query")
def query_(
    folder: Annotated[Path, typer.Argument(help="The folder of an index.")],
    queries: Annotated[list[str] | None, typer.Argument(metavar="QUERY…", help="Default: the lines of stdin.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of passages per query.")] = 3,
    by: Annotated[str, typer.Option(help="bm25, dense or hybrid.")] = "bm25",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per query.")] = False,
) -> None:
    """Search an index. A damaged or stale index is refused."""
    from orchestra.tools.search.index.local import By, LocalIndex

    if by not in list(By):
        raise ConfigError(f"no search by {by}", where="--by", fix=f"one of: {', '.join(By)}")
    index = LocalIndex.open(folder)
    asked = queries or [line.strip() for line in sys.stdin if line.strip()]
    for query, found in zip(asked, index.search_many(asked, top, By(by)), strict=True):
        if as_json:
            hits = [each.model_dump(mode="json") for each in found]
            print(json.dumps({"query": query, "found": hits}))
            continue
        print(f"{one_line(query)}: {len(found)} found")
        for each in found:
            passage = each.passage
            print(f"{each.score:8.3f}  {one_line(passage.id)}  {one_line(passage.title)}")
            print(f"          {one_line(passage.text[:300])}")
