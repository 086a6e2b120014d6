"""Arguments against a tool's JSON schema, and refusals in words that the model can act on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestra.errors import CallError, ToolError
from orchestra.text import one_line
from orchestra.tools.catalogue.schema import bounded_validator

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

    from orchestra.types import ToolSpec

SHOWN = 40
"""Characters of a value or name that a refusal repeats."""
TAKES = 300
"""Characters of a refusal's account of what the tool takes."""
TYPES = {"object": "an object", "array": "a list", "integer": "an integer", "null": "null"}
BOUNDS = {
    "minimum": "must be at least",
    "maximum": "must be at most",
    "exclusiveMinimum": "must be more than",
    "exclusiveMaximum": "must be less than",
    "multipleOf": "must be a multiple of",
    "minLength": "must have no fewer characters than",
    "maxLength": "must have no more characters than",
    "minItems": "must have no fewer items than",
    "maxItems": "must have no more items than",
    "const": "must be",
}

PLAIN: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
"""Python's types of the values that certainly are of a JSON type."""

ArgumentCheck = Callable[[dict[str, Any]], "ValidationError | None"]


def checker(spec: ToolSpec) -> ArgumentCheck:
    """What finds the worst problem of arguments under the tool's schema; raises `ToolError` when that is no schema.

    A schema may come from anybody's server. So none is ever fetched (`$ref` to an address finds nothing), and regular
    expressions, which can be made to run for hours, are left to the server that wrote them. Nor do arguments take more
    than so many steps to check.
    """
    import jsonschema
    import referencing

    base = jsonschema.Draft202012Validator
    try:
        base.check_schema(spec.parameters)
    except jsonschema.SchemaError as error:
        raise ToolError(f"its schema is none: {one_line(error.message)[:200]}", where=f"tool {spec.name}") from None
    additional = base.VALIDATORS["additionalProperties"]

    def others(validator: Any, extra: Any, instance: Any, schema: Any) -> Any:
        # Which properties are additional is decided by the expressions, too.
        return () if "patternProperties" in schema else additional(validator, extra, instance, schema)

    left_out = dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties"), _anything)
    problems = bounded_validator(spec.parameters, {**left_out, "additionalProperties": others})
    fit = _fits(spec.parameters)

    def check(arguments: dict[str, Any]) -> ValidationError | None:
        if fit(arguments):
            return None
        try:
            found: ValidationError | None = jsonschema.exceptions.best_match(problems(arguments))
            return found
        except (referencing.exceptions.Unresolvable, RecursionError, OverflowError) as error:
            what = f"its schema cannot be followed ({type(error).__name__})"
            raise ToolError(what, where=f"tool {spec.name}", fix="fix the schema") from None

    return check


def _fits(schema: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    """Whether arguments certainly fit a schema of a few plain properties; for all else `jsonschema` decides.

    It takes 0.2 ms for a right call, which nearly all are, and as long as the call itself.
    """
    required, properties = schema.get("required", []), schema.get("properties", {})
    closed = (
        schema.keys() <= {"type", "properties", "required", "additionalProperties"} and schema.get("type") == "object"
    )
    if not closed or schema.get("additionalProperties") is not False:
        return lambda arguments: False
    kinds: dict[str, tuple[tuple[type, ...], float]] = {}
    for name, wanted in properties.items():
        if isinstance(wanted, dict) and wanted.keys() <= {"type", "description", "maxLength"}:
            kind = wanted.get("type")
            if isinstance(kind, str) and kind in PLAIN:
                kinds[name] = PLAIN[kind], wanted.get("maxLength", math.inf)

    def fit(arguments: dict[str, Any]) -> bool:
        for name, value in arguments.items():
            types, longest = kinds.get(name, ((), 0))
            if type(value) not in types or (type(value) is str and len(value) > longest):
                return False
        return all(name in arguments for name in required)

    return fit


def refusal(spec: ToolSpec, problem: ValidationError) -> CallError:
    """What is wrong, and what the tool takes: `search: has no argument k; it takes query (string)`."""
    path = ".".join(str(part)[:SHOWN] for part in problem.absolute_path)[: 2 * SHOWN]
    return CallError(f"{spec.name}: {one_line(f'{path} {_wrong(problem)}'.strip())}; it takes {takes(spec)}")


def takes(spec: ToolSpec) -> str:
    """The arguments with their types: `query (string), k (integer, may be left out)`."""
    properties, required = spec.parameters.get("properties"), spec.parameters.get("required")
    told = []
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        kind = schema.get("type") if isinstance(schema, dict) else None
        words = [" or ".join(kind) if isinstance(kind, list) else kind] if kind else []  # type: ignore[arg-type]
        words += [] if isinstance(required, list) and name in required else ["may be left out"]
        told.append(f"{name} ({', '.join(map(str, words))})" if words else name)
    text = one_line(", ".join(told)) or "no arguments"
    return text if len(text) <= TAKES else f"{text[:TAKES]}…"


def _anything(*_: Any) -> tuple[()]:
    """A keyword that is not checked."""
    return ()


def _wrong(problem: ValidationError) -> str:
    """The problem in words, without Python's: what stands there is shown as the JSON that the model wrote."""
    value, wanted, keyword = problem.instance, problem.validator_value, str(problem.validator)
    match keyword:
        case "required":
            return f"needs {next((name for name in wanted if name not in value), 'more')}"
        case "additionalProperties":
            known = problem.schema.get("properties", {}) if isinstance(problem.schema, dict) else {}
            extra = [name for name in value if name not in known]
            return f"has no argument {extra[0][:SHOWN]}" if extra else "has too many arguments"
        case "type":
            kinds = wanted if isinstance(wanted, list) else [wanted]
            return f"must be {' or '.join(TYPES.get(kind, f'a {kind}') for kind in kinds)}, not {shown(value)}"
        case "enum":
            return f"must be one of {', '.join(map(shown, wanted[:10]))}, not {shown(value)}"
        case _ if keyword in BOUNDS:
            return f"{BOUNDS[keyword]} {shown(wanted)}, not {shown(value)}"
        case _:
            return f"{shown(value)} does not fit {keyword} {shown(wanted)}"


def shown(value: Any) -> str:
    """A value as JSON, cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
