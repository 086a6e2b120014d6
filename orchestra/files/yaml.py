"""YAML text as plain values, with one kind of error for whatever is wrong with it."""

from pathlib import Path
from typing import Any

import yaml

from orchestra.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """PyYAML's, which keeps the last of two equal keys without a word; this one refuses them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and (first := seen.setdefault(key.value, line)) != line:
                raise _TwiceError(f"key {key.value!r:.60} twice, in lines {first} and {line}")
        return super().construct_mapping(node, deep)


class _TwiceError(Exception):
    """A mapping has a key twice."""


def load_yaml(path: Path, *, if_missing: str) -> Any:
    """The content of a file; raises `ConfigError` of one line, which says `if_missing` where there is no such file."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path), fix=if_missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), fix="fix the file") from None
    except ValueError as error:
        raise ConfigError(str(error), where=str(path), fix="fix the syntax") from None


def parse_yaml(text: str) -> Any:
    """What the text holds; raises `ValueError` that says what is wrong."""
    try:
        return yaml.load(text, _Loader)
    except _TwiceError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    # PyYAML lets through what int(), date() and the like say: `2020-99-99`, `!!bool x`, `!!timestamp x`.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"not YAML: {error}") from None
