"""`--set section.key=value`: checked edits of params.yaml that keep its comments, and that DVC sees."""

import contextlib
import difflib
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from orchestra.config.renamed import RENAMED, REPLACED, unknown_keys
from orchestra.config.schema import Params, parse_params
from orchestra.errors import ConfigError
from orchestra.files import atomic
from orchestra.files.yaml import load_yaml, parse_yaml, with_a_point

IN_FORCE = ".state/params.in_force.json"
"""params.yaml as it was before a run's own assignments, and as they made it."""
LEFT_OUT: Any = object()
"""The value of a key that a file does not write."""


def apply(file: Path, assignments: Sequence[str]) -> list[str]:
    """Write the assignments into `file`; returns a line per changed value.

    Nothing is written unless every key exists and the whole file stays valid (`ConfigError`).
    """
    text, _, changed = _edited(file, _assigned(assignments))
    if changed:
        atomic.edit_bytes(file, text.encode())
    return changed


def effective(file: Path, assignments: Sequence[str]) -> Params:
    """What `file` holds with the assignments, for once: nothing is written. Raises `ConfigError` as `apply` does."""
    return _edited(file, _assigned(assignments))[1]


@contextlib.contextmanager
def in_force(root: Path, assignments: Sequence[str]) -> Iterator[list[str]]:
    """The assignments hold in params.yaml while the block lasts, since DVC reads that file; yields a line per change.

    What a killed block left in force is undone first. Values that a person changed meanwhile stay as they are. Where
    the file cannot be read at the end, such as half-edited, that is said, and the next holder of the lock undoes them.
    """
    undo(root)
    file, kept = root / "params.yaml", root / IN_FORCE
    before = file.read_text(encoding="utf-8")
    changes = _assigned(assignments)
    after, _, changed = _edited(file, changes) if changes else (before, None, [])
    if changed:
        names = [name for name, _ in changes]
        atomic.write_text(kept, json.dumps({"before": before, "after": after, "names": names}))
        atomic.edit_bytes(file, after.encode())
    try:
        yield changed
    finally:
        try:
            undo(root)
        except ConfigError as error:  # No fault of what was done in the block.
            print(f"the run's own values stay in params.yaml until the next command: {error}", file=sys.stderr)


def undo(root: Path) -> None:
    """Take what `in_force` wrote out of params.yaml again; nothing when there is nothing to undo.

    Raises `ConfigError` for a file that cannot be read; what is to be undone is then kept.
    """
    kept, file = root / IN_FORCE, root / "params.yaml"
    if not kept.is_file():
        return
    told = json.loads(kept.read_text(encoding="utf-8"))
    edited = load_yaml(file, if_missing="git checkout params.yaml")
    now = file.read_text(encoding="utf-8")
    if now == told["after"]:
        atomic.edit_bytes(file, told["before"].encode())
    elif now != told["before"]:
        # A person edited the file meanwhile: only what still has the value of the run goes back.
        documents = [parse_yaml(told["before"]), parse_yaml(told["after"]), edited]
        back = {}
        for name in told["names"]:
            name = _first_new(documents[0], name)
            old, new, present = (_at(document, name) for document in documents)
            if present == new:
                back[name] = old
        atomic.edit_bytes(file, _edited(file, back.items())[0].encode())
    kept.unlink()


def left_in_force(root: Path) -> list[str]:
    """The keys for which params.yaml holds a run's own values: of one that works, or that was killed."""
    kept = root / IN_FORCE
    return list(json.loads(kept.read_text(encoding="utf-8"))["names"]) if kept.is_file() else []


def _first_new(document: Any, dotted: str) -> str:
    """The shortest beginning of a key that the document lacks: what goes away with it; the key where it is there."""
    parts = dotted.split(".")
    beginnings = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((one for one in beginnings if not isinstance(_at(document, one), dict)), dotted)


def _at(document: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        document = document.get(key, LEFT_OUT) if isinstance(document, dict) else LEFT_OUT
    return document


def points(assignments: Sequence[str]) -> list[list[str]]:
    """Every combination of `a=1,2,3` as assignments of one value each; a comma within brackets parts nothing."""
    choices = []
    for assignment in assignments:
        name, equals, values = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} has no =", where="--set", fix="write --set section.key=1,2,3")
        choices.append([f"{name.strip()}={value.strip()}" for value in _parted(values)])
    return [list(chosen) for chosen in itertools.product(*choices)]


def _parted(values: str) -> list[str]:
    parts, depth = [""], 0
    for one in values:
        depth += (one in "[{") - (one in "]}")
        if one == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += one
    return parts


