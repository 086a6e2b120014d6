"""JSON schemas of arguments: looked over when a tool joins the catalogue, applied before every call."""

from collections.abc import Iterator
from typing import Any

MAX_COMPLAINT = 120
"""Characters of a complaint: the model reads it."""
TOO_DEEP = "nested too deeply"


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Why a schema cannot describe the arguments of a function; None when it can.

    Whatever would make a validation raise, or fetch another document, is found here, before any call.
    """
    import jsonschema
    from referencing.exceptions import Unresolvable

    if schema.get("type") != "object" or not isinstance(schema.get("$schema", ""), str):
        return "the schema is not of type object"
    kind = _kind(schema)
    try:
        kind.check_schema(schema, format_checker=kind.FORMAT_CHECKER)
        resolver = _resolver(schema)
        for reference in _references(schema):
            if not reference.startswith("#"):
                return f"the schema refers to another document, {reference[:60]}"
            resolver.lookup(reference)
        if Arguments(schema).complaint({}) == TOO_DEEP:
            return "the schema refers to itself without end"
    except jsonschema.SchemaError as error:
        path = ".".join(str(part) for part in error.absolute_path)
        return f"no JSON schema: {path + ': ' if path else ''}{error.message[:MAX_COMPLAINT]}"
    except Unresolvable as error:
        return f"the schema refers to what it does not hold, {error.ref[:60]}"
    except RecursionError:
        return "the schema is nested too deeply"
    return None


class Arguments:
    """A schema, ready to be applied many times."""

    def __init__(self, schema: dict[str, Any]) -> None:
        from referencing import Registry

        # An empty registry: the default one would fetch what a schema refers to.
        self._validator = _kind(schema)(schema, registry=Registry())

    def complaint(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments, in a few words for the model; None when nothing is."""
        from jsonschema.exceptions import best_match

        try:
            problem = best_match(self._validator.iter_errors(arguments))
        except RecursionError:
            return TOO_DEEP
        if problem is None:
            return None
        path = ".".join(str(part) for part in problem.absolute_path)
        return f"{path + ': ' if path else ''}{problem.message[:MAX_COMPLAINT]}"


def _kind(schema: dict[str, Any]) -> Any:
    """The validator of the draft that the schema names; servers in other languages still write draft 7."""
    import jsonschema

    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)


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
