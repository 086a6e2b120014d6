"""tau2-bench's side of ours: the proxy that records and caps, the adapter's messages, and what a result becomes."""

import asyncio
import json
import math
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import total
from orchestra.errors import BudgetError, ConfigError
from orchestra.evaluation.benchmarks.base import Question
from orchestra.evaluation.benchmarks.models import KEY as MODEL_KEY
from orchestra.evaluation.benchmarks.models import ModelSettings
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.evaluation.benchmarks.tau2 import player, worker
from orchestra.evaluation.benchmarks.tau2.gateway import hosted
from orchestra.evaluation.benchmarks.tau2.player import of_simulation, play
from orchestra.evaluation.benchmarks.tau2.proxy import Proxy
from orchestra.evaluation.benchmarks.tau2.proxy import serving as proxying
from orchestra.evaluation.benchmarks.tau2.worker import (
    GO_ON,
    SORRY,
    AgentEndpoint,
    GoldenAgent,
    IdleAgent,
    Script,
    WholeScript,
    answer_of,
)
from orchestra.files.jsonl import read_jsonl
from orchestra.serving.mcp_server import InProcess
from orchestra.serving.records.telemetry import TRACES
from orchestra.serving.shared.database import STORE, Database
from orchestra.serving.shared.keys import Keys
from orchestra.tools.experts.judging import URL
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.types import Charge, Component, Price
from tests.support.benchmarks import evaluation
from tests.support.endpoint import Double, answer, serving
from tests.support.serving_world import backend, params, workspace

PRICE = Price(input_per_million=Decimal(2), output_per_million=Decimal(10))
CALLS = [{"id": "c1", "type": "function", "function": {"name": "reset", "arguments": "{}"}}]
BODY: dict[str, Any] = {
    "model": "user-1",
    "messages": [{"role": "user", "content": "hello"}],
    "max_completion_tokens": 9,
}


