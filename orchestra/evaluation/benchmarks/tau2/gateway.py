"""A gateway for one checkpoint, in a thread of this process: what serves callers' tools to a benchmark."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.accounting.budget import Budget
from orchestra.errors import ServiceError
from orchestra.evaluation.benchmarks.models import ModelSettings
from orchestra.system.processes import wait_until
from orchestra.tools.toolkit import Toolkit

if TYPE_CHECKING:
    import uvicorn

START_S = 60.0
STATE = "gateway"
"""Its folder in that of an evaluation."""


@contextmanager
def hosted(model: ModelSettings, budget: Budget, state: Path) -> Iterator[str]:
    """The address, up to /v1, of a gateway on 127.0.0.1 that serves the checkpoint and books in the budget.

    `state`: a folder for its keys and traces. The workspace's would ask for a key, and drift of the callers' requests
    would count the benchmark's questions.
    """
    import uvicorn

    from orchestra.serving.app import create_app
    from orchestra.serving.gateway import Gateway
    from orchestra.serving.mcp_server import InProcess

    backend = InProcess.load(model.root, model.checkpoint, model.params).backend
    backend.toolkit = Toolkit.from_params(model.params, model.root, budget=budget)
    backend.expert_wait_s = math.inf  # No user waits: an attempt is rather late than lost.
    app = create_app(Gateway(state, backend=backend), load=False)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{_port(server, thread)}/v1"
    finally:
        server.should_exit = True
        thread.join(timeout=START_S)


def _port(server: "uvicorn.Server", thread: threading.Thread) -> int:
    if not wait_until(lambda: server.started, START_S, gone=lambda: not thread.is_alive()):
        raise ServiceError("did not start", where="the benchmark's gateway", fix="see the lines above")
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
