"""ToolScale records as examples: the published ones, and those that `export` wrote."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from orchestra.errors import DataError
from orchestra.files.tables import parse_row, problem, read_rows
from orchestra.synthesis.draft import Draft, Refused
from orchestra.synthesis.imports.importer import ExampleImporter, Outside, RowOrigin
from orchestra.tools.catalogue.catalogue import DomainToolLike
from orchestra.types import Category, Example, ToolCall, Verifier
from orchestra.validation.gate.published import KEY, Action, Task, narrow

SOURCE, LICENCE = "nvidia/ToolScale", "other"
"""The card says `license: other`: a user of the data accepts its terms and says so in the list."""
READING = ("get", "search", "find", "list", "check", "view", "show", "calculate", "lookup", "read", "count")
"""First words of tools that change nothing."""
TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


@dataclass(frozen=True)
class OutsideTool:
    """A tool of a domain that is not here."""

    name: str
    description: str
    parameters: dict[str, JsonValue]

    @property
    def nullable(self) -> set[str]:
        """Parameters whose schema admits null."""
        properties = self.parameters.get("properties")
        found = properties.items() if isinstance(properties, dict) else ()
        return {name for name, schema in found if '"null"' in json.dumps(schema)}


TOOL = TypeAdapter(OutsideTool)


@dataclass(frozen=True)
class ToolScale:
    """A loader of ToolScale files."""

    licence: str = LICENCE
    source: str = SOURCE
    tools: Mapping[str, OutsideTool] = field(default_factory=dict)
    """Descriptions and schemas by name: the records have neither, and what is called is all that is offered."""
    judged: bool = False
    """Have a judge decide about rows whose domain is not `here`, in place of their database."""
    here: Collection[str] = ()
    """The domains whose database is here."""
    lenient: bool = False
    """Count a row that cannot be read as refused, and go on."""

    def load(self, paths: Iterable[Path], importer: ExampleImporter) -> Iterator[Outside]:
        """Every record in order. What we exported comes back as it was, the published rest as a domain example.

        Raises `DataError` (file, line, field, what to do) for a row that cannot be read, unless `lenient`.
        """
        for path in paths:
            for where, row in read_rows(path):
                try:
                    task = parse_row(row, Task, where, fix="a row has the fields of nvidia/ToolScale: fix or drop it")
                    published = task.orchestra is None
                    yield where, self._published(task, where, importer) if published else ours(task, where)
                except DataError as error:
                    if not self.lenient:
                        raise
                    yield where, Refused("", self.source, f"cannot be read: {error.what}")

    def _published(self, task: Task, where: str, importer: ExampleImporter) -> Example | Refused:
        criteria = task.evaluation_criteria
        actions = (criteria.actions if criteria else None) or ()
        reason = None
        if not task.told:
            reason = "the user asks nothing"
        elif not actions:
            reason = "no golden calls"
        elif any(action.requestor not in (None, "assistant") for action in actions):
            reason = "a golden call is the user's own"
        elif criteria and criteria.nl_assertions:
            reason = "it has assertions in words, which no rule can check"
        elif task.initial_state is not None:
            reason = "it starts from a state of its own"
        if reason is not None:
            return Refused(task.id, self.source, reason)
        calls = tuple(ToolCall(name=action.name, arguments=self._arguments(action)) for action in actions)
        tools: Mapping[str, DomainToolLike] = {
            c.name: self.tools.get(c.name) or _inferred(calls, c.name) for c in calls
        }
        told = tuple((criteria.communicate_info if criteria else None) or ())
        draft = Draft(
            category=Category.LOOKUP if all(c.name.split("_")[0] in READING for c in calls) else Category.CHANGE,
            instruction=task.told,
            answer=" ".join(told),
            verifier="database",
            entities=(f"toolscale:{task.id}",),
            golden_calls=calls,
            communicate=told,
            tools_needed=tuple(dict.fromkeys(call.name for call in calls)),
            domain=_domain(task.domain),
        )
        judged = self.judged and draft.domain not in self.here
        verifier = Verifier(kind="judge" if judged else "database", golden_calls=calls, communicate=told)
        try:
            name = f"toolscale-{task.id}"
            return importer.example(name, draft, verifier, RowOrigin(self.source, self.licence, task.id), tools)
        except ValidationError as error:
            raise DataError(
                problem(error), where=where, fix="no tool can have that name: fix or drop the row"
            ) from None

    def _arguments(self, action: Action) -> dict[str, JsonValue]:
        tool = self.tools.get(action.name)
        return narrow(action.arguments, tool.nullable if tool is not None else ())


def read_tools(path: Path) -> dict[str, OutsideTool]:
    """Tools by name from a JSON list in the form of the OpenAI tools array; raises `DataError` naming the entry."""
    tools = {}
    for where, row in read_rows(path):
        function = row.get("function", row)
        try:
            tool = TOOL.validate_python({**function, "description": function.get("description") or ""})
        except (TypeError, ValidationError):
            fix = "write {name, description, parameters}, as in the OpenAI tools array"
            raise DataError("not a function", where=where, fix=fix) from None
        tools[tool.name] = tool
    return tools


def ours(task: Task, where: str) -> Example:
    """The example that a record of ours was made of; raises `DataError` when its key was damaged."""
    fix = f"export it again, or drop the key {KEY} to read the rest as a published row"
    criteria = task.evaluation_criteria
    actions = (criteria.actions if criteria else None) or ()
    said = task.user_scenario.instructions
    try:
        held = json.loads(task.orchestra or "")
        exact, rest = held["arguments"], held["example"]
        calls = [
            {"name": action.name, "arguments": exact.get(str(index), narrow(action.arguments))}
            for index, action in enumerate(actions)
        ]
        verifier = {
            **rest["verifier"],
            "golden_calls": calls,
            "communicate": (criteria.communicate_info if criteria else None) or (),
        }
        placed = {"id": task.id, "instruction": said if isinstance(said, str) else said.task_instructions}
        return Example.model_validate({**rest, **placed, "domain": task.domain, "verifier": verifier})
    except ValidationError as error:
        raise DataError(problem(error), where=where, fix=fix) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"field {KEY}: not what was written", where=where, fix=fix) from None


def _domain(said: str | None) -> str:
    """A name of its own: the published `finance` is another world than ours."""
    return f"toolscale-{re.sub(r'[^a-z0-9]+', '-', (said or '').lower()).strip('-') or 'unnamed'}"


def _inferred(calls: Iterable[ToolCall], name: str) -> OutsideTool:
    """What can be known of a tool from its calls."""
    properties: dict[str, JsonValue] = {}
    for call in calls:
        if call.name == name:
            for key, value in call.arguments.items():
                properties[key] = {"type": TYPES.get(type(value), "object")}
    return OutsideTool(name, name.replace("_", " "), {"type": "object", "properties": properties})
