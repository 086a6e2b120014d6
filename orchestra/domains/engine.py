"""Domains as data: a folder of schema, entries, tools, policy and intents becomes a world that every episode copies.

domain = load_domain(Path("data/domains/mock"))
session = domain.open()
session.call("get_book", {"book": 12})      # "title: Orvale, reader: none"
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from orchestra.domains.entries import build_image, log_writes
from orchestra.domains.session import Domain, DomainTool, Session
from orchestra.domains.spec import SLOT, Intent, IntentFile, ToolFile, ToolsFile, no_link, read_text, read_yaml
from orchestra.errors import DataError

__all__ = ["Domain", "DomainTool", "Session", "load_domain"]

STATEMENT = re.compile(r"(?i)\s*(select|with|values|insert|update|delete|replace)\b")


def load_domain(folder: Path, *, with_intents: bool = True) -> Domain:
    """Read and check a domain folder; raises `DataError` naming the file and what to fix.

    `with_intents=False` is for a folder that is being written: its intents are not read.
    """
    no_link(folder)
    if not folder.is_dir():
        raise DataError("no such domain folder", where=str(folder), fix="check world.domains in params.yaml")
    image, tables = build_image(folder)
    files = read_yaml(folder / "tools.yaml", ToolsFile).tools
    asked = read_yaml(folder / "intents.yaml", IntentFile) if with_intents else None
    intents, split_by = (asked.intents, asked.split_by) if asked is not None else ((), ())
    domain = Domain(folder.name, {}, read_text(folder / "policy.md"), intents, split_by, tables, image)
    session = domain.open()
    try:
        for file in files:
            can = _check_tool(session, file, folder / "tools.yaml")
            statements = tuple(session.traced(statement, file.parameters) for statement in file.statements)
            domain.tools[file.name] = DomainTool(file, can, statements)
        if len(domain.tools) < len(files):
            raise DataError("two tools have one name", where=str(folder / "tools.yaml"), fix="rename one")
        for intent in intents:
            _check_intent(domain, session, intent, folder / "intents.yaml")
    finally:
        session.close()
    changes = {change for tool in domain.tools.values() for change in tool.changes}
    return replace(domain, image=log_writes(image, tables, changes))


def _check_tool(session: Session, tool: ToolFile, file: Path) -> frozenset[tuple[str, str]]:
    """What the tool can write. Raises `DataError` when a statement does not compile or does what none may."""
    for condition in tool.preconditions:
        if _compiles(session, condition.query, tool.parameters, file, f"a precondition of {tool.name}"):
            raise DataError(f"a precondition of {tool.name} writes", where=str(file), fix="let it only read")
    changes: set[tuple[str, str]] = set()
    for statement in tool.statements:
        changes |= _compiles(session, statement, tool.parameters, file, f"a statement of {tool.name}")
    return frozenset(changes)


def _check_intent(domain: Domain, session: Session, intent: Intent, file: Path) -> None:
    name, where, fix = f"intent {intent.name}", str(file), "fix that intent"
    if _compiles(session, intent.slots, (), file, f"the slots of {name}"):
        raise DataError(f"the slots of {name} write", where=where, fix="let the query only read")
    columns, _ = session.select(f"select * from (\n{intent.slots}\n) limit 0", 1)
    used = [*intent.about.values(), *(s for text in _texts(intent) for s in SLOT.findall(text))]
    for slot in used:
        if slot not in columns:
            raise DataError(f"{name} uses {slot}, which its slots do not give", where=where, fix=fix)
    if not set(intent.about) & set(domain.split_by):
        raise DataError(f"{name} is about none of {', '.join(domain.split_by)}", where=where, fix=fix)
    for call in intent.calls:
        tool = domain.tools.get(call.tool)
        if tool is None:
            raise DataError(f"{name} calls {call.tool}, which is no tool", where=where, fix=fix)
        required = set(tool.file.parameters) - set(tool.file.optional)
        if not required <= set(call.arguments) <= set(tool.file.parameters):
            raise DataError(f"{name} gives {call.tool} the wrong arguments", where=where, fix=fix)


def _texts(intent: Intent) -> list[str]:
    arguments = [value for call in intent.calls for value in call.arguments.values() if isinstance(value, str)]
    return [*intent.wordings, intent.answer, *intent.communicate, *arguments]


def _compiles(
    session: Session, statement: str, parameters: Iterable[str], file: Path, what: str
) -> set[tuple[str, str]]:
    if not STATEMENT.match(statement):
        raise DataError(f"{what} is no query, insert, update or delete", where=str(file), fix="rewrite it")
    try:
        return session.compiles(statement, parameters)[0]
    except DataError as error:
        fix = "write one statement of SQLite, over the tables of schema.sql and the tool's parameters alone"
        raise DataError(f"{what}: {error.what}", where=str(file), fix=fix) from None
