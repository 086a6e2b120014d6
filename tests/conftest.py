"""What every test shares: quiet libraries, and Hypothesis without a clock or chance, since the cores are shared."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from orchestra.system.environment import lasting, quiet

quiet()
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


WHOLE = ("tests/flows/", "tests/integration/")
"""Folders whose files take minutes each, most of them in processes of their own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole flows and servers first: begun last, they would run alone while the other worker is idle."""
    items.sort(key=lambda item: not item.nodeid.startswith(WHOLE))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests live to the end: looking through those of the whole suite for garbage takes half a second."""
    with lasting():
        return (yield)


@pytest.fixture(autouse=True, scope="module")
def no_address_of_another_file() -> Iterator[None]:
    """MLflow writes the address that it is given into the environment, where the next test file would find it."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    yield
    os.environ.pop("MLFLOW_TRACKING_URI", None)


@pytest.fixture(autouse=True, scope="module")
def loaded_to_the_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """What flows and servers had loaded lives to the end too: a training looks for garbage each time it begins."""
    yield
    if request.node.nodeid.startswith(WHOLE):
        gc.collect()
        gc.freeze()
