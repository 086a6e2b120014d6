"""The record of nvidia/ToolScale (4,063 rows, Parquet), which is a task of tau2-bench with some fields always null.

    id, description{purpose, relevant_policies, notes}, user_scenario{persona, instructions{task_instructions,
    reason_for_call, known_info, unknown_info, domain}}, initial_state, evaluation_criteria{actions: [{arguments, name,
    action_id}], communicate_info, nl_assertions}

`arguments` is one wide struct over the parameters of every tool: an action's own are those that are not null, and dates
that were text are timestamps there. Source: the data set's card, and `Task` in sierra-research/tau2-bench.
"""

from collections.abc import Collection
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

KEY = "orchestra"
"""The one key of ours in a record: JSON, as text, of what the published schema has no place for."""


class Published(BaseModel):
    """Part of a record; keys that are not read are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)


class Action(Published):
    """A golden call."""

    name: str
    arguments: dict[str, Any] | None = None
    requestor: str | None = None
    """None: the assistant."""


class Criteria(Published):
    actions: tuple[Action, ...] | None = None
    communicate_info: tuple[str, ...] | None = None
    nl_assertions: tuple[str, ...] | None = None


class Instructions(Published):
    task_instructions: str | None = None
    reason_for_call: str | None = None
    known_info: str | None = None
    domain: str | None = None


class Scenario(Published):
    instructions: Instructions | str
    """Text alone in a few tasks of tau2-bench."""


class Task(Published):
    """A record of ToolScale or a task of tau2-bench."""

    id: str
    user_scenario: Scenario
    initial_state: Any = None
    evaluation_criteria: Criteria | None = None
    orchestra: str | None = None
    """What `KEY` holds."""

    @property
    def told(self) -> str:
        """What the user asks and knows, as one text."""
        said = self.user_scenario.instructions
        if isinstance(said, str):
            return said.strip()
        parts = [said.task_instructions, said.reason_for_call, said.known_info]
        return "\n".join(dict.fromkeys(part.strip() for part in parts if part and part.strip()))

    @property
    def domain(self) -> str | None:
        said = self.user_scenario.instructions
        return None if isinstance(said, str) else said.domain


def narrow(arguments: dict[str, Any] | None, nullable: Collection[str] = ()) -> dict[str, JsonValue]:
    """The arguments of one call from the wide struct: without nulls, but for those `nullable`; dates as text."""
    return {name: _plain(value) for name, value in (arguments or {}).items() if value is not None or name in nullable}


def _plain(value: Any) -> JsonValue:
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time().isoformat() == "00:00:00" else value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return narrow(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    plain: JsonValue = value
    return plain
