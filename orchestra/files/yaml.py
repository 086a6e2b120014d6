"""YAML text as plain values, with one kind of error for whatever is wrong with it."""

from typing import Any

import yaml


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