def post(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def proxy(double: Double | None, folder: Path, mode: Mode = "auto", cap: str = "1") -> Proxy:
    budget = Budget(folder / f"ledger-{mode}.jsonl", Decimal(cap))
    url = "" if double is None else double.url
    return Proxy(url, "sk-user-secret", PRICE, budget, Cassette(folder / "tape.jsonl", mode), Component.USER)


def test_a_users_calls_are_recorded_whole_and_replayed_for_nothing(tmp_path: Path) -> None:
    with serving([(200, answer(None, tool_calls=CALLS), 0)]) as double, proxying(proxy(double, tmp_path)) as asked:
        first = post(asked.base("mock/t1/0"), BODY)
        assert first[0] == 200 and first[1]["choices"][0]["message"]["tool_calls"] == CALLS
        assert double.keys == ["Bearer sk-user-secret"]
        spent = asked.budget.by_component()[Component.USER]
        assert spent.cost_usd == asked.budget.spent_usd > 0
    assert "sk-user-secret" not in (tmp_path / "tape.jsonl").read_text()
    with proxying(proxy(None, tmp_path, "replay")) as again:
        assert post(again.base("mock/t1/0"), BODY) == first
        assert again.budget.spent_usd == 0
        # Another attempt is another asking: it was never recorded.
        status, said = post(again.base("mock/t1/1"), BODY)
        assert status == 400 and "no recorded reply" in said["error"]["message"]
        assert {name: type(why) for name, why in again.capped.items()} == {"mock/t1/1": ConfigError}


@pytest.mark.parametrize("path", ["/a/0/v1", "//a/0/v1", "/wrong/a/0/v1", "/%C3%BC/a/0/v1", ""])
def test_who_does_not_know_its_address_spends_nothing(path: str, tmp_path: Path) -> None:
    with serving([(200, answer("hi"), 0)]) as double, proxying(proxy(double, tmp_path)) as asked:
        body = urllib.request.Request(f"http://127.0.0.1:{asked.server_port}{path}/chat/completions", b"{}")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(body, timeout=10)
        assert double.asked == [] and asked.budget.spent_usd == 0
        assert post(asked.base("a/0"), BODY)[0] == 200


def test_the_cap_stops_users_before_they_are_asked(tmp_path: Path) -> None:
    with serving([(200, answer("hi"), 0)]) as double, proxying(proxy(double, tmp_path, cap="0.0001")) as asked:
        status, said = post(asked.base("a/0"), BODY)
        assert status == 400 and "could cost" in said["error"]["message"] and double.asked == []
        assert {name: type(why) for name, why in asked.capped.items()} == {"a/0": BudgetError}


def test_an_endpoint_that_is_down_is_no_reply(tmp_path: Path) -> None:
    with serving([(503, "down", 0)]) as double, proxying(proxy(double, tmp_path)) as asked:
        assert post(asked.base("a/0"), BODY)[0] == 503
        assert not asked.capped and asked.budget.spent_usd == 0


@pytest.mark.parametrize(
    "status, reply",
    [
        (0, None),
        (504, b"<html>"),
        (200, b"{"),
        (200, [1]),
        (200, {"choices": [{"message": {"content": "x"}}]}),
        (200, answer("x") | {"usage": {"prompt_tokens": -1, "completion_tokens": 5}}),
        (200, answer("x") | {"usage": [3]}),
    ],
    ids=["lost", "a proxy's timeout", "cut", "a list", "no tokens", "negative tokens", "another form"],
)
def test_what_a_reply_cost_is_the_worst_case_where_it_is_not_known(tmp_path: Path, status: int, reply: Any) -> None:
    body = {name: value for name, value in BODY.items() if name != "max_completion_tokens"}
    with serving([(status, reply, 0)]) as double, proxying(proxy(double, tmp_path, cap="0.1")) as asked:
        for _ in range(4):
            post(asked.base("a/0"), body)
        # 4096 tokens and the request cost 0.042 USD at most: the cap has room for two of them.
        assert len(double.asked) == 2 and isinstance(asked.capped["a/0"], BudgetError)
        assert double.asked[0]["max_completion_tokens"] == 4096
        assert Decimal("0.08") < asked.budget.spent_usd < Decimal("0.1")


def test_a_request_gets_a_limit_as_its_provider_names_it_and_loses_what_settings_leave_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body, budget = {"model": "m", "messages": []}, Budget(tmp_path / "l", None)
    long = answer("x") | {"usage": {"prompt_tokens": 9, "completion_tokens": 8}}
    with serving([(200, long, 0)]) as double:
        said: dict[str, Any] = {"limit_parameter": "max_tokens", "settings": {"temperature": None}}
        made = Proxy(double.url, "", PRICE, budget, None, Component.USER, max_tokens=7, **said)
        with proxying(made) as asked:
            post(asked.base("a/0"), {**body, "temperature": 0})
    assert double.asked == [body | {"max_tokens": 7}] and "its limit was 7" in caplog.text


def test_calls_under_way_are_waited_for_before_the_cap_ends_a_simulation(tmp_path: Path) -> None:
    body = {**BODY, "max_completion_tokens": 4096}
    with (
        serving([(200, answer("x"), 0.05)]) as double,
        proxying(proxy(double, tmp_path, cap="0.05")) as asked,
        ThreadPoolExecutor(4) as pool,
    ):
        found = list(pool.map(lambda n: post(asked.base(f"a/{n}"), body)[0], range(4)))
    assert found == [200] * 4 and not asked.capped


@pytest.mark.parametrize("status", [0, 500, 502])
def test_a_gateway_that_loses_a_reply_is_booked_at_what_it_may_spend(tmp_path: Path, status: int) -> None:
    told = answer("x") | {"orchestra": {"cost_usd": "0.25"}}
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
    with serving([(200, told, 0), (status, {}, 0)]) as double:
        made = Proxy(double.url, "", None, budget, None, Component.POLICY, call_usd=Decimal("0.4"))
        with proxying(made) as asked:
            found = [post(asked.base("telecom/[a b]|c/0"), BODY)[0] for _ in range(3)]
    assert found == [200, status or 502, 400] and double.asked[0]["budget_usd"] == "0.4" and len(double.asked) == 2
    assert budget.spent_usd == made.cost_usd["telecom/[a b]|c/0"] == Decimal("0.65")


def task() -> Any:
    named = [("assistant", "find"), ("user", "restart"), ("assistant", "close")]
    actions = [SimpleNamespace(requestor=who, name=name, arguments={"n": 1}) for who, name in named]
    return SimpleNamespace(evaluation_criteria=SimpleNamespace(actions=actions, communicate_info=["42"]))


def called(said: dict[str, Any]) -> str | None:
    message = said["choices"][0]["message"]
    said_or_called: str | None = (
        message["tool_calls"][0]["function"]["name"] if message.get("tool_calls") else message["content"]
    )
    return said_or_called


def test_golden_actions_wait_for_the_users_and_end_with_what_must_be_told() -> None:
    script = Script(task())
    golden = GoldenAgent(task(), script)
    assert called(golden([], [], False)) == "find"
    assert called(golden([], [], False)) == GO_ON
    assert script.next("user").name == "restart"
    assert [called(golden([], [], False)) for _ in range(3)] == ["close", "42", GO_ON]
    alone = GoldenAgent(task(), WholeScript(task()))
    assert [called(alone([], [], True)) for _ in range(4)] == ["find", "restart", "close", "done"]
    assert called(IdleAgent()([], [], True)) == "done" and "sorry" in str(called(IdleAgent()([], [], False)))


def test_the_agent_sends_the_domains_tools_as_the_callers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    tools = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
    messages = [{"role": "user", "content": "x"}]
    with serving([(200, answer(None, tool_calls=CALLS), 0)]) as double:
        said = AgentEndpoint(double.url, "gpt-5", "sk-model", 301, 10)(messages, tools, True)
        # Our gateway's model chooses by itself whether it calls.
        AgentEndpoint(double.url, "orchestrator", "", 301, 10)(messages, tools, True)
        # It answers a user, and a solo task begins without one.
        for name in ("gpt-5", "orchestrator"):
            AgentEndpoint(double.url, name, "", 301, 10)([{"role": "system", "content": "a ticket"}], tools, True)
    assert called(said) == "reset" and double.keys[0] == "Bearer sk-model"
    assert double.asked[0]["tools"] == tools and double.asked[0]["tool_choice"] == "required"
    assert double.asked[1]["tools"] == tools and "tool_choice" not in double.asked[1]
    roles = [[message["role"] for message in request["messages"]] for request in double.asked]
    assert roles == [["user"], ["user"], ["system"], ["system", "user"]]


def test_the_text_beside_tool_calls_stays_for_the_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tau2", "tau2.data_model", "tau2.data_model.message"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("AssistantMessage", "ToolCall"):
        monkeypatch.setattr(sys.modules["tau2.data_model.message"], name, SimpleNamespace, raising=False)
    both, calls = answer_of(answer("It costs 42.", tool_calls=CALLS)), answer_of(answer(None, tool_calls=CALLS))
    assert (both.content, [call.name for call in both.tool_calls]) == ("It costs 42.", ["reset"])
    assert (calls.content, len(calls.tool_calls)) == (None, 1)
    assert (answer_of(answer(None)).content, answer_of(answer(None)).tool_calls) == (SORRY, None)


def test_a_simulation_becomes_an_attempt_with_the_official_reward() -> None:
    question = Question(id="retail/7", messages=(), question="retail/7", group="retail")
    made = {
        "reward": 0.0, "breakdown": {"DB": 1.0, "NL_ASSERTION": 0.0}, "termination": "user_stop", "agent_usd": 0.25,
        "user_usd": "0.01", "assertions": [], "latency_s": 2.0, "calls": ["gpt-5", "gpt-5"], "simulated": False,
        "messages": [
            {"role": "assistant", "content": None, "calls": [{"name": "find", "arguments": {"id": 1}}]},
            {"role": "tool", "content": "found"},
        ],
    }  # fmt: skip
    attempt = of_simulation(made, question, 2)
    assert (attempt.solved, attempt.trial, attempt.cost_usd) == (False, 2, Decimal("0.25"))
    assert attempt.why == "the user ended it; DB 1, NL_ASSERTION 0" and attempt.calls == {"gpt-5": 2}
    assert attempt.steps[0].call is not None and attempt.steps[0].call.name == "find"
    assert attempt.details == {"user_usd": "0.01", "reward": 0.0, "assertions": [], "DB": 1.0, "NL_ASSERTION": 0.0}
    assert of_simulation(made | {"reward": 1.0}, question, 0).solved
    unscored = of_simulation({**made, "error": "JSONDecodeError: line 1"}, question, 0)
    assert (unscored.solved, unscored.failure) == (None, "JSONDecodeError: line 1"), "a failure is no score"
    assert (unscored.calls, unscored.latency_s, unscored.steps) == (attempt.calls, 2.0, attempt.steps)


WORKER = """#!{python}
import json, os, runpy, signal, sys
if os.path.exists(__file__ + ".broken"):
    import tau3
worker = runpy.run_path(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    told = asked["agent"]
    agent = worker["AgentEndpoint"](told["url"], told["model"], "", 300, told["deadline_s"], told.get("temperature"))
    try:
        told = [agent([{{"role": "user", "content": "x"}}], [], False) for _ in range(4)]
        if asked["task"] == "broken":
            raise KeyError("a tool of the domain")
        if asked["task"] == "1" and os.path.exists(__file__ + ".killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        usd = sum(float((one.get("orchestra") or {{}}).get("cost_usd") or 0) for one in told)
        made = {{"reward": 1.0, "breakdown": {{}}, "termination": "user_stop", "agent_usd": usd}}
        made |= {{"assertions": [], "messages": [], "latency_s": 0.0, "calls": [], "simulated": False}}
    except Exception as error:
        made = {{"error": repr(error)}}
    print(json.dumps(made), flush=True)
"""
"""In place of the package: an agent of four calls."""


def dialogues(root: Path, url: str, **more: Any) -> Evaluation:
    """Three tasks for a worker that needs no package."""
    for domain, ids in {"airline": ["[a b]|0", "1", "broken"], "retail": [], "telecom": [], "mock": []}.items():
        folder = root / "tau2/domains" / domain
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tasks.json").write_text(json.dumps([{"id": name} for name in ids]))
        (folder / "split_tasks.json").write_text(json.dumps({"base": ids}))
    (root / "tau2/domains/banking_knowledge/tasks").mkdir(parents=True, exist_ok=True)
    python = root / ".venv-tau2/bin/python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(WORKER.format(python=sys.executable))
    python.chmod(0o755)
    return evaluation("tau2", root / "tau2", root, url, user="solo", **more)


def booked(made: Evaluation) -> Decimal:
    return total(read_jsonl(made.folder / "ledger.jsonl", Charge))


@pytest.fixture
def all_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.evaluation.benchmarks.tau2.loader.ALONE", ("airline",))
    monkeypatch.setattr("orchestra.evaluation.benchmarks.tau2.loader.TaskRow.solo", True)


@pytest.mark.usefixtures("all_alone")
def test_an_endpoint_is_capped_and_booked_at_its_price_also_where_a_simulation_fails(tmp_path: Path) -> None:
    reply = answer("x") | {"usage": {"prompt_tokens": 4000, "completion_tokens": 60}}
    with serving([(200, reply, 0)]) as double:
        made = dialogues(tmp_path, double.url, concurrency=2)
        made.attempt(made.shards)
        first, second, broken = made.attempts()
        assert first.solved and second.solved and "a tool of the domain" in broken.failure
        assert first.cost_usd == second.cost_usd == broken.cost_usd > 0
        assert booked(made) == 3 * first.cost_usd and {one["max_completion_tokens"] for one in double.asked} == {64}

        again = replace(dialogues(tmp_path / "again", double.url), cap_usd=first.cost_usd, concurrency=1)
        before = len(double.asked)
        with pytest.raises(BudgetError, match="are spent"):
            again.attempt(again.shards)
        assert 0 < len(double.asked) - before < 8 and 0 < booked(again) <= first.cost_usd
        with pytest.raises(ConfigError, match="the model's price is unknown — name its row of the price book: --price"):
            replace(again, model=replace(again.model, price=None)).attempt(again.shards)


@pytest.mark.usefixtures("all_alone")
@pytest.mark.parametrize("name, sent", [("tested-1", {0.0}), ("o3-mini-2025-01-31", {None})])
def test_a_plain_model_is_asked_at_temperature_0_where_it_takes_one(tmp_path: Path, name: str, sent: set[Any]) -> None:
    with serving([(200, answer("x"), 0)]) as double:
        made = dialogues(tmp_path, double.url, limit=1)
        made = replace(made, model=replace(made.model, model=f"{name}@{double.url}"))
        made.attempt(made.shards)
    assert {one.get("temperature") for one in double.asked} == sent


@pytest.mark.usefixtures("all_alone")
def test_an_answer_may_take_as_long_as_the_deadline_says(tmp_path: Path) -> None:
    with serving([(200, answer("x"), 0.6)]) as double:
        made = dialogues(tmp_path, double.url, limit=1)
        late = replace(made, model=replace(made.model, deadline_s=0.3))
        late.attempt(late.shards)
    (attempt,) = made.attempts()
    assert "HTTP 502: " in attempt.failure and "timed out" in attempt.failure


def test_the_worker_waits_a_little_longer_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    assert worker.SPARE_S > 0
    monkeypatch.setattr(worker, "SPARE_S", 0.3)
    with serving([(200, answer("x"), 0.4)]) as double:
        assert AgentEndpoint(double.url, "orchestrator", "", 0, 0.3)(BODY["messages"], [], False)
        with pytest.raises(TimeoutError):
            AgentEndpoint(double.url, "orchestrator", "", 0, 0.05)(BODY["messages"], [], False)


def test_a_checkpoint_and_an_endpoint_have_the_models_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def at_home(*_: Any) -> Iterator[str]:
        yield "http://127.0.0.1:9/v1"

    monkeypatch.setattr(player, "hosted", at_home)
    made, budget = dialogues(tmp_path, "http://127.0.0.1:9/v1"), Budget(tmp_path / "ledger.jsonl", None)
    (tmp_path / "models/grpo").mkdir(parents=True)
    (tmp_path / "models/grpo/config.json").write_text("{}")
    for name in (str(tmp_path / "models/grpo"), made.model.model):
        one = replace(made, model=replace(made.model, model=name, deadline_s=1234.0))
        opened = play(one, budget, None)
        asyncio.run(opened.aclose())
        assert opened.agent["deadline_s"] == 1234
        assert opened.agents is None or opened.agents.deadline_s == 1234
    assert opened.agents is not None


@pytest.mark.usefixtures("all_alone")
def test_another_gateway_is_booked_call_by_call_within_what_a_call_may_spend(tmp_path: Path) -> None:
    told = answer("x") | {"orchestra": {"cost_usd": "0.25"}}
    with serving([(200, told, 0)]) as double:
        made = dialogues(tmp_path, double.url, concurrency=1)
        model = replace(made.model, model=double.url, price=None)
        made = replace(made, model=model, cap_usd=Decimal("2.5"))
        with pytest.raises(ConfigError, match=r"no known worst case — add --question-usd"):
            made.attempt(made.shards)
        made = replace(made, model=replace(model, question_usd=Decimal("0.3")))
        with pytest.raises(BudgetError, match="are spent"):
            made.attempt(made.shards)
        assert {one["budget_usd"] for one in double.asked} == {"0.3"}
    assert [one.cost_usd for one in made.attempts()] == [Decimal(1)] * 2 and booked(made) == Decimal("2.25")


@pytest.mark.usefixtures("all_alone")
def test_a_release_during_an_evaluation_ends_it_and_a_replay_is_of_one_release(tmp_path: Path) -> None:
    def told(version: str) -> tuple[int, Any, float]:
        return (200, answer("x") | {"orchestra": {"cost_usd": "0.1", "version": version}}, 0)

    tape = ("auto", str(tmp_path / "tape.jsonl"))
    with serving([*[told("3")] * 6, told("4")]) as double:
        double.health = (200, {"fingerprint": "f3", "version": "3"})
        made = dialogues(tmp_path, double.url, concurrency=1, tape=tape)
        made = replace(made, model=replace(made.model, model=double.url, price=None))
        with pytest.raises(ConfigError, match="it answers with version 4, and version 3 is measured"):
            made.attempt(made.shards)
        assert len(double.asked) == 7 and len(made.attempts()) == 1 and booked(made) == Decimal("0.7")
        double.health = (200, {"fingerprint": "f4", "version": "4"})
        other = replace(made, model=replace(made.model), limit=1)
        other.attempt(other.shards)
        assert len(double.asked) == 11, "another release is asked by itself"


@pytest.mark.usefixtures("all_alone")
def test_why_an_endpoint_refuses_stands_in_the_failure_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODEL_KEY, "sk-tested-secret")
    refusal = {"error": {"message": "the prompt of sk-tested-secret is too long"}}
    with serving([(400, refusal, 0)]) as double:
        made = dialogues(tmp_path, double.url, limit=1)
        made.attempt(made.shards)
    (attempt,) = made.attempts()
    assert "HTTP 400: " in attempt.failure and "is too long" in attempt.failure
    assert "sk-tested-secret" not in attempt.failure


