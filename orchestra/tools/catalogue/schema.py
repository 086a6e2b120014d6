"""JSON schemas of arguments, looked over when a tool joins the catalogue: no call should be the first to find out."""

from collections.abc import Iterator
from typing import Any

MAX_COMPLAINT = 120
"""Characters of a problem's message."""


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Why a schema cannot describe the arguments of a function; None when it can.

    Whatever would make a validation raise, or fetch another document, is found here, before any call.
    """
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if schema.get("type") != "object" or not isinstance(schema.get("$schema", ""), str):
        return "the schema is not of type object"
    kind = jsonschema.Draft202012Validator
    try:
        kind.check_schema(schema)
        resolver = _resolver(schema)
        for reference in _references(schema):
            if not reference.startswith("#"):
                return f"the schema refers to another document, {reference[:60]}"
            try:
                resolver.lookup(reference)
            except Unresolvable:
                return f"the schema refers to what it does not hold, {reference[:60]}"
        # One that refers to itself without end does so on any arguments.
        list(kind(schema, registry=Registry()).iter_errors({}))
    except jsonschema.SchemaError as error:
        path = ".".join(str(part) for part in error.absolute_path)
        return f"no JSON schema: {path + ': ' if path else ''}{error.message[:MAX_COMPLAINT]}"
    except RecursionError:
        return "the schema is nested too deeply, or refers to itself without end"
    return None


def _resolver(schema: dict[str, Any]) -> Any:
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    registry: Any = Registry()
    return registry.with_resource("", DRAFT202012.create_resource(schema)).resolver()


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(inner, str):
                yield inner
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
