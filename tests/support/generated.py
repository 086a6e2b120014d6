"""Generated cases: the first few in every run of the tests, all of them in `make test-slow`."""

from typing import Any

import pytest


def seeds(count: int, quick: int) -> list[Any]:
    """Seeds 0 to `count`, of which those from `quick` on are slow."""
    return [pytest.param(seed, marks=() if seed < quick else pytest.mark.slow) for seed in range(count)]
