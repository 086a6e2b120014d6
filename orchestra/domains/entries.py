"""From schema.sql and entries/ to a database image: one bytes object that every episode copies."""

import csv
import io
import json
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.domains.guard import LOG, TRIGGER, SchemaGuard, unbound
from orchestra.domains.spec import Scalar, no_link, read_text
from orchestra.errors import DataError
from orchestra.text import is_text

LITERAL = re.compile(r"(?i)[+-]?\d+(\.\d+)?|'[^']*'|null|true|false")
NUMBER = re.compile(r"(?i)int|real|float|double")
"""Declared types whose columns hold numbers."""
MAX_IMAGE_BYTES = 64_000_000


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """Primary key columns."""
    numbers: frozenset[str] = frozenset()
    """Columns declared as numbers; SQLite keeps a text there that it cannot read as one."""

    @property
    def select(self) -> str:
        """All rows in the order of the primary key."""
        return f"select {', '.join(map(quoted, self.columns))} from {quoted(self.name)}"

    @property
    def order(self) -> str:
        return f" order by {', '.join(map(quoted, self.key))}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def build_image(folder: Path) -> tuple[bytes, dict[str, Table]]:
    """The database as bytes (the still empty log included) and its tables; raises `DataError`."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        tables = _create(db, folder / "schema.sql")
        _fill(db, folder / "entries", tables)
        db.execute(f"create table {LOG}(table_name text, condition text)")
        db.execute("vacuum")
        image = db.serialize()
    finally:
        db.close()
    if len(image) > MAX_IMAGE_BYTES:
        raise DataError(f"the database takes {len(image)} bytes", where=str(folder), fix="at most 64 MB")
    return image, tables


def log_writes(image: bytes, tables: dict[str, Table], writes: set[tuple[str, str]]) -> bytes:
    """The image with triggers that append `"order_id" is 1234`, a row's key as a ready condition, to the log.

    Only for the (table, event) pairs of `writes`: every trigger costs each episode 10 microseconds of parsing.
    """
    # An insert may replace rows, which deletes them without being asked for.
    events = writes | {(table, "delete") for table, event in writes if event == "insert"}
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        db.deserialize(image)
        for name, event in sorted(events):
            db.execute(_trigger(tables[name], event))
        return db.serialize()
    finally:
        db.close()


def _trigger(table: Table, event: str) -> str:
    rows = {"insert": ("new",), "update": ("old", "new"), "delete": ("old",)}[event]
    body = ""
    for row in rows:
        key = " || ' and ' || ".join(f"'{quoted(column)} is ' || quote({row}.{quoted(column)})" for column in table.key)
        body += f"insert into {LOG} values ('{table.name}', {key});"
    return f"create trigger {TRIGGER}{table.name}_{event} after {event} on {quoted(table.name)} begin {body} end"


def _create(db: sqlite3.Connection, file: Path) -> dict[str, Table]:
    guard = SchemaGuard()
    guard.install(db, max_bytes=MAX_IMAGE_BYTES)
    text = read_text(file)
    try:
        db.executescript(text)
    except (sqlite3.Error, ValueError) as error:
        what = f"{guard.refused} is not allowed" if guard.refused else str(error)
        raise DataError(what, where=str(file), fix="use plain create table and create index statements") from None
    finally:
        db.set_authorizer(None)
    names = [row[0] for row in db.execute("select name from sqlite_master where type = 'table' order by rowid")]
    tables = {name: _table(db, name, file) for name in names}
    if not tables:
        raise DataError("creates no table", where=str(file), fix="write create table statements")
    return tables


def _table(db: sqlite3.Connection, name: str, file: Path) -> Table:
    where, fix = str(file), f"fix table {name}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.startswith("sqlite"):
        raise DataError(f"{name!r} is no table name", where=where, fix="use lower-case words and underscores")
    columns, key, numbers = [], [], set[str]()
    for _, column, kind, _, default, position, hidden in db.execute(f"pragma table_xinfo({quoted(name)})"):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", column) or hidden:
            raise DataError(f"column {column!r} of {name} is generated or badly named", where=where, fix=fix)
        if default is not None and not LITERAL.fullmatch(default):
            raise DataError(f"the default of {name}.{column} is not a literal", where=where, fix=fix)
        columns.append(column)
        if NUMBER.search(kind):
            numbers.add(column)
        if position:
            key.append((position, column))
            if kind.upper() not in ("TEXT", "INTEGER"):
                raise DataError(f"the key {name}.{column} is neither text nor integer", where=where, fix=fix)
    if not key:
        raise DataError(f"table {name} has no primary key", where=where, fix="every table needs one")
    return Table(name, tuple(columns), tuple(column for _, column in sorted(key)), frozenset(numbers))


def _fill(db: sqlite3.Connection, folder: Path, tables: dict[str, Table]) -> None:
    no_link(folder)
    if not folder.is_dir():
        raise DataError("no such folder", where=str(folder), fix="put <table>.csv or <table>.jsonl into it")
    origins: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix not in (".csv", ".jsonl"):
            raise DataError("is neither .csv nor .jsonl", where=str(file), fix="remove it")
        if file.stem not in tables or file.stem in origins:
            raise DataError(f"there is no table {file.stem} left for it", where=str(file), fix="name it after a table")
        origins[file.stem] = file
        _insert(db, tables[file.stem], file)
    unbound(db)
    broken = db.execute("pragma foreign_key_check").fetchone()
    if broken is not None:
        table, rowid, parent, _ = broken
        raise DataError(
            f"entry {rowid} of {table} refers to no row of {parent}",
            where=str(origins.get(table, folder)),
            fix="add that row or fix the reference",
        )


def _insert(db: sqlite3.Connection, table: Table, file: Path) -> None:
    for line, entry in _read(file):
        unknown = [column for column in entry if column not in table.columns]
        if unknown:
            fix = f"name columns that schema.sql has: {', '.join(table.columns)}"
            raise DataError(f"{table.name} has no column {unknown[0]:.60}", where=f"{file}:{line}", fix=fix)
        names = ", ".join(map(quoted, entry))
        slots = ", ".join("?" * len(entry))
        try:
            db.execute(f"insert into {quoted(table.name)} ({names}) values ({slots})", tuple(entry.values()))
        except (sqlite3.Error, OverflowError) as error:
            raise DataError(str(error), where=f"{file}:{line}", fix="fix the entry") from None


def _read(file: Path) -> list[tuple[int, dict[str, Scalar]]]:
    text = read_text(file)
    if file.suffix == ".jsonl":
        return [(n, _json_entry(line, f"{file}:{n}")) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    reader = csv.reader(io.StringIO(text), strict=True)
    rows: list[tuple[int, dict[str, Scalar]]] = []
    try:
        header = next(reader, [])
        if len(set(header)) < len(header) or not header:
            raise DataError("the first line names no columns, or one twice", where=str(file), fix="fix the header")
        for row in reader:
            if len(row) != len(header):
                what = f"{len(row)} cells under {len(header)} columns"
                raise DataError(what, where=f"{file}:{reader.line_num}", fix="fix the line")
            rows.append((reader.line_num, {k: v if v != "" else None for k, v in zip(header, row, strict=True)}))
    except csv.Error as error:
        raise DataError(f"not CSV: {error}", where=f"{file}:{reader.line_num}", fix="fix the line") from None
    return rows


def _json_entry(line: str, where: str) -> dict[str, Scalar]:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", where=where, fix="fix the line") from None
    if not isinstance(entry, dict) or not entry:
        raise DataError("not an object with columns", where=where, fix="write {column: value}")
    if not is_text("".join([*entry, *(value for value in entry.values() if isinstance(value, str))])):
        raise DataError("half a surrogate pair, which is no text", where=where, fix="write the character itself")
    if not all(isinstance(value, str | int | float | bool | None) for value in entry.values()):
        raise DataError("a value is neither text nor a number", where=where, fix="fix the entry")
    return entry
