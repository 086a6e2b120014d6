"""JSON schemas of arguments, looked over when a tool joins the catalogue: no call should be the first to find out."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

MAX_COMPLAINT = 120
"""Characters of a problem's message."""
MAX_STEPS = 50_000
"""Rules that one check applies, and problems that they tell: a schema of a few lines can ask for more than any computer
can do."""
MAX_EMPTY_STEPS = 2_000
"""The same for a check of no arguments: a request may bring many schemas."""
ENDLESS = "the schema is nested too deeply, or refers to itself without end"

Rule = Callable[[Any, Any, Any, Any], Any]
"""A keyword of JSON Schema, as `jsonschema` calls it."""


def bounded_validator(
    schema: dict[str, Any], instead: dict[str, Rule], most: int = MAX_STEPS
) -> Callable[[Any], Iterator[Any]]:
    """What finds the problems of a value under the schema, with other rules for some keywords.

    It raises `OverflowError` after `most` steps. One dialect holds for the whole schema: a `$schema` within it would
    bring `jsonschema`'s own rules back in place of ours.
    """
    import attrs
    import jsonschema
    from referencing import Registry

    base, steps = jsonschema.Draft202012Validator, threading.local()

    def step() -> None:
        steps.left -= 1
        if steps.left < 0:
            raise OverflowError("too many steps")

    def counted(rule: Rule) -> Rule:
        def count(validator: Any, value: Any, instance: Any, within: Any) -> Iterator[Any]:
            step()
            for problem in rule(validator, value, instance, within) or ():
                step()
                yield problem

        return count

    kind: Any = jsonschema.validators.extend(
        base, {name: counted(rule) for name, rule in {**base.VALIDATORS, **instead}.items()}
    )
    names = [(field.name, field.alias) for field in attrs.fields(kind) if field.init]

    def evolve(self: Any, **changes: Any) -> Any:
        return kind(**{init: getattr(self, name) for name, init in names if init not in changes}, **changes)

    kind.evolve = evolve
    validator = kind(schema, registry=Registry())

    def problems(value: Any) -> Iterator[Any]:
        steps.left = most
        return validator.iter_errors(value)  # type: ignore[no-any-return]

    return problems


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Why a schema cannot describe the arguments of a function; None when it can.

    Whatever would make a validation raise, or fetch another document, is found here, before any call.
    """
    import jsonschema
    from referencing.exceptions import Unresolvable

    if schema.get("type") != "object" or not isinstance(schema.get("$schema", ""), str):
        return "the schema is not of type object"
    kind = jsonschema.Draft202012Validator
    try:
        kind.check_schema(schema)
        resolver = _resolver(schema)
        checked, targets = {id(schema)}, []
        for reference in _references(schema):
            if not reference.startswith("#"):
                return f"the schema refers to another document, {reference[:60]}"
            try:
                target = resolver.lookup(reference).contents
            except Unresolvable:
                return f"the schema refers to what it does not hold, {reference[:60]}"
            if id(target) not in checked:  # It may stand where no schema is looked for.
                kind.check_schema(target)
                checked.add(id(target))
            targets.append(target)
        finite: set[int] = set()
        if any(_endless(target, resolver, set(), finite) for target in targets):
            return ENDLESS
        for _ in bounded_validator(schema, {}, MAX_EMPTY_STEPS)({}):
            pass
    except jsonschema.SchemaError as error:
        path = ".".join(str(part) for part in error.absolute_path)
        return f"no JSON schema: {path + ': ' if path else ''}{error.message[:MAX_COMPLAINT]}"
    except RecursionError:
        return ENDLESS
    except OverflowError:
        return f"a check of no arguments takes more than {MAX_EMPTY_STEPS} steps: it refers to itself too often"
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        unmet = [one for one in schema.get("required", []) if one not in schema.get("properties", {})]
        if unmet:
            return f"it requires {unmet[0]:.60}, which is none of its properties, so that no call could be right"
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


def _endless(schema: Any, resolver: Any, above: set[int], finite: set[int]) -> bool:
    """Whether a check of one value may come back to a schema for that same value. `above`: schemas that led here;
    `finite`: those of which it is known that none does."""
    if not isinstance(schema, dict) or id(schema) in finite:
        return False
    if id(schema) in above:
        return True
    above.add(id(schema))
    if any(_endless(other, resolver, above, finite) for other in _of_the_same_value(schema, resolver)):
        return True
    finite.add(id(schema))
    return False


def _of_the_same_value(schema: dict[str, Any], resolver: Any) -> Iterator[Any]:
    """The schemas that a value has to meet, or may, besides this one."""
    for key in ("$ref", "$dynamicRef"):
        if isinstance(schema.get(key), str):
            yield resolver.lookup(schema[key]).contents
    yield from (schema.get(key) for key in ("not", "if", "then", "else"))
    for key in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(key, ())
    yield from schema.get("dependentSchemas", {}).values()
