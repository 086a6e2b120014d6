"""An empty database of MLflow for a workspace: a copy, since its tables take a second to make."""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestra.system.storage import MLFLOW
from tasks.platform.tracking import connect


def make_database(root: Path) -> None:
    (root / MLFLOW).parent.mkdir(exist_ok=True)
    (root / MLFLOW).write_bytes(_empty())


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # MLflow exports the database that it is pointed at: what is set before it ends with the context.
        patch.setenv("MLFLOW_TRACKING_URI", "")
        patch.delenv("MLFLOW_TRACKING_URI")
        connect(Path(folder)).search_registered_models()
        with closing(sqlite3.connect(Path(folder) / MLFLOW)) as database:
            return database.serialize()
