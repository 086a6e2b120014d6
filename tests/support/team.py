"""What a team's machines share, as real servers: a store that speaks S3 and MLflow."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestra.system.processes import LOCALHOST, free_port, kill_tree, spawn
from orchestra.system.servers import answers
from tests.support.postgres import binaries, postgres
from tests.support.stores import BUCKET, KEYS, s3_server
from tests.support.waiting import soon


@dataclass(frozen=True)
class Team:
    endpoint: str
    """Of the store."""
    mlflow: str
    """Address of MLflow's server."""
    database: str
    """What holds MLflow's record: postgresql or sqlite."""


@contextlib.contextmanager
def team(folder: Path, *, proxied: bool = False) -> Iterator[Team]:
    """Both servers, MLflow's over PostgreSQL if it is here. That server gets no keys of the store, since machines write
    there themselves; `proxied`, it writes for them, over SQLite."""
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(s3_server())
        database = f"sqlite:///{folder}/mlflow.db"
        if not proxied and binaries() is not None:
            database = stack.enter_context(postgres())
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "server", "--host", LOCALHOST, "--port", str(port)]
        command += ["--workers", "1", "--backend-store-uri", database]
        command += ["--artifacts-destination", f"s3://{BUCKET}/m" if proxied else str(folder / "unused")]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MLFLOW_"))}
        env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        if proxied:
            env |= {**KEYS, "MLFLOW_S3_ENDPOINT_URL": endpoint}
        with (folder / "mlflow.log").open("w") as log:
            child = spawn(command, cwd=folder, env=env, stdout=log)
        stack.callback(kill_tree, child.pid, grace_s=3)
        url = f"http://{LOCALHOST}:{port}"
        assert soon(lambda: answers(f"{url}/health"), 300), (folder / "mlflow.log").read_text(encoding="utf-8")
        yield Team(endpoint, url, database.partition(":")[0])
