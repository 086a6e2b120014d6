"""An offer over the shipped catalogue and parameters."""

import pytest

from orchestra.config import load_params
from orchestra.synthesis.sources.offer import Offer
from tests.worlds import ROOT, catalogue


@pytest.fixture(scope="session")
def offer() -> Offer:
    return Offer(catalogue(), load_params(ROOT / "params.yaml").synthesize)
