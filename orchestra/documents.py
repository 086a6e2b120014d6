"""YAML text as plain values, with one kind of error for whatever is wrong with it."""

from typing import Any

import yaml


def parse_yaml(text: str) -> Any:
    """What the text holds; raises `ValueError` that says what is wrong."""
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    # PyYAML lets through what int(), date() and the like say: `2020-99-99`, `!!bool x`, `!!timestamp x`.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"not YAML: {error}") from None
