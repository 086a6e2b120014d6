"""YAML text as plain values, within bounds that are checked before any value is made, with one kind of error.

Only plain spellings are values. What YAML 1.1 makes of `12:30` (750), `017` (15), `1_000`, `0x1F`, `yes` and `-0.0`,
and what a tag makes of a text, is refused: other readers of the same file, DVC among them, read something else.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor

from orchestra.errors import ConfigError

MAX_CHARACTERS = 400_000
"""Of one text: about four seconds of parsing. The largest shipped file has a tenth."""
MAX_DEPTH = 40
"""Lists and mappings inside each other."""
MAX_VALUES = 50_000
"""Values and keys, those behind an alias counted wherever it stands."""
MAX_WORD = 100
"""Characters of what may be read as a number or a date: `1:59:59…` counts in sixties, in time that grows faster."""

_APART = re.compile(r"[\t\ufeff]|[|>][-+0-9]*#|\?\s*[]}]")
"""What libyaml reads otherwise than PyYAML's own parser, or takes where that refuses: such a text is for the latter."""
_MERGE = re.compile(r"^<{7}( |$)", re.MULTILINE)
"""What git writes where two sides of a merge differ."""
_TAGS = "tag:yaml.org,2002:"
_PLAIN = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "float": re.compile(r"[-+]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"),
    "timestamp": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
}
"""Of what PyYAML reads as more than text, the spellings that mean the same to every reader."""
_NO_POINT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")


class _Strict(Composer, SafeConstructor):
    """PyYAML keeps the last of two equal keys without a word and obeys tags; this refuses both.

    Python composes the nodes whoever parses: its recursion ends with an error.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[attr-defined]
        if getattr(event, "tag", None) is not None:
            line = event.start_mark.line + 1  # type: ignore[union-attr]
            raise _RefusedError(f"line {line}: tags (!) are not taken; put a text in quotes")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and (first := seen.setdefault(key.value, line)) != line:
                raise _RefusedError(f"key {key.value!r:.60} twice, in lines {first} and {line}")
        return super().construct_mapping(node, deep)


class _Loader(_Strict, yaml.SafeLoader):
    """Parses in Python, and refuses what the parser of DVC refuses."""


class _FastLoader(_Strict, yaml.CSafeLoader):
    """Parses by libyaml, in a tenth of the time."""

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)


class _RefusedError(Exception):
    """Something that YAML has and we do not take."""


def load_yaml(path: Path, *, if_missing: str, of_dvc: bool = False) -> Any:
    """The content of a file; raises `ConfigError` of one line, which says `if_missing` where there is no such file.

    `of_dvc`: DVC wrote it, by YAML 1.2, in which `yes` and `12:30` are texts without quotes.
    """
    text = ""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
        return parse_yaml(text, of_dvc=of_dvc)
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path), fix=if_missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), fix="fix the file") from None
    except ValueError as error:
        if marks := _MERGE.search(text):
            line = text.count("\n", 0, marks.start()) + 1
            what, fix = f"line {line}: marks of a merge (<<<<<<<)", "keep one side of each pair and delete the marks"
            raise ConfigError(what, where=str(path), fix=fix) from None
        raise ConfigError(str(error), where=str(path), fix="fix the syntax") from None


def parse_yaml(text: str, *, of_dvc: bool = False) -> Any:
    """What the text holds; raises `ValueError` that says what is wrong."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"has more than {MAX_CHARACTERS} characters; write less, or put records into .jsonl")
    try:
        loader = (_Loader if _APART.search(text) else _FastLoader)(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check(node, of_dvc=of_dvc)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except _RefusedError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    # PyYAML lets through what int(), date() and the like say: `2020-99-99`, `!!bool x`, `!!timestamp x`.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"not YAML: {error}") from None


def _check(node: yaml.Node, *, of_dvc: bool) -> None:
    """Refuse what would outgrow the text; each node is visited once, however often it stands."""
    sizes: dict[int, int] = {}
    """Values of a node, by identity; 0 while it is visited."""

    def size(node: yaml.Node, depth: int) -> int:
        line = node.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise _RefusedError(f"line {line}: nested more than {MAX_DEPTH} deep")
        known = sizes.get(id(node))
        if known == 0:
            raise _RefusedError(f"line {line}: a value that holds itself")
        if known is not None:
            return known
        sizes[id(node)] = 0
        total = 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.tag == _TAGS + "merge":
                    raise _RefusedError(f"line {line}: merge keys (<<) are not taken; write the keys")
                total += size(key, depth + 1) + size(value, depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(value, depth + 1) for value in node.value)
        elif len(node.value) > MAX_WORD and node.tag != _TAGS + "str":
            raise _RefusedError(f"line {line}: a number or date of {len(node.value)} characters; put a text in quotes")
        elif not _is_plain(node) and of_dvc:
            node.tag = _TAGS + "str"
        elif not _is_plain(node):
            raise _RefusedError(
                f"line {line}: {node.value} is no plain number, date, true, false or null; put a text in quotes"
            )
        if total > MAX_VALUES:
            raise _RefusedError(f"line {line}: more than {MAX_VALUES} values, with those behind aliases")
        sizes[id(node)] = total
        return total

    size(node, 0)


def _is_plain(node: yaml.Node) -> bool:
    """Whether every reader reads the same, and no digit is lost on the way to zero or infinity."""
    kind, text = node.tag.removeprefix(_TAGS), node.value
    if kind == "str":
        return True
    if kind not in _PLAIN or not _PLAIN[kind].fullmatch(text):
        return False
    if kind not in ("int", "float"):
        return True
    digits = re.split("[eE]", text)[0]
    return math.isfinite(float(text)) and (float(text) != 0 or not (set("123456789-") & set(digits)))


def with_a_point(number: str) -> str:
    """A number such as 1e-4 as the loader reads it, 1.0e-4: to YAML 1.1 it is a text without the point."""
    return re.sub("[eE]", ".0e", number) if _NO_POINT.fullmatch(number) else number


def of_no_point(text: str) -> str:
    """What to do about a text where a number is wanted: the loader may have read it so for want of a point."""
    number = with_a_point(text)
    return "fix it" if number == text else f"write {number}: YAML reads it as a text without the point"


def keys_of(raw: Any) -> Iterator[Any]:
    """Every key of a document."""
    for inner in raw.values() if isinstance(raw, dict) else raw if isinstance(raw, list) else ():
        yield from keys_of(inner)
    if isinstance(raw, dict):
        yield from raw
