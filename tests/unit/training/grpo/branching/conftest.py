"""The world in which choices are tried."""

import pytest

from orchestra.tools.toolkit import Toolkit
from tests.support.worlds import toolkit


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))
