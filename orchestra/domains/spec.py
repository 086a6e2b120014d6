"""The files of a domain folder as checked records: tools.yaml and intents.yaml."""

import re
import stat
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, JsonValue, TypeAdapter, ValidationError, model_validator

from orchestra.errors import CallError, DataError
from orchestra.files.yaml import parse_yaml
from orchestra.text import is_line
from orchestra.types import Record

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Sql = Annotated[str, Field(min_length=1, max_length=4000)]
Scalar = str | int | float | bool | None
"""A value that SQLite can bind."""

T = TypeVar("T")
LARGEST_INTEGER = 2**53
LONE = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F]")
"""An escape of YAML that spells half of a surrogate pair, which is no text: no record could hold it."""
SLOT = re.compile(r"\{([a-z][a-z0-9_]*)\}")


class Parameter(Record):
    """One argument, in the subset of JSON schema that a domain may use, e.g. `{type: integer, minimum: 1}`."""

    type: Literal["string", "integer", "number", "boolean"]
    description: str = ""
    enum: tuple[str | int, ...] | None = None
    minimum: int | None = None
    maximum: int | None = None
    maxLength: int | None = None  # JSON schema's own spelling

    def check(self, name: str, value: JsonValue) -> Scalar:
        """The value to bind; raises `CallError` saying what is expected."""
        if self.type == "string":
            if not isinstance(value, str) or not is_line(value):
                raise CallError(f"{name} must be a string")
            if len(value) > (self.maxLength or 80):
                raise CallError(f"{name} must have at most {self.maxLength or 80} characters")
        elif self.type == "boolean":
            if not isinstance(value, bool):
                raise CallError(f"{name} must be true or false")
        elif isinstance(value, bool) or not isinstance(value, int if self.type == "integer" else (int, float)):
            raise CallError(f"{name} must be {'an integer' if self.type == 'integer' else 'a number'}")
        else:
            self._check_range(name, value)
        if self.enum is not None and value not in self.enum:
            raise CallError(f"{name} must be one of {', '.join(map(str, self.enum))}")
        return value if isinstance(value, str | int | float | bool) else None

    def _check_range(self, name: str, value: float) -> None:
        low = -LARGEST_INTEGER if self.minimum is None else self.minimum
        high = LARGEST_INTEGER if self.maximum is None else self.maximum
        if not low <= value <= high:  # also refuses NaN and the infinities
            raise CallError(f"{name} must be from {low} to {high}")


class Precondition(Record):
    """A query that must return a row before the statements run."""

    query: Sql
    otherwise: Annotated[str, Field(min_length=1, max_length=200)]
    """The refusal; `{argument}` stands for the argument's value."""


class ToolFile(Record):
    """One entry of tools.yaml."""

    name: Name
    description: Annotated[str, Field(min_length=3, max_length=200)]
    parameters: dict[Name, Parameter]
    optional: tuple[str, ...] = ()
    """Arguments that may be left out; they are bound as NULL."""
    preconditions: tuple[Precondition, ...] = ()
    statements: Annotated[tuple[Sql, ...], Field(min_length=1)]
    """Run in order in one transaction; the last one that returns rows gives the result."""

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        for name in self.optional:
            if name not in self.parameters:
                raise ValueError(f"optional names {name}, which is not a parameter")
        text = " ".join((*self.statements, *(p.query for p in self.preconditions)))
        for name in self.parameters:
            if not re.search(rf":{name}\b", text):
                raise ValueError(f"parameter {name} is used by no statement")
        for refusal in self.preconditions:
            for name in SLOT.findall(refusal.otherwise):
                if name not in self.parameters:
                    raise ValueError(f"the refusal names {name}, which is not a parameter")
        return self

    @property
    def schema_object(self) -> dict[str, JsonValue]:
        """JSON schema of the arguments object."""
        return {
            "type": "object",
            "properties": {k: _schema(p) for k, p in self.parameters.items()},
            "required": [k for k in self.parameters if k not in self.optional],
            "additionalProperties": False,
        }


class ToolsFile(Record):
    tools: Annotated[tuple[ToolFile, ...], Field(min_length=1)]


class IntentCall(Record):
    tool: Name
    arguments: dict[Name, str | int]
    """A value `{slot}` is the slot's own value, with its type; anything else stands for itself."""


class Intent(Record):
    """A kind of request; each row of `slots` makes one example of it."""

    name: Name
    category: Literal["lookup", "change"]
    slots: Sql
    """Query whose columns are the slots."""
    about: Annotated[dict[Name, Name], Field(min_length=1)]
    """Kind of entity → the slot that names it, e.g. `{customer: customer, order: order}`."""
    wordings: Annotated[tuple[str, ...], Field(min_length=2)]
    calls: Annotated[tuple[IntentCall, ...], Field(min_length=1, max_length=3)]
    answer: Annotated[str, Field(min_length=1)]
    """Template of the short answer."""
    communicate: tuple[str, ...] = ()
    """Templates of what the answer must mention."""


class IntentFile(Record):
    split_by: tuple[Name, ...]
    """The kinds of entity whose hash decides the split; any other kind belongs to one of them."""
    intents: tuple[Intent, ...]
    """None: only examples from elsewhere ask about the domain."""


def _schema(parameter: Parameter) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = parameter.model_dump(mode="json", exclude_none=True)
    if not schema["description"]:
        del schema["description"]
    return schema


def no_link(path: Path) -> None:
    """Raises `DataError` for a link, which could lead out of the domain folder."""
    if path.is_symlink():
        raise DataError("is a symbolic link", where=str(path), fix="put what it leads to in its place")


def read_text(file: Path) -> str:
    """The text of one file of a domain folder; raises `DataError`."""
    no_link(file)
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            raise DataError("is no plain file", where=str(file), fix="put a plain file in its place")
        if found.st_size > 16_000_000:
            raise DataError("is larger than 16 MB", where=str(file), fix="make the domain smaller")
        return file.read_text(encoding="utf-8-sig")  # spreadsheets begin their CSV with a mark
    except FileNotFoundError:
        raise DataError("no such file", where=str(file), fix="a domain folder needs it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", where=str(file), fix="save it as UTF-8 text") from None


def read_yaml(file: Path, kind: type[T]) -> T:
    """One YAML file checked against `kind`; raises `DataError` naming the key."""
    try:
        text = read_text(file)
        if LONE.search(text):
            fix = "write the character itself"
            raise DataError("half a surrogate pair, which is no text", where=str(file), fix=fix)
        return TypeAdapter(kind).validate_python(parse_yaml(text))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        fix = (
            "fix that entry"
            if first["loc"]
            else "write keys and values, as the file of that name in another domain has"
        )
        raise DataError(f"{key}: {first['msg']}", where=str(file), fix=fix) from None
    except ValueError as error:
        raise DataError(str(error), where=str(file), fix="fix the syntax") from None
    except RecursionError:
        raise DataError("is nested too deeply", where=str(file), fix="write it flat") from None
