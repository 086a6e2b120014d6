"""`python -m tasks.records.mlflow_server …`: `mlflow server …` as one process.

MLflow starts its web server as a child and only waits for it. Killed, it would leave that child with the port.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn


def become(command: Sequence[str], *, extra_env: Mapping[str, str], **_: object) -> NoReturn:
    """Run the command in the place of this process, under its pid."""
    os.execvpe(command[0], list(command), {**os.environ, **extra_env})


def main() -> None:
    """What `mlflow server` does with the same arguments."""
    import mlflow.server
    from mlflow.cli import cli

    # MLflow has no option for it. tests/integration/test_servers.py sees when this name is gone.
    vars(mlflow.server)["_exec_cmd"] = become
    cli(["server", *sys.argv[1:]], prog_name="mlflow")


if __name__ == "__main__":
    main()
