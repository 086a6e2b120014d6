"""tau2-bench itself, in its own environment: golden and idle agents get what upstream's own replay gives them."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestra.evaluation.benchmarks.tau2 import worker
from tests.support.endpoint import answer, completion, serving

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("ORCHESTRA_TAU2_PYTHON", ROOT / ".venv-tau2/bin/python"))
DATA = Path(os.environ.get("TAU2_DATA_DIR", ROOT / ".venv-tau2/data"))
REPLAY = ROOT / "tests/support/tau2_replay.py"

pytestmark = pytest.mark.skipif(
    not PYTHON.is_file(), reason="no environment of tau2-bench: scripts/setup_tau2.sh makes .venv-tau2"
)


def replayed(domain: str, limit: int) -> list[dict[str, object]]:
    command = [str(PYTHON), str(REPLAY), worker.__file__, domain, str(limit)]
    environment = {**os.environ, "TAU2_DATA_DIR": str(DATA)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_mock_domain_gets_what_upstream_gets() -> None:
    found = replayed("mock", 0)
    assert len(found) == 20 and [row for row in found if row["ours"] != row["upstream"]] == []
    golden = Counter(row["upstream"] for row in found if row["kind"] == "golden")
    assert golden == {1.0: 8, 0.0: 2}, "two of its tasks have no golden actions that solve them"


@pytest.mark.parametrize("domain", ["telecom", "banking_knowledge"])
def test_the_first_tasks_get_what_upstream_gets(domain: str) -> None:
    rewards = [(row["kind"], row["ours"], row["upstream"]) for row in replayed(domain, 2)]
    assert rewards == 2 * [("golden", 1.0, 1.0), ("idle", 0.0, 0.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "domain, tasks", [("airline", 50), ("retail", 114), ("telecom", 114), ("banking_knowledge", 97)]
)
def test_every_base_task_gets_what_upstream_gets(domain: str, tasks: int) -> None:
    found = replayed(domain, 0)
    assert len(found) == 2 * tasks and [row for row in found if row["ours"] != row["upstream"]] == []
    assert [row["upstream"] for row in found if row["kind"] == "golden"] == [1.0] * tasks
    idle = [row["upstream"] for row in found if row["kind"] == "idle"]
    assert len(idle) == tasks and (idle == [0.0] * tasks or domain in ("airline", "retail"))


def played(*asked: dict[str, Any]) -> list[dict[str, Any]]:
    """What a worker makes of requests."""
    environment = {**os.environ, "TAU2_DATA_DIR": str(DATA), "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [str(PYTHON), worker.__file__],
        input="".join(json.dumps(one) + "\n" for one in asked),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_named_judge_is_asked_about_assertions_and_one_that_fails_leaves_calls_and_seconds() -> None:
    results = [{"expectedOutcome": "task", "reasoning": "it did", "metExpectation": True}]
    verdicts = ["no JSON", json.dumps({"results": results})]
    told = {"cost_usd": "0.25", "latency_s": 2.0, "tool_calls": [{"name": "gpt-5"}]}

    def reply(request: dict[str, Any]) -> Any:
        if request["model"] == "tested-1":
            return (200, answer("Done.") | {"orchestra": told}, 0)
        return (200, completion(request, verdicts.pop()), 0)

    with serving(reply) as double:
        user = {"kind": "scripted", "model": "my-own-7b", "url": double.url}
        asked = {
            "domain": "retail", "split": "base", "task": "2", "seed": 300, "user": user,
            "agent": {"kind": "endpoint", "url": double.url, "model": "tested-1", "deadline_s": 60},
            "max_steps": 20, "max_errors": 10,
        }  # fmt: skip
        judged, failed = played(asked, asked)
    assert {request["model"] for request in double.asked} == {"tested-1", "my-own-7b"}
    assert judged["assertions"] == [{"text": "task", "met": True, "why": "it did"}] and "error" not in judged
    assert failed["error"].startswith("JSONDecodeError") and failed["calls"] == judged["calls"] != []
    assert failed["latency_s"] == judged["latency_s"] > 0 and failed["messages"] == judged["messages"]
