"""Plays tasks of tau2-bench: workers in the package's own environment, the model behind the gateway, users recorded."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from orchestra.accounting.budget import Budget
from orchestra.errors import ConfigError, without_secrets
from orchestra.evaluation.benchmarks.base import Attempt, Question, Step
from orchestra.evaluation.benchmarks.endpoint import EndpointModel
from orchestra.evaluation.benchmarks.models import GATEWAY_MODEL, REFERENCES, ModelSettings
from orchestra.evaluation.benchmarks.models import KEY as MODEL_KEY
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.evaluation.benchmarks.tau2 import worker
from orchestra.evaluation.benchmarks.tau2.gateway import STATE, hosted
from orchestra.evaluation.benchmarks.tau2.proxy import Proxy, serving
from orchestra.system.environment import foreign, required
from orchestra.text import one_line
from orchestra.tools.experts.judging import KEY, URL, JudgeEndpoint
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Component, ToolCall

LINE = 1 << 26
"""Bytes of the longest result."""
USERS = ("model", "scripted", "solo")
TEMPERATURE = 0.0
"""Of a plain model, as the official agent sends it; its library too leaves it out for models that refuse one."""
WHY = {"user_stop": "the user ended it", "agent_stop": "the agent ended it"}


@dataclass(frozen=True)
class _Worker:
    process: asyncio.subprocess.Process
    errors: IO[bytes]
    """What it writes to stderr."""

    async def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Its result; `error` where it was killed. Raises `ConfigError` where its environment cannot run it."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps(asked).encode() + b"\n")
            await stdin.drain()
            line = await stdout.readline()
        except ConnectionError:
            line = b""
        if line.endswith(b"\n"):
            made: dict[str, Any] = json.loads(line)
            return made
        code = await self.process.wait()
        if code < 0:
            return {"error": f"signal {-code} ended its process — attempt it again: --retry-failures"}
        self.errors.seek(0)
        *_, last = [b"it said nothing", *filter(bytes.strip, self.errors)]
        what = f"its process ended: {one_line(last.decode('utf-8', 'replace'))[-300:]}"
        raise ConfigError(what, where="a worker of tau2", fix="make setup-tau2")


@dataclass
class Tau2Player:
    """A model as the agent of tau2-bench; one worker process for each attempt that runs at the same time."""

    name: str
    settings: dict[str, Any]
    root: Path
    data: Path
    agent: dict[str, Any]
    user: str
    user_model: str
    proxy: Proxy
    """In front of the user and the judge of assertions."""
    agents: Proxy | None
    """In front of an endpoint that is measured; a gateway of this process books every call by itself."""
    stack: ExitStack
    _free: list[_Worker] = field(default_factory=list)
    _all: list[_Worker] = field(default_factory=list)

    async def attempt(self, question: Question, trial: int) -> Attempt:
        """One simulation with the official reward."""
        name = f"{question.id}/{trial}"
        asked = {
            "domain": question.settings["domain"],
            "task": question.settings["task"],
            "split": "base",
            "seed": int(str(self.settings["seed"])) + trial,
            "agent": self.agent if self.agents is None else self.agent | {"url": self.agents.base(name)},
            "user": {"kind": self.user, "model": self.user_model, "url": self.proxy.base(name)},
            "max_steps": self.settings["max_steps"],
            "max_errors": self.settings["max_errors"],
            "retrieval": self.settings["retrieval"] if question.settings["domain"] == "banking_knowledge" else None,
        }
        process = self._free.pop() if self._free else await self._start()
        made = await process.ask(asked)
        if process.process.returncode is None:
            self._free.append(process)
        for proxy in filter(None, (self.proxy, self.agents)):
            if name in proxy.capped:
                raise proxy.capped[name]
        # What was asked is paid for, also where the simulation failed.
        made["user_usd"] = str(self.proxy.cost_usd.get(name, 0))
        if self.agents is not None:
            made["agent_usd"] = self.agents.cost_usd.get(name, 0)
        return of_simulation(made, question, trial)

    async def aclose(self) -> None:
        """End the workers, the gateway and the proxy."""
        for one in self._all:
            if one.process.returncode is None:
                one.process.kill()
                await one.process.wait()
        self.stack.close()

    async def _start(self) -> _Worker:
        python = self.root / str(self.settings["python"])
        if not python.is_file():
            raise ConfigError("the environment of tau2 is missing", where=str(python), fix="scripts/setup_tau2.sh")
        environment = {**foreign(), "TAU2_DATA_DIR": str(self.data.parent), "OPENAI_API_KEY": "none"}
        errors = self.stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # The stack closes it.
        process = await asyncio.create_subprocess_exec(
            str(python),
            str(Path(worker.__file__)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment,
            limit=LINE,
        )
        self._all.append(_Worker(process, errors))
        return self._all[-1]


def of_simulation(made: dict[str, Any], question: Question, trial: int) -> Attempt:
    """A simulation as an attempt: solved is the whole reward; one that failed has what it took until then."""
    calls = made.get("calls", [])
    attempt = Attempt(
        item=question.id,
        trial=trial,
        group=question.group,
        failure=one_line(without_secrets(made.get("error", "")))[:500],
        cost_usd=Decimal(str(made.get("agent_usd", 0))),
        latency_s=round(made.get("latency_s", 0.0), 6),
        calls={name: calls.count(name) for name in sorted(set(calls))},
        simulated=made.get("simulated", False),
        steps=tuple(_step(message) for message in made.get("messages", [])),
        details={"user_usd": made["user_usd"]},
    )
    if attempt.failure:
        return attempt
    parts = ", ".join(f"{name} {value:g}" for name, value in sorted(made["breakdown"].items()))
    why = WHY.get(made["termination"], made["termination"])
    details = {**attempt.details, "reward": made["reward"], "assertions": made["assertions"], **made["breakdown"]}
    told = {"stop": made["termination"], "solved": made["reward"] >= 1 - 1e-6, "details": details}
    return attempt.model_copy(update=told | {"why": f"{why}; {parts}" if parts else why})


def _step(message: dict[str, Any]) -> Step:
    calls = message.get("calls") or []
    call = ToolCall(name=calls[0]["name"], arguments=calls[0]["arguments"]) if calls else None
    more = f" (and {len(calls) - 1} more calls)" if len(calls) > 1 else ""
    return Step(text=f"{message['role']}: {message['content'] or ''}{more}".strip(), call=call)


def play(evaluation: Evaluation, budget: Budget, cassette: Cassette | None) -> Tau2Player:
    """The model as an agent; a checkpoint gets a gateway of its own. Raises `OrchestraError` of one line."""
    model, judge, user = evaluation.model, evaluation.judging, evaluation.user
    settings = evaluation.spec.protocol.settings
    assert judge is not None
    if user not in USERS:
        raise ConfigError(f"no user named {user}", where="--user", fix=f"one of: {', '.join(USERS)}")
    if user == "scripted" and model.model not in REFERENCES:
        fix = f"--user model or solo; scripted users go with {', '.join(REFERENCES)}"
        raise ConfigError("a scripted user cannot hold a dialogue", where="--user", fix=fix)
    needed = user == "model" and not (cassette is not None and cassette.mode == "replay")
    url = required(URL, tool=f"user {judge.model}") if needed else os.environ.get(URL, "")
    stack, agents = ExitStack(), None
    agent: dict[str, Any]
    try:
        key, asked = os.environ.get(KEY, ""), JudgeEndpoint.of(judge, model.params.world, model.root)
        said: dict[str, Any] = {"max_tokens": judge.max_output_tokens, "limit_parameter": asked.limit_parameter}
        proxy = Proxy(url, key, asked.price, budget, cassette, Component.USER, settings=asked.over, **said)
        stack.enter_context(serving(proxy))
        if model.model in REFERENCES:
            agent = {"kind": model.model}
        elif model.endpoint is not None:
            agents = stack.enter_context(serving(_agents(model, budget, cassette)))
            agent = {"kind": "endpoint", "model": model.endpoint["model"] or GATEWAY_MODEL}
            if agents.price is not None and not model.own_temperature:
                agent["temperature"] = TEMPERATURE
        else:
            address = stack.enter_context(hosted(model, budget, evaluation.folder / STATE))
            agent = {"kind": "endpoint", "url": address, "model": GATEWAY_MODEL}
        agent["deadline_s"] = model.deadline_s
    except BaseException:
        stack.close()
        raise
    (data,) = evaluation.files
    return Tau2Player(model.label, settings, evaluation.root, data, agent, user, judge.model, proxy, agents, stack)


def _agents(model: ModelSettings, budget: Budget, cassette: Cassette | None) -> Proxy:
    """In front of the endpoint; raises `ConfigError` where its price or its worst case is not known."""
    found = model.open(budget, cassette)
    assert isinstance(found, EndpointModel)
    found.check_cap()
    key, most, call_usd = os.environ.get(MODEL_KEY, ""), found.max_tokens, found.question_usd
    limits: dict[str, Any] = {"max_tokens": most, "call_usd": call_usd, "release": model.release}
    limits |= {"deadline_s": model.deadline_s, "limit_parameter": found.limit_parameter}
    return Proxy(found.url, key, found.price, budget, cassette, Component.POLICY, **limits)
