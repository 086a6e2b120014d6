"""The world that the loop is tested in."""

import pytest

from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example
from tests.support.worlds import catalogue, example, toolkit


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def paying(tools: Toolkit) -> Example:
    """A change to the mock domain."""
    box = [catalogue().domain_spec("mock", tool) for tool in tools.domain("mock").tools.values()]
    golden = ({"name": "pay_fine", "arguments": {"reader": "Brin"}},)
    return example(
        instruction="Brin pays the fine; how much is it?", answer=None, kind="database", golden_calls=golden,
        communicate=("7",), domain="mock", toolbox=box, category=Category.CHANGE,
    )  # fmt: skip
