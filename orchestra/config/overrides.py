"""`--set section.key=value`: checked edits of params.yaml that keep its comments, and that DVC sees."""

import contextlib
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestra.config.schema import Params, parse_params
from orchestra.errors import ConfigError
from orchestra.files import atomic
from orchestra.files.yaml import load_yaml, parse_yaml

IN_FORCE = ".state/params.in_force.json"
"""params.yaml as it was before a run's own assignments, and as they made it."""
COMMA = re.compile(r",(?![^\[{]*[\]}])")


def apply(file: Path, assignments: Sequence[str]) -> list[str]:
    """Write the assignments into `file`; returns a line per changed value.

    Nothing is written unless every key exists and the whole file stays valid (`ConfigError`).
    """
    text, _, changed = _edited(file, assignments)
    if changed:
        atomic.write_text(file, text)
    return changed


def effective(file: Path, assignments: Sequence[str]) -> Params:
    """What `file` holds with the assignments, for once: nothing is written. Raises `ConfigError` as `apply` does."""
    return _edited(file, assignments)[1]


@contextlib.contextmanager
def in_force(root: Path, assignments: Sequence[str]) -> Iterator[list[str]]:
    """The assignments hold in params.yaml while the block lasts, since DVC reads that file; yields a line per change.

    What a killed block left in force is undone first. Values that a person changed meanwhile stay as they are.
    """
    undo(root)
    file, kept = root / "params.yaml", root / IN_FORCE
    before = file.read_text(encoding="utf-8")
    after, _, changed = _edited(file, assignments) if assignments else (before, None, [])
    if changed:
        names = [assignment.partition("=")[0].strip() for assignment in assignments]
        atomic.write_text(kept, json.dumps({"before": before, "after": after, "names": names}))
        atomic.write_text(file, after)
    try:
        yield changed
    finally:
        undo(root)


def undo(root: Path) -> None:
    """Take what `in_force` wrote out of params.yaml again; nothing when there is nothing to undo."""
    kept, file = root / IN_FORCE, root / "params.yaml"
    if not kept.is_file():
        return
    told = json.loads(kept.read_text(encoding="utf-8"))
    now = file.read_text(encoding="utf-8")
    if now == told["after"]:
        atomic.write_text(file, told["before"])
    elif now != told["before"]:
        # A person edited the file meanwhile: only what still has the value of the run goes back.
        documents = [parse_yaml(text) for text in (told["before"], told["after"], now)]
        values = {name: [_at(document, name) for document in documents] for name in told["names"]}
        back = [f"{name}={json.dumps(old)}" for name, (old, new, present) in values.items() if present == new]
        apply(file, back)
    kept.unlink()


def _at(document: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def points(assignments: Sequence[str]) -> list[list[str]]:
    """Every combination of `a=1,2,3` as assignments of one value each; a comma within brackets parts nothing."""
    choices = []
    for assignment in assignments:
        name, equals, values = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} has no =", where="--set", fix="write --set section.key=1,2,3")
        choices.append([f"{name.strip()}={value.strip()}" for value in COMMA.split(values)])
    return [list(chosen) for chosen in itertools.product(*choices)]


def _edited(file: Path, assignments: Sequence[str]) -> tuple[str, Params, list[str]]:
    """The new text, the parameters in it, and a line per changed value."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    # ruamel would turn `base: null` into `base:`.
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    try:
        wanted = _copy(load_yaml(file, if_missing="run from the repository root"))  # in bounds before ruamel reads it
        document = yaml.load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(file), fix="fix the file") from None
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"not YAML: {error}", where=str(file), fix="fix the syntax") from None
    changed = []
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} has no =", where="--set", fix="write --set section.key=value")
        holder, key = _find(document, dotted.strip(), file)
        plain, _ = _find(wanted, dotted.strip(), file)
        new = _value(text)
        if not _same(plain[key], new):
            changed.append(f"{dotted.strip()}: {holder[key]} → {new}")
            holder[key], plain[key] = _quoted(new), _copy(new)
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


def _find(document: Any, dotted: str, file: Path) -> tuple[Any, str]:
    """The mapping that holds the last key of `a.b.c`, and that key."""
    *path, key = dotted.split(".")
    holder = document
    for part in path:
        holder = holder.get(part) if isinstance(holder, dict) else None
    if not isinstance(holder, dict) or key not in holder:
        raise ConfigError(f"no key {dotted}", where=str(file), fix="see that file for the keys there are")
    return holder, key


def _value(text: str) -> Any:
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a YAML value: {error}", where="--set", fix="quote it") from None
