"""A real Prefect API on a database of its own, started once; every test has its own workspace."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.system.processes import stop_services
from tests.flows.workspace import Workspace, make


@pytest.fixture(scope="session")
def prefect() -> Iterator[None]:
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=240):
        yield


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A clone of this repository with the micro parameters; what it starts is ended with it."""
    workspace = make(tmp_path_factory.mktemp("workspace"))
    yield workspace
    stop_services(workspace.root)


@pytest.fixture
def plain(tmp_path: Path) -> Workspace:
    """Such a clone for one test."""
    return make(tmp_path / "workspace")
