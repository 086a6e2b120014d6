"""A whole domain written by a model: schema, entries, tools, intents, each step loaded by the same guarded engine."""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from orchestra.domains.engine import load_domain
from orchestra.domains.entries import build_image, quoted
from orchestra.domains.session import Domain
from orchestra.domains.spec import IntentFile, Name, Scalar, ToolsFile
from orchestra.errors import ConfigError, DataError
from orchestra.files import atomic
from orchestra.synthesis.writers.plausible import check_domain, check_entries, check_tools
from orchestra.synthesis.writers.prompts import ENTRIES, INTENTS, REPAIR, SCHEMA, SHORTER, SUBJECTS, SYSTEM, TOOLS
from orchestra.synthesis.writers.structured import Writer, as_json
from orchestra.types import Record

ROWS = 30
"""Entries that a table is asked for."""
SHOWN_ROWS = 5
CLOCK = "clock"
"""The table that holds today; it has one row."""
MAX_TABLES = 12


class Subject(Record):
    name: Name
    subject: Annotated[str, Field(min_length=10, max_length=400)]


class Subjects(Record):
    subjects: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=50)]


class WrittenSchema(Record):
    schema_sql: Annotated[str, Field(min_length=20, max_length=20_000)]
    policy: Annotated[str, Field(pattern=r"^# ", max_length=8_000)]


class WrittenEntries(Record):
    rows: Annotated[tuple[dict[Name, Scalar], ...], Field(min_length=1, max_length=200)]


async def propose_subjects(writer: Writer, count: int, taken: Iterable[str], seed: int) -> list[Subject]:
    """Subjects for new domains, none named as one that is there; raises `DataError` when the model has none."""
    there = sorted(taken)

    def check(made: Subjects) -> None:
        names = [one.name for one in made.subjects]
        if again := sorted({name for name in names if name in there or names.count(name) > 1}):
            raise DataError(f"{again[0]} is there already")

    values = {"count": str(count), "taken": ", ".join(there) or "none"}
    return list((await writer.write(Subjects, SUBJECTS, values, seed=seed, check=check)).subjects)[:count]


async def write_domain(
    writer: Writer, name: str, subject: str, domains: Path, *, seed: int, licence: str, taken: Collection[str],
    rows: int = ROWS,
) -> Domain:  # fmt: skip
    """Have a model write `domains/name`, and load it. The folder appears whole or not at all; no tool has a name that
    is `taken`.

    What the engine or plausibility refuses goes back to the model at most twice a step. Raises `DataError` with the
    last reason when that does not help, `BudgetError` at the cap, and `ToolError` when the endpoint fails.
    """
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise ConfigError(f"{name!r:.60} is no name", where="the domain", fix="one lower-case word") from None
    target = domains / name
    if target.exists():
        raise ConfigError("is there already", where=str(target), fix="choose another name, or remove it")
    with tempfile.TemporaryDirectory(dir=domains.parent, prefix=".domain-", suffix=".partial") as scratch:
        folder = Path(scratch) / name
        (folder / "entries").mkdir(parents=True)
        try:
            await _Draft(writer, subject, folder, seed, taken).write(rows)
        except DataError as error:
            fix = error.fix or "other words or another seed"
            raise DataError(f"dropped: {error.what}", where=f"domain {name}", fix=fix) from None
        prompts = {p.sha256 for p in (SYSTEM, REPAIR, SHORTER, SCHEMA, ENTRIES, TOOLS, INTENTS)}
        origin = {
            "subject": subject,
            "generator": f"model:{writer.chat.chat.model}",
            "licence": licence,
            "seed": seed,
            "prompts": sorted(prompts),
        }
        (folder / "provenance.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        with atomic.whole_folder(target) as made:
            shutil.copytree(folder, made, dirs_exist_ok=True)
    return load_domain(target)


class _Draft:
    """A domain folder in the making."""

    def __init__(self, writer: Writer, subject: str, folder: Path, seed: int, taken: Collection[str]) -> None:
        self._writer, self._subject, self._folder, self._seed, self._taken = writer, subject, folder, seed, taken
        self._shown: dict[str, list[dict[str, Scalar]]] = {}

    async def write(self, rows: int) -> None:
        """Schema and policy, entries table by table, tools, intents."""
        frame = {"subject": self._subject}
        schema = await self._writer.write(
            WrittenSchema, SCHEMA, frame, seed=self._seed, check=self._explained(self._schema)
        )
        frame["schema"] = schema.schema_sql
        for table in build_image(self._folder)[1]:
            await self._entries(table, 1 if table == CLOCK else rows, frame)
        frame["entries"] = as_json(self._shown)
        made = await self._writer.write(
            ToolsFile, TOOLS, {**frame, "policy": schema.policy}, seed=self._seed, check=self._explained(self._tools)
        )
        tools = as_json(made.model_dump(mode="json", exclude_defaults=True)["tools"])
        await self._writer.write(
            IntentFile, INTENTS, {**frame, "tools": tools}, seed=self._seed, check=self._explained(self._intents)
        )

    async def _entries(self, table: str, count: int, frame: dict[str, str]) -> None:
        def check(made: WrittenEntries) -> None:
            lines = "".join(json.dumps(row) + "\n" for row in made.rows)
            (self._folder / "entries" / f"{table}.jsonl").write_text(lines, encoding="utf-8")
            _, tables = build_image(self._folder)
            columns = tables[table].columns
            check_entries(tables[table], [tuple(row.get(column) for column in columns) for row in made.rows])
            if len(made.rows) < (count + 1) // 2:
                raise DataError(f"{len(made.rows)} entries; {count} were asked for")

        values = {**frame, "entries": as_json(self._shown), "table": table, "count": str(count)}
        made = await self._writer.write(WrittenEntries, ENTRIES, values, seed=self._seed, check=self._explained(check))
        self._shown[table] = list(made.rows[:SHOWN_ROWS])

    def _schema(self, made: WrittenSchema) -> None:
        (self._folder / "schema.sql").write_text(made.schema_sql, encoding="utf-8")
        (self._folder / "policy.md").write_text(made.policy, encoding="utf-8")
        image, tables = build_image(self._folder)
        if len(tables) > MAX_TABLES:
            raise DataError(f"{len(tables)} tables; at most {MAX_TABLES}")
        db = sqlite3.connect(":memory:")
        try:
            db.deserialize(image)
            before: set[str] = set()
            for table in tables:
                before.add(table)
                for row in db.execute(f"pragma foreign_key_list({quoted(table)})"):
                    if row[2] not in before:
                        raise DataError(f"{table} refers to {row[2]}, which is not a table before it")
        finally:
            db.close()

    def _tools(self, made: ToolsFile) -> None:
        self._dump("tools.yaml", made)
        check_tools(load_domain(self._folder, with_intents=False), self._taken)

    def _intents(self, made: IntentFile) -> None:
        self._dump("intents.yaml", made)
        check_domain(load_domain(self._folder), self._taken)

    def _dump(self, file: str, made: Record) -> None:
        text = yaml.safe_dump(made.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True)
        (self._folder / file).write_text(text, encoding="utf-8")

    def _explained(self, check: Callable[[Any], None]) -> Callable[[Any], None]:
        """The check, its reasons in words of the domain: file and line, without the folder's path."""

        def explained(made: Any) -> None:
            try:
                check(made)
            except DataError as error:
                where = Path(error.where).name if error.where.startswith(str(self._folder)) else error.where
                raise DataError(f"{where}: {error.what}" if where else error.what) from None

        return explained