@pytest.mark.usefixtures("all_alone")
def test_a_killed_worker_is_a_failure_to_try_again_and_its_calls_are_paid_for(tmp_path: Path) -> None:
    with serving([(200, answer("x"), 0)]) as double:
        made = dialogues(tmp_path, double.url, limit=2, concurrency=1)
        mark = tmp_path / ".venv-tau2/bin/python.killed"
        mark.touch()
        made.attempt(made.shards)
        first, killed = made.attempts()
        assert first.solved and killed.failure == "signal 9 ended its process — attempt it again: --retry-failures"
        assert killed.cost_usd == first.cost_usd > 0
        mark.unlink()
        assert [made.journal.forget_failures(shard) for shard in made.shards] == [1] and made.attempt(made.shards) == 1
    assert [one.solved for one in made.attempts()] == [True, True]


@pytest.mark.usefixtures("all_alone")
def test_an_environment_that_cannot_run_the_worker_ends_it_with_the_cause(tmp_path: Path) -> None:
    made = dialogues(tmp_path, "http://127.0.0.1:9/v1")
    (tmp_path / ".venv-tau2/bin/python.broken").touch()
    with pytest.raises(ConfigError, match=r"ended: ModuleNotFoundError: No module named 'tau3' — make setup-tau2"):
        made.attempt(made.shards)
    assert made.attempts() == []


