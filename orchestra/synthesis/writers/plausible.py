"""What the engine allows and a careful person would not: checks of a written domain, each with its reason."""

import math
import re
from collections.abc import Sequence
from typing import Any

from orchestra.domains.session import Domain, Row
from orchestra.errors import DataError
from orchestra.synthesis.domain_tasks.tasks import domain_tasks, intent_tasks, refuted
from orchestra.types import SPLITS, Split

MIN_TOOLS, MIN_INTENTS = 4, 4
TRIED_ROWS = 40
"""Rows of an intent of which one must give a proven task."""
FEW = 5
"""Rows from which a column with one value alone is suspicious."""
LONGEST = 80
PLACEHOLDER = re.compile(
    r"(?i)^(lorem.*|foo|baz|todo|tbd|n/?a|unknown|string|text|example|placeholder|null|x+|\.+|test)$"
)


def check_entries(table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Raises `DataError` when the entries of a table are empty, alike, placeholders or no sane values."""
    if not rows:
        raise DataError(f"table {table} has no entries")
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            if problem := _value_problem(value):
                raise DataError(f"{table}.{column}: {value!r:.60} {problem}")
    if len(columns) > 1 and len({row[1:] for row in rows}) == 1 and len(rows) >= FEW:
        raise DataError(f"the entries of {table} differ in their first column only")
    for index, column in enumerate(columns):
        values = {row[index] for row in rows}
        if values == {None}:
            raise DataError(f"{table}.{column} is never given")


def check_domain(domain: Domain) -> None:
    """Raises `DataError` when a whole domain cannot be worked with: too little, or intents that execution refutes."""
    session = domain.open()
    try:
        contents = session.contents()
    finally:
        session.close()
    for table, rows in contents.items():
        check_entries(table, domain.tables[table].columns, rows)
    check_tools(domain)
    if len(domain.intents) < MIN_INTENTS:
        raise DataError(f"{len(domain.intents)} intents; at least {MIN_INTENTS}")
    called = {call.tool for intent in domain.intents for call in intent.calls}
    if unused := sorted(set(domain.tools) - called):
        raise DataError(f"no intent calls {', '.join(unused)}")
    if {intent.category for intent in domain.intents} != {"lookup", "change"}:
        raise DataError("the intents are all lookups or all changes; write both")
    for intent in domain.intents:
        tasks = list(intent_tasks(domain, intent, TRIED_ROWS))
        if not tasks:
            raise DataError(f"intent {intent.name}: its slots give no row")
        reasons = []
        for task in tasks:
            why = refuted(domain, task)
            if why is None:
                break
            reasons.append(why)
        else:
            raise DataError(f"intent {intent.name}: {reasons[0]} (asked: {tasks[0].instruction})")
    splits: tuple[Split, ...] = SPLITS
    for split in splits:
        next(domain_tasks(domain, 0, 1, split))


def check_tools(domain: Domain) -> None:
    """Raises `DataError` when the tools are too few, or none reads or none writes."""
    if len(domain.tools) < MIN_TOOLS:
        raise DataError(f"{len(domain.tools)} tools; at least {MIN_TOOLS}")
    if {tool.writes for tool in domain.tools.values()} != {True, False}:
        raise DataError("the tools all read or all write; write both")


def _value_problem(value: Any) -> str | None:
    if isinstance(value, bytes):
        return "is neither text nor a number"
    if isinstance(value, float) and not math.isfinite(value):
        return "is no number"
    if not isinstance(value, str):
        return None
    if not value.strip() or PLACEHOLDER.match(value.strip()):
        return "is a placeholder"
    if not value.isprintable() or len(value) > LONGEST:
        return f"is not one line of at most {LONGEST} characters"
    return None
