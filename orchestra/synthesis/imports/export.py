"""Examples as ToolScale records, in JSON lines or Parquet: `toolscale` reads them back as they were."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from orchestra.errors import ConfigError
from orchestra.files.tables import Row, parse_row, read_rows, write_json_lines, write_parquet
from orchestra.types import Example
from orchestra.validation.gate.published import KEY, narrow

OTHER = "other"
"""The kind of a value that no column holds exactly."""


def export(source: Path, target: Path) -> int:
    """Write a file of examples in the published schema, whole or not at all, one example at a time; returns how many.

    For Parquet the source is read twice: the wide struct needs the name of every parameter. Raises `DataError` naming
    file, line and field of what is no example, `ConfigError` for a target that is neither .jsonl nor .parquet.
    """
    if target.suffix == ".jsonl":
        return write_json_lines(target, (record(example) for example in stream(source)))
    if target.suffix != ".parquet":
        raise ConfigError("no such format", where=str(target), fix="name a file that ends in .jsonl or .parquet")
    kinds = wide_kinds(stream(source))
    return write_parquet(target, (record(example, kinds) for example in stream(source)), schema(kinds))


def stream(path: Path) -> Iterator[Example]:
    """The examples of a file, one at a time; raises `DataError` naming file, line and field of what is none."""
    for where, row in read_rows(path):
        yield parse_row(row, Example, where, fix="name a file of examples, such as data/validated/train.jsonl")


def record(example: Example, kinds: Mapping[str, str] | None = None) -> Row:
    """The example in the published schema; what has no place there goes under `KEY`.

    `kinds` names the parameters that the file's wide struct has, with their kinds; None: arguments are plain.
    """
    calls, exact = [], {}
    for index, call in enumerate(example.verifier.golden_calls):
        arguments = call.arguments if kinds is None else _held(call.arguments, kinds)
        calls.append({"arguments": arguments, "name": call.name, "action_id": f"{example.id}_{index}"})
        if not _same(narrow(arguments), call.arguments):
            exact[str(index)] = call.arguments
    rest = example.model_dump(mode="json", exclude={"id", "instruction", "domain"})
    communicate = rest["verifier"].pop("communicate")
    del rest["verifier"]["golden_calls"]
    return {
        "id": example.id,
        "description": {"purpose": example.category.value, "relevant_policies": None, "notes": None},
        "user_scenario": {
            "persona": None,
            "instructions": {
                "task_instructions": example.instruction,
                "reason_for_call": None,
                "known_info": None,
                "unknown_info": None,
                "domain": example.domain,
            },
        },
        "initial_state": None,
        "evaluation_criteria": {"actions": calls, "communicate_info": communicate, "nl_assertions": None},
        KEY: json.dumps({"example": rest, "arguments": exact}, ensure_ascii=False),
    }


def kind_of(value: JsonValue) -> str:
    """The kind of column that holds a value exactly; `OTHER` where Parquet has none."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else OTHER
    if isinstance(value, float):
        return "float"
    if isinstance(value, str):
        return "str"
    return "list" if isinstance(value, list) and all(isinstance(item, str) for item in value) else OTHER


def wide_kinds(examples: Iterable[Example]) -> dict[str, str]:
    """Parameters of the golden calls, with the kind of the first value that a column holds (int and float: float)."""
    kinds: dict[str, str] = {}
    for example in examples:
        for call in example.verifier.golden_calls:
            for name, value in call.arguments.items():
                kind = kind_of(value)
                if kinds.get(name, OTHER) == OTHER or (kinds[name], kind) == ("int", "float"):
                    kinds[name] = kind
    return kinds


def schema(kinds: Mapping[str, str]) -> Any:
    """The `pyarrow.Schema` of the published data set, its wide struct over `kinds`, and `KEY`."""
    import pyarrow as pa

    text, null = pa.string(), pa.null()
    columns = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "str": text, "list": pa.list_(text)}
    # A struct needs a field: where no call has an argument, one that is always null.
    arguments = pa.struct({name: columns.get(kind, null) for name, kind in kinds.items()} or {"_": null})
    action = pa.struct({"arguments": arguments, "name": text, "action_id": text})
    fields = ("task_instructions", "reason_for_call", "known_info", "unknown_info", "domain")
    criteria = {"actions": pa.list_(action), "communicate_info": pa.list_(text), "nl_assertions": pa.list_(text)}
    return pa.schema(
        {
            "id": text,
            "description": pa.struct({"purpose": text, "relevant_policies": null, "notes": null}),
            "user_scenario": pa.struct({"persona": null, "instructions": pa.struct(dict.fromkeys(fields, text))}),
            "initial_state": null,
            "evaluation_criteria": pa.struct(criteria),
            KEY: text,
        }
    )


def _held(arguments: Mapping[str, JsonValue], kinds: Mapping[str, str]) -> dict[str, JsonValue]:
    """The arguments that the columns can hold, in their order; a whole number in a column of others as one of those."""
    held: dict[str, JsonValue] = {}
    for name, column in kinds.items():
        if name in arguments:
            value = arguments[name]
            if (kind := kind_of(value)) == column != OTHER:
                held[name] = value
            elif (kind, column) == ("int", "float") and isinstance(value, int):
                held[name] = float(value)
    return held


def _same(one: Any, other: Any) -> bool:
    """Equal in type and order too: neither 1 and 1.0 nor 1 and true are the same, and teachers keep the order."""
    return json.dumps(one) == json.dumps(other)
