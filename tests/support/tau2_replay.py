"""Golden and idle replays of tau2-bench, ours and upstream's own, in the package's environment; JSON lines on stdout.

`PYTHON tau2_replay.py WORKER DOMAIN LIMIT`: the worker is loaded by its path, since that environment lacks our library.
"""

import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Judge(BaseHTTPRequestHandler):
    """Says that every assertion is met: what is compared is everything else."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        expected = asked["messages"][-1]["content"].partition("expectedOutcomes:")[2].count("', '") + 1
        met = [{"expectedOutcome": str(n), "reasoning": "", "metExpectation": True} for n in range(expected)]
        message = {"role": "assistant", "content": json.dumps({"results": met})}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        said = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"], "usage": usage}
        data = json.dumps(said | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def upstream(domain: str, task: Any, env_kwargs: dict[str, Any], golden: bool) -> float:
    """What the official evaluator gives for the golden actions taken in the environment itself, or for none."""
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
    from tau2.data_model.simulation import SimulationRun
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.registry import registry
    from tau2.user.user_simulator_base import STOP

    start, criteria = task.initial_state, task.evaluation_criteria
    history = list((start.message_history if start else None) or [])
    environment = registry.get_env_constructor(domain)(**env_kwargs)
    environment.set_state(
        initialization_data=start.initialization_data if start else None,
        initialization_actions=start.initialization_actions if start else None,
        message_history=history,
    )
    messages: list[Any] = list(history)
    for action in ((criteria.actions if criteria else None) or []) if golden else []:
        call = ToolCall(id=action.action_id, name=action.name, arguments=action.arguments, requestor=action.requestor)
        make: Any = AssistantMessage if action.requestor == "assistant" else UserMessage
        messages += [make(role=action.requestor, content=None, tool_calls=[call]), environment.get_response(call)]
        environment.sync_tools()
    told = " ".join((criteria.communicate_info if criteria else None) or []) if golden else ""
    messages += [AssistantMessage(role="assistant", content=told or "-"), UserMessage(role="user", content=STOP)]
    run = SimulationRun(
        id="1", task_id=task.id, start_time="", end_time="", duration=0, termination_reason="user_stop",
        messages=messages,
    )  # fmt: skip
    found = evaluate_simulation(run, task, EvaluationType.ALL, False, domain, env_kwargs=env_kwargs)
    return float(found.reward)


def both(worker: Any, domain: str, task: Any, kind: str) -> dict[str, Any]:
    """Our reward and upstream's; an error stands in for one."""
    from tau2.data_model.simulation import TextRunConfig
    from tau2.runner.build import _build_env_kwargs

    retrieval = "bm25" if domain == "banking_knowledge" else None
    asked = {
        "domain": domain, "split": "base", "task": task.id, "seed": 300, "agent": {"kind": kind},
        "user": {"kind": "scripted", "url": os.environ["OPENAI_API_BASE"]}, "max_steps": 200, "max_errors": 10,
        "retrieval": retrieval,
    }  # fmt: skip
    made: dict[str, Any] = {"domain": domain, "task": task.id, "kind": kind}
    kwargs = _build_env_kwargs(TextRunConfig(domain=domain, retrieval_config=retrieval), task)

    def ours() -> float | str:
        said = worker.run(asked)
        return str(said["error"]) if "error" in said else float(said["reward"])

    rewards: dict[str, Callable[[], float | str]] = {
        "ours": ours,
        "upstream": lambda: upstream(domain, task, kwargs, kind == "golden"),
    }
    for name, reward in rewards.items():
        try:
            made[name] = reward()
        except Exception as error:  # An assertion about what is not there raises in the package itself.
            made[name] = f"{type(error).__name__}: {error}"
    return made


def main(path: str, domain: str, limit: int) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ.update(OPENAI_API_BASE=f"http://127.0.0.1:{server.server_port}/v1", OPENAI_API_KEY="none")
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    out, sys.stdout = sys.stdout, sys.stderr
    spec = importlib.util.spec_from_file_location("worker", path)
    assert spec is not None and spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    from loguru import logger

    logger.remove()
    worker.register()
    for task in worker.tasks(domain, "base")[: limit or None]:
        for kind in ("golden", "idle"):
            print(json.dumps(both(worker, domain, task, kind)), file=out, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
