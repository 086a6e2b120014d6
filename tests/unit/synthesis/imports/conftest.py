"""An importer over the shipped catalogue and parameters."""

import pytest

from orchestra.config.schema import load_params
from orchestra.synthesis.imports.importer import ExampleImporter
from tests.support.worlds import ROOT, catalogue


@pytest.fixture(scope="session")
def importer() -> ExampleImporter:
    return ExampleImporter(catalogue(), load_params(ROOT / "params.yaml").synthesize)
