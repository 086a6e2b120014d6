"""Writes docs/reference/commands.md and docs/reference/parameters.md from the code: `python -m scripts.reference`."""

import ast
from collections.abc import Iterator, Mapping
from enum import EnumMeta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from orchestra.cli.app import app
from orchestra.config import schema
from orchestra.config.section import Section
from orchestra.files.yaml import parse_yaml

ROOT = Path(__file__).parents[1]
MADE = "<!-- Made by `python -m scripts.reference`; do not edit. -->"


def commands() -> str:
    """Every command with its arguments and options, from the help texts."""
    parts = [
        "# Commands",
        MADE,
        "`orchestra` is `.venv/bin/orchestra`. Run it anywhere in the repository's folder. `orchestra COMMAND --help` "
        "shows the same text. Exit codes: 0 done (also when the promotion gate refused), 1 a bug or a finding, 2 an "
        "error in one line, 130 interrupted.",
    ]
    for path, command in _leaves("orchestra", typer.main.get_command(app)):
        named = [_argument(param) for param in command.params if param.param_type_name == "argument"]
        parts += [f"## {path}", " ".join(command.help.split()), f"    {' '.join([path, *named, '[OPTIONS]'])}"]
        if rows := [_row(param) for param in command.params]:
            parts.append("\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def parameters() -> str:
    """Every key of params.yaml with its type, its value in the default profile and its docstring."""
    document = schema.Params.model_json_schema(by_alias=True)
    values = parse_yaml((ROOT / "params.yaml").read_text(encoding="utf-8"))
    files = sorted(Path(schema.__file__).parent.glob("*.py"))
    own = {name: doc for file in files for name, doc in _docstrings(file.read_text(encoding="utf-8")).items()}
    docs = _inherited(own)
    parts = [
        "# Parameters",
        MADE,
        "The keys of `params.yaml`, one section per stage. `orchestra run --set grpo.seed=1` changes one and runs. The "
        "value is that of the default profile, *embedded*; a key that the file leaves out has the schema's default. A "
        "*required* key has none: name it wherever you use its section.",
        _table("", document["properties"], document, values, docs["Params"][1]),
    ]
    for key, field in document["properties"].items():
        if name := _section(field, document):
            parts += [f"## {key}", docs[name][0], *_tables(f"{key}.", name, document, values.get(key, {}), docs)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _tables(
    prefix: str, name: str, document: Mapping[str, Any], values: Any, docs: Mapping[str, tuple[str, dict[str, str]]]
) -> Iterator[str]:
    """The table of a section and those of the sections inside it."""
    properties = document["$defs"][name]["properties"]
    yield _table(prefix, properties, document, values, docs[name][1])
    for key, field in properties.items():
        if inner := _section(field, document):
            yield from _tables(f"{prefix}{key}.", inner, document, values.get(key, {}), docs)
        elif inner := _optional(field, document):
            yield docs[inner][0]
            yield from _tables(f"{prefix}{key}.", inner, document, values.get(key) or {}, docs)


def _section(field: Mapping[str, Any], document: Mapping[str, Any]) -> str | None:
    """The name of the section that a field holds."""
    name = str(field.get("$ref", "")).rsplit("/", 1)[-1]
    return name if name and "properties" in document["$defs"][name] else None


def _optional(field: Mapping[str, Any], document: Mapping[str, Any]) -> str | None:
    """The name of the section that a field may hold in place of null, or that a list holds many of."""
    inside = [*field.get("anyOf", ()), field.get("items", {})]
    return next((name for one in inside if (name := _section(one, document))), None)


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from _leaves(f"{path} {name}", child)
    else:
        yield path, command


def _argument(param: Any) -> str:
    name = param.name.upper() + ("…" if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def _row(param: Any) -> str:
    name, needed = param.name.upper(), ""
    if param.param_type_name == "option":
        needed = " Required." if param.required else ""
        name = param.opts[0] if param.is_flag else f"{param.opts[0]} {param.metavar or param.name.strip('_').upper()}"
    default, missing = param.default, (None, False, "")
    shown = "" if any(default is one for one in missing) or callable(default) else f"`{default}`"
    kind = param.type_descriptor.annotation
    values = list(kind) if isinstance(kind, EnumMeta) else get_args(kind) if get_origin(kind) is Literal else []
    choices = ", ".join(f"`{one}`" for one in values)
    words = _cell(param.help or "") + (f" One of {choices}." if choices else "")
    return f"| `{name}` | {shown} | {words}{needed} |"


def _table(
    prefix: str, properties: Mapping[str, Any], document: Mapping[str, Any], values: Any, docs: Mapping[str, str]
) -> str:
    rows = []
    for key, field in properties.items():
        if _section(field, document):
            continue
        given = isinstance(values, Mapping) and key in values
        value = f"`{_shown(values[key] if given else field['default'])}`" if given or "default" in field else "required"
        rows.append(f"| `{prefix}{key}` | {_cell(_type(field, document))} | {value} | {_cell(docs.get(key, ''))} |")
    return "\n".join(["| key | type | value | meaning |", "| --- | --- | --- | --- |", *rows]) if rows else ""


def _type(field: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """A JSON schema in words: `integer ≥ 1`, `cheap or fast`, `list of string`."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return _type(document["$defs"][name], document) if "enum" in document["$defs"][name] else name
    if "anyOf" in field:
        return " or ".join("null" if one.get("type") == "null" else _type(one, document) for one in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{one}`" for one in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "prefixItems" in field:
        return f"two of: {_type(field['prefixItems'][0], document)}"
    if field.get("type") == "array":
        return f"list of {_type(field['items'], document)}"
    if field.get("type") == "object":
        inner = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")][0]
        return f"mapping of {_type(inner, document).split()[0]}s"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = " ".join(f"{sign} {field[name]:g}" for name, sign in bounds.items() if name in field)
    return f"{field.get('type', 'any')} {limits}".strip()


def _inherited(docs: Mapping[str, tuple[str, dict[str, str]]]) -> dict[str, tuple[str, dict[str, str]]]:
    """The same, where a class also has the docstrings of the fields that it inherits."""
    kinds: list[type[Section]] = [Section]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = dict(docs)
    for kind in kinds:
        if kind.__name__ in docs:
            above = [docs[one.__name__][1] for one in reversed(kind.__mro__) if one.__name__ in docs]
            fields = {key: text for one in above for key, text in one.items()}
            found[kind.__name__] = docs[kind.__name__][0], fields
    return found


def _docstrings(source: str) -> dict[str, tuple[str, dict[str, str]]]:
    """By class: its docstring, and the docstring under each field."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            fields: dict[str, str] = {}
            for field, after in zip(node.body, node.body[1:], strict=False):
                match field, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        fields[name.rstrip("_")] = text
            found[node.name] = (ast.get_docstring(node) or "", fields)
    return found


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(one) for one in value) + "]"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    folder = ROOT / "docs/reference"
    (folder / "commands.md").write_text(commands(), encoding="utf-8")
    (folder / "parameters.md").write_text(parameters(), encoding="utf-8")


if __name__ == "__main__":
    main()
