"""An offer over the shipped catalogue and parameters."""

import pytest

from orchestra.config.schema import load_params
from orchestra.synthesis.imports.offer import Offer
from tests.support.worlds import ROOT, catalogue


@pytest.fixture(scope="session")
def offer() -> Offer:
    return Offer(catalogue(), load_params(ROOT / "params.yaml").synthesize)