def _assigned(assignments: Sequence[str]) -> list[tuple[str, Any]]:
    """The keys and values of `section.key=value`."""
    found = []
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} has no =", where="--set", fix="write --set section.key=value")
        if not text.strip():
            # YAML reads it as null, which switches a cap off: more likely a variable of the shell was empty.
            fix = f"for none, write {dotted.strip()}=null"
            raise ConfigError(f"{assignment!r} has no value", where="--set", fix=fix)
        if dotted.strip() == "profile":
            # The name alone would stand over another profile's values.
            raise ConfigError("it names a whole file", where=dotted, fix=f"orchestra run --profile {text.strip()}")
        found.append((dotted.strip(), _value(text)))
    return found


def _edited(file: Path, changes: Iterable[tuple[str, Any]]) -> tuple[str, Params, list[str]]:
    """The new text, the parameters in it, and a line per changed value; a value `LEFT_OUT` takes its key out."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    # ruamel would turn `base: null` into `base:`.
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    # ruamel would write 5e-05, which YAML 1.1, and so the loader, reads as a text.
    yaml.representer.add_representer(
        float, lambda r, number: r.represent_scalar("tag:yaml.org,2002:float", with_a_point(repr(number)))
    )
    try:
        wanted = _copy(load_yaml(file, if_missing="run from the repository root"))  # in bounds before ruamel reads it
        document = yaml.load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(file), fix="fix the file") from None
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"not YAML: {error}", where=str(file), fix="fix the syntax") from None
    changed = []
    for dotted, new in changes:
        old = _held(wanted, dotted, file)
        if not _same(old, new):
            changed.append(f"{dotted}: {old} → {new}")
            _put(document, dotted, _quoted(new))
            _put(wanted, dotted, _copy(new))
    buffer = io.StringIO()
    yaml.dump(document, buffer)
    written = parse_yaml(buffer.getvalue())
    params = parse_params(written, where="--set")
    if not _same(written, wanted):
        raise ConfigError("the file shares values between keys (*)", where=str(file), fix="write each value out")
    return buffer.getvalue(), params, changed


def _quoted(value: Any) -> Any:
    """The value with quotes around each text that no longer were one without them: ruamel writes `on` as it is."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, dict):
        return {_quoted(key): _quoted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quoted(inner) for inner in value]
    try:
        return DoubleQuotedScalarString(value) if isinstance(value, str) and parse_yaml(value) != value else value
    except ValueError:
        return DoubleQuotedScalarString(value)


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same types throughout: `1 == True == 1.0` is no equality here."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _copy(value: Any) -> Any:
    """The value with nothing shared between its keys, as an alias shares it."""
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _held(document: Any, dotted: str, file: Path) -> Any:
    """What holds for the key `a.b.c`: the document's value, or the schema's default where that leaves the key out."""
    if not isinstance(document, dict):
        raise _no_key(dotted, file)
    value: Any = document
    section: type[BaseModel] | None = Params
    for part in dotted.split("."):
        field = _fields(section).get(part)
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif field is None or not (value is None or isinstance(value, dict)):
            raise _no_key(dotted, file)
        elif value is not None:
            value = None if field.is_required() else to_jsonable_python(field.get_default(call_default_factory=True))
        section = None if field is None else _section(field)
    return value


def _no_key(dotted: str, file: Path) -> ConfigError:
    if dotted in RENAMED or dotted in REPLACED:
        return unknown_keys([dotted], str(file))
    near = difflib.get_close_matches(dotted, _keys(Params), 1)
    fix = f"did you mean {near[0]}?" if near else "docs/reference/parameters.md has the keys there are"
    return ConfigError(f"no key {dotted}", where=str(file), fix=fix)


def _keys(section: type[BaseModel] | None, before: str = "") -> Iterator[str]:
    """Every key of the schema, as `a.b.c`."""
    for name, field in _fields(section).items():
        yield before + name
        yield from _keys(_section(field), f"{before}{name}.")


def _fields(section: type[BaseModel] | None) -> dict[str, FieldInfo]:
    """The fields of a section, by their names in params.yaml."""
    fields = {} if section is None else section.model_fields
    return {field.alias or name: field for name, field in fields.items()}


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, or may hold; None for a plain value."""
    kind = field.annotation
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _put(document: Any, dotted: str, value: Any) -> None:
    """Set a key, or take it out; a new one comes first in its section, since a comment may follow the last."""
    *path, key = dotted.split(".")
    for part in path:
        if document.get(part) is None:
            _put(document, part, {})
        document = document[part]
    if value is LEFT_OUT:
        document.pop(key, None)
    elif key in document:
        document[key] = value
    elif hasattr(document, "insert"):  # ruamel's
        document.insert(0, key, value)
    else:
        others = dict(document)
        document.clear()
        document.update({key: value, **others})


def _value(text: str) -> Any:
    try:
        return _without_dates(parse_yaml(with_a_point(text.strip())))
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a YAML value: {error}", where="--set", fix="quote it") from None


def _without_dates(value: Any) -> Any:
    """The same with texts for dates, which DVC cannot keep."""
    if isinstance(value, dict):
        return {key: _without_dates(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_dates(inner) for inner in value]
    return value.isoformat() if isinstance(value, date) else value
