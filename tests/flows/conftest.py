"""A real Prefect API on a database of its own, started once; every test has its own workspace."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestra.system.processes import port_busy, stop_services
from tests.flows.workspace import Workspace, make


def _port() -> int:
    """A port below those that the system hands out: the other worker's servers cannot take it before Prefect does."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return next(port for port in range(20_000 + 100 * worker, 32_768) if not port_busy(port))


@pytest.fixture(scope="session")
def prefect() -> Iterator[None]:
    from prefect.testing.utilities import prefect_test_harness

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("prefect.testing.utilities._find_available_port", _port)
            stack.enter_context(prefect_test_harness(server_startup_timeout=240))
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