def test_a_program_that_was_killed_while_it_waits_leaves_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving([(200, answer("x"), 0.3)]) as double, proxying(proxy(double, tmp_path)) as asked:
        with pytest.raises(TimeoutError):
            address = f"{asked.base('a/0')}/chat/completions"
            urllib.request.urlopen(urllib.request.Request(address, json.dumps(BODY).encode()), timeout=0.05)
        until = time.monotonic() + 5
        while not asked.budget.spent_usd and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)
    assert asked.budget.spent_usd > 0 and capsys.readouterr().err == ""


def test_a_checkpoints_gateway_needs_no_key_of_the_workspace_and_leaves_it_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, state = workspace(tmp_path / "workspace"), tmp_path / "evaluation"
    Keys(Database(root / STORE)).create("somebody")
    scripted = InProcess(backend(tmp_path))
    monkeypatch.setattr(InProcess, "load", lambda *_: scripted)
    model, budget = ModelSettings(root, params(), "models/grpo"), Budget(tmp_path / "ledger.jsonl", None)
    (root / "models/grpo").mkdir(parents=True)
    (root / "models/grpo/config.json").write_text("{}")
    with hosted(model, budget, state) as url:
        status, said = post(url, {"model": "orchestrator", "messages": [{"role": "user", "content": "what is 2+3?"}]})
    assert (status, said["choices"][0]["message"]["content"]) == (200, "5")
    assert scripted.backend.expert_wait_s == math.inf
    assert not (root / TRACES).exists() and any((state / TRACES).iterdir())


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    made = replace(evaluation("tau2", tmp_path, tmp_path), user="scripted")
    budget = Budget(tmp_path / "ledger.jsonl", None)

    def open_(one: Evaluation) -> None:
        player = play(one, budget, None)
        question = Question(id="mock/t1", messages=(), question="", settings={"domain": "mock", "task": "t1"})

        async def attempted() -> None:
            try:
                await player.attempt(question, 0)
            finally:
                await player.aclose()

        asyncio.run(attempted())

    with pytest.raises(ConfigError, match="scripted user cannot hold a dialogue"):
        open_(made)
    with pytest.raises(ConfigError, match="one of: model, scripted, solo"):
        open_(replace(made, user="other"))
    with pytest.raises(ConfigError, match="ORCHESTRA_JUDGE_URL is not set"):
        open_(replace(made, user="model"))
    with pytest.raises(ConfigError, match=r"the environment of tau2 is missing — scripts/setup_tau2\.sh"):
        open_(replace(made, model=replace(made.model, model="golden", price=None)))
