"""What the engine allows and a careful person would not: checks of a written domain, each with its reason."""

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestra.config.section import Name
from orchestra.domains.compare import run_calls
from orchestra.domains.entries import Table
from orchestra.domains.session import Domain, Row
from orchestra.errors import DataError
from orchestra.synthesis.domain_tasks.tasks import DomainTask, domain_tasks, intent_tasks, refuted
from orchestra.text import is_line
from orchestra.types import SPLITS, Split

MIN_TOOLS, MIN_INTENTS = 4, 4
TRIED_ROWS = 40
"""Rows of an intent of which one must give a proven task."""
FEW = 5
"""Rows from which a column with one value alone is suspicious."""
LONGEST = 80
ENTRIES_FIX = "correct that table's file in entries/"
TOOLS_FIX = "correct tools.yaml"
INTENTS_FIX = "correct that in intents.yaml"
"""Files of the domain's folder, by what is wrong."""
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
"""A text that SQLite stores as a number, where the column is one."""
PLACEHOLDER = re.compile(
    r"(?i)^(lorem.*|foo|baz|todo|tbd|n/?a|unknown|string|text|example|placeholder|null|x+|\.+|test)$"
)


def check_entries(table: Table, rows: Sequence[Row]) -> None:
    """Raises `DataError` when the entries of a table are empty, alike, placeholders or no sane values."""
    if not rows:
        raise DataError(f"table {table.name} has no entries", fix=ENTRIES_FIX)
    for row in rows:
        for column, value in zip(table.columns, row, strict=True):
            if problem := _value_problem(value, column in table.numbers):
                raise DataError(f"{table.name}.{column}: {value!r:.60} {problem}", fix=ENTRIES_FIX)
    if len(table.columns) > 1 and len({row[1:] for row in rows}) == 1 and len(rows) >= FEW:
        raise DataError(f"the entries of {table.name} differ in their first column only", fix=ENTRIES_FIX)
    for index, column in enumerate(table.columns):
        values = {row[index] for row in rows}
        if values == {None}:
            raise DataError(f"{table.name}.{column} is never given", fix=ENTRIES_FIX)


def check_domain(domain: Domain, taken: Collection[str] = ()) -> None:
    """Raises `DataError` when a whole domain cannot be worked with: too little, intents that execution refutes, a name
    that params.yaml refuses, or a tool's name that is `taken`."""
    try:
        TypeAdapter(Name).validate_python(domain.name)
    except ValidationError:
        what = f"world.domains cannot name the folder {domain.name!r:.60}"
        raise DataError(what, fix="name it by letters from a to z, digits, dots, dashes and underscores") from None
    session = domain.open()
    try:
        contents = session.contents()
    finally:
        session.close()
    for table, rows in contents.items():
        check_entries(domain.tables[table], rows)
    check_tools(domain, taken)
    if len(domain.intents) < MIN_INTENTS:
        raise DataError(f"{len(domain.intents)} intents; at least {MIN_INTENTS}", fix="write more in intents.yaml")
    called = {call.tool for intent in domain.intents for call in intent.calls}
    if unused := sorted(set(domain.tools) - called):
        fix = "write an intent in intents.yaml, or remove the tool from tools.yaml"
        raise DataError(f"no intent calls {', '.join(unused)}", fix=fix)
    if {intent.category for intent in domain.intents} != {"lookup", "change"}:
        raise DataError("the intents are all lookups or all changes; write both", fix=INTENTS_FIX)
    for intent in domain.intents:
        tasks = list(intent_tasks(domain, intent, TRIED_ROWS))
        if not tasks:
            raise DataError(f"intent {intent.name}: its slots give no row", fix=INTENTS_FIX)
        reasons = []
        for task in tasks:
            why = refuted(domain, task)
            if why is None and task.category == "change" and _leaves_all(domain, task):
                why = "the golden calls write rows and leave each as it was"
            if why is None:
                break
            reasons.append(why)
        else:
            what = f"intent {intent.name}: {reasons[0]} (asked: {tasks[0].instruction})"
            raise DataError(what, fix=INTENTS_FIX)
    splits: tuple[Split, ...] = SPLITS
    for split in splits:
        next(domain_tasks(domain, 0, 1, split))


def _leaves_all(domain: Domain, task: DomainTask) -> bool:
    """Whether the known solution changes no value: then a call with any other value would be right, too."""
    before, after = domain.open(), domain.open()
    try:
        run_calls(after, task.golden_calls)
        return all(after.row(*place) == before.row(*place) for place in after.touched)
    finally:
        before.close()
        after.close()


def check_tools(domain: Domain, taken: Collection[str] = ()) -> None:
    """Raises `DataError` when the tools are too few, none reads or none writes, or one has a name of the catalogue's
    (`taken`)."""
    if twice := sorted(set(domain.tools) & set(taken)):
        raise DataError(f"the catalogue has a tool {twice[0]}, too", fix="rename it in tools.yaml and intents.yaml")
    if len(domain.tools) < MIN_TOOLS:
        raise DataError(f"{len(domain.tools)} tools; at least {MIN_TOOLS}", fix=TOOLS_FIX)
    if {tool.writes for tool in domain.tools.values()} != {True, False}:
        raise DataError("the tools all read or all write; write both", fix=TOOLS_FIX)


def _value_problem(value: Any, number: bool) -> str | None:
    if isinstance(value, bytes):
        return "is neither text nor a number"
    if isinstance(value, float) and not math.isfinite(value):
        return "is no number"
    if not isinstance(value, str):
        return None
    if not value.strip() or PLACEHOLDER.match(value.strip()):
        return "is a placeholder"
    if not is_line(value) or len(value) > LONGEST:
        return f"is not one line of at most {LONGEST} characters"
    if number and not NUMBER.fullmatch(value):
        return "is no number"
    return None
