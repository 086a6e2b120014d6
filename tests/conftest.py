"""What every test shares: quiet libraries, and Hypothesis without a clock or chance, since the cores are shared."""

import gc
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile` does: a file stays with one process, but all that ask Prefect are together as one file."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = _unit
    return scheduler


def _unit(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return "prefect" if file.startswith("tests/flows/") and _asks_prefect(file) else file


@cache
def _asks_prefect(file: str) -> bool:
    """Whether tests of the file use the fixture `prefect`. Its server takes seconds to start, once in each process."""
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    return re.search(r'usefixtures\("prefect"\)|\bprefect: None', text) is not None


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
