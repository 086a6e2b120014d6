"""Runs tasks of tau2-bench 1.0.1 in its own environment: one request a line on stdin, one result a line on stdout.

Nothing of the library is imported here, since that environment lacks it: `PYTHON worker.py`, with TAU2_DATA_DIR.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

KEY, GATEWAY = "ORCHESTRA_MODEL_KEY", "orchestrator"
NAME, SOLO_NAME = "orchestra", "orchestra_solo"
GO_ON = "Please go on."
"""What is said where it is the other's turn: by a scripted participant, and to the gateway where nobody spoke yet."""
SORRY = "I am sorry, I cannot help with that."
SPARE_S = 10.0
"""Added to the deadline of an answer: the proxy before the endpoint is the first to say that it is late."""

Chat = Callable[[list[dict[str, Any]], list[dict[str, Any]], bool], dict[str, Any]]
"""Messages, tools and whether a call is required, as OpenAI's chat completions; the completion comes back."""


class AgentEndpoint:
    """An OpenAI-compatible endpoint: the gateway, or a plain model, which the official agent asks at temperature 0."""

    def __init__(
        self, url: str, model: str, key: str, seed: int, deadline_s: float, temperature: float | None = None
    ) -> None:
        self.url, self.model, self.key, self.seed, self.temperature = url.rstrip("/"), model, key, seed, temperature
        self.deadline_s = deadline_s

    def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], required: bool) -> dict[str, Any]:
        body = {"model": self.model, "messages": messages, "tools": tools, "seed": self.seed}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if required and self.model != GATEWAY:
            body["tool_choice"] = "required"  # The gateway's model chooses by itself.
        if self.model == GATEWAY and messages[-1]["role"] == "system":
            # A solo task begins with the ticket in the system prompt, and the gateway answers a user.
            body["messages"] = [*messages, {"role": "user", "content": GO_ON}]
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self.deadline_s + SPARE_S) as reply:
                said: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"HTTP {error.code}: {error.read().decode('utf-8', 'replace')}") from None
        return said


class GoldenAgent:
    """The known solution as an endpoint: each of the agent's golden actions in turn, then what must be told."""

    def __init__(self, task: Any, script: "Script") -> None:
        self.script = script
        criteria = task.evaluation_criteria
        self.told = list((criteria.communicate_info if criteria else None) or [])

    def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], required: bool) -> dict[str, Any]:
        del messages, tools
        action = self.script.next("assistant")
        if action is not None:
            return completion(calls=[(action.name, action.arguments)])
        if required:
            return completion(calls=[("done", {})])
        if self.script.over and self.told:
            told, self.told = self.told, []
            return completion(text=" ".join(told))
        return completion(text=GO_ON)


class IdleAgent:
    """Does nothing, as an endpoint: what a benchmark gives for it is the floor."""

    def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], required: bool) -> dict[str, Any]:
        del messages, tools
        return completion(calls=[("done", {})]) if required else completion(text=SORRY)


class Script:
    """Golden actions in their order, whoever takes them."""

    def __init__(self, task: Any) -> None:
        criteria = task.evaluation_criteria
        self.actions = list((criteria.actions if criteria else None) or [])

    def next(self, requestor: str | None) -> Any:
        """The next action, where it is that side's (None: either's)."""
        if self.actions and requestor in (None, self.actions[0].requestor):
            return self.actions.pop(0)
        return None

    @property
    def over(self) -> bool:
        return not self.actions


class WholeScript(Script):
    """In solo tasks the agent has the user's tools as well."""

    def next(self, requestor: str | None) -> Any:
        del requestor
        return super().next(None)


def completion(text: str | None = None, calls: list[tuple[str, dict[str, Any]]] | None = None) -> dict[str, Any]:
    """A chat completion as an endpoint would give it."""
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls or [])
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}
    return {"choices": [{"message": message, "finish_reason": "tool_calls" if made else "stop"}]}


def answer_of(said: dict[str, Any]) -> Any:
    """A completion as the benchmark's message, with its dollars; the evaluator reads the text beside tool calls too."""
    from tau2.data_model.message import AssistantMessage, ToolCall

    message = said["choices"][0]["message"]
    calls = [
        ToolCall(
            id=call["id"], name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"] or "{}")
        )
        for call in message.get("tool_calls") or []
    ]
    told = said.get("orchestra") or {}
    return AssistantMessage(
        role="assistant",
        content=message.get("content") or (None if calls else SORRY),
        tool_calls=calls or None,
        cost=float(told.get("cost_usd") or 0.0),
        usage=said.get("usage"),
        raw_data={"orchestra": told},
    )


def register() -> None:
    """Register the agent, for dialogues and for solo tasks, under its names."""
    from tau2.agent.llm_agent import LLMAgent, LLMSoloAgent
    from tau2.data_model.message import MultiToolMessage
    from tau2.registry import registry
    from tau2.utils.llm_utils import to_litellm_messages

    def asked(agent: Any, message: Any, state: Any, required: bool) -> Any:
        if isinstance(message, MultiToolMessage):
            state.messages.extend(message.tool_messages)
        elif message is not None:
            state.messages.append(message)
        tools = [tool.openai_schema for tool in agent.tools]
        return answer_of(agent.chat(to_litellm_messages(state.system_messages + state.messages), tools, required))

    class OrchestraAgent(LLMAgent):  # type: ignore[misc]  # A HalfDuplexAgent with the official system prompt.
        """Our orchestrator in a dialogue: the caller's tools are the domain's, the experts stay the gateway's."""

        def __init__(self, tools: Any, domain_policy: str, chat: Chat) -> None:
            super().__init__(tools=tools, domain_policy=domain_policy, llm="orchestra", llm_args={})
            self.chat = chat

        def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
            made = asked(self, message, state, False)
            state.messages.append(made)
            return made, state

    class OrchestraSoloAgent(LLMSoloAgent):  # type: ignore[misc]  # Solo mode asks for this very class.
        """Our orchestrator where it has the user's tools too, and a ticket in place of a user."""

        def __init__(self, tools: Any, domain_policy: str, task: Any, chat: Chat) -> None:
            super().__init__(tools=tools, domain_policy=domain_policy, task=task, llm="orchestra", llm_args={})
            self.chat = chat

        def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
            made = asked(self, message, state, True)
            if made.is_tool_call():
                made = self._check_if_stop_toolcall(made)
            state.messages.append(made)
            return made, state

    def dialogue(tools: Any, domain_policy: str, **more: Any) -> Any:
        return OrchestraAgent(tools, domain_policy, more["llm_args"]["chat"])

    def solo(tools: Any, domain_policy: str, **more: Any) -> Any:
        return OrchestraSoloAgent(tools, domain_policy, more["task"], more["llm_args"]["chat"])

    registry.register_agent_factory(dialogue, NAME)
    registry.register_agent_factory(solo, SOLO_NAME, metadata={"solo_mode": True})


def scripted_user(script: Script | None) -> Any:
    """A user without a model: takes its golden actions in turn and ends the talk; without a script it ends at once."""
    from tau2.data_model.message import ToolCall, UserMessage
    from tau2.user.user_simulator_base import STOP, HalfDuplexUser, UserState

    class GoldenUser(HalfDuplexUser):  # type: ignore[misc]
        """Needs no key; what it says is fixed."""

        def __init__(self) -> None:
            super().__init__(instructions="", tools=None)
            self.ended = 0

        def get_init_state(self, message_history: Any = None) -> Any:
            return UserState(messages=list(message_history or []), system_messages=[])

        def set_seed(self, seed: int) -> None:
            """Nothing is drawn."""

        @classmethod
        def is_stop(cls, message: Any) -> bool:
            return not message.is_tool_call() and STOP in (message.content or "")

        def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
            action = script.next("user") if script is not None else None
            if action is not None:
                call = ToolCall(id=action.action_id, name=action.name, arguments=action.arguments, requestor="user")
                return UserMessage(role="user", content=None, tool_calls=[call], cost=0.0), state
            # One more turn for the agent, after the last action, to say what must be told.
            self.ended += script is None or script.over
            text = STOP if self.ended > 1 else GO_ON
            return UserMessage(role="user", content=text, cost=0.0), state

    return GoldenUser()


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """One simulation, scored by the official evaluator; where it fails, what it did until then and `error`."""
    from tau2.data_model.simulation import TextRunConfig
    from tau2.evaluator import evaluator_nl_assertions
    from tau2.orchestrator.orchestrator import Orchestrator
    from tau2.runner.build import _build_env_kwargs, build_agent, build_environment, build_user
    from tau2.runner.simulation import run_simulation
    from tau2.user.user_simulator import DummyUser

    domain, seed = asked["domain"], int(asked["seed"])
    task = task_of(domain, asked["split"], asked["task"])
    user, solo = asked["user"], asked["user"]["kind"] == "solo"
    script = WholeScript(task) if solo else Script(task)
    agent = asked["agent"]
    chats: dict[str, Callable[[], Chat]] = {
        "golden": lambda: GoldenAgent(task, script),
        "idle": IdleAgent,
        "endpoint": lambda: AgentEndpoint(
            agent["url"],
            agent["model"],
            os.environ.get(KEY, ""),
            seed,
            agent["deadline_s"],
            agent.get("temperature"),
        ),
    }
    # The judge of assertions is the user's model. It has no address of its own: litellm reads this one.
    os.environ["OPENAI_API_BASE"] = user.get("url") or "http://127.0.0.1:9/v1"
    if user.get("model"):
        evaluator_nl_assertions.DEFAULT_LLM_NL_ASSERTIONS = f"openai/{user['model']}"
    name = SOLO_NAME if solo else NAME
    config = TextRunConfig(domain=domain, agent=name, retrieval_config=asked.get("retrieval"))
    env_kwargs = _build_env_kwargs(config, task)
    environment = build_environment(domain, solo_mode=solo, env_kwargs=env_kwargs)
    chat = chats[agent["kind"]]()
    player = build_agent(name, environment, llm_args={"chat": chat}, task=task, solo_mode=solo)
    if user["kind"] == "scripted":
        speaker = scripted_user(script if agent["kind"] == "golden" else None)
    elif solo:
        speaker = DummyUser()
    else:
        settings = {"temperature": 0.0, "api_base": user["url"], "api_key": user.get("key") or "none"}
        speaker = build_user("user_simulator", environment, task, llm=f"openai/{user['model']}", llm_args=settings)
    orchestrator = Orchestrator(
        domain=domain,
        agent=player,
        user=speaker,
        environment=environment,
        task=task,
        max_steps=asked["max_steps"],
        max_errors=asked["max_errors"],
        seed=None if user["kind"] == "scripted" else seed,
        solo_mode=solo,
    )
    try:
        return told(run_simulation(orchestrator, env_kwargs=env_kwargs))
    except Exception as error:
        return spent(orchestrator.trajectory) | {"error": f"{type(error).__name__}: {error}"}


def told(made: Any) -> dict[str, Any]:
    """A simulation as JSON: its reward with its parts, and its messages without times and ids of chance."""
    info = made.reward_info
    checks = info.nl_assertions or []
    return spent(made.messages) | {
        "reward": info.reward,
        "breakdown": {key.value: value for key, value in (info.reward_breakdown or {}).items()},
        "termination": str(getattr(made.termination_reason, "value", made.termination_reason)),
        "assertions": [{"text": one.nl_assertion, "met": one.met, "why": one.justification} for one in checks],
    }


def spent(messages: list[Any]) -> dict[str, Any]:
    """The messages, and what the gateway's answers among them took."""
    said = [orchestra(message) for message in messages]
    return {
        "agent_usd": sum(float(one.get("cost_usd") or 0.0) for one in said),
        "messages": [line(message) for message in messages],
        "latency_s": sum(one.get("latency_s") or 0.0 for one in said),
        "calls": [call["name"] for one in said for call in one.get("tool_calls") or []],
        "simulated": any(one.get("simulated") for one in said),
    }


def orchestra(message: Any) -> dict[str, Any]:
    """What the gateway said beside a message."""
    found: dict[str, Any] = (getattr(message, "raw_data", None) or {}).get("orchestra") or {}
    return found


def line(message: Any) -> dict[str, Any]:
    """One message, for people to read."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in getattr(message, "tool_calls", None) or []]
    return {"role": message.role, "content": message.content, **({"calls": calls} if calls else {})}


def task_of(domain: str, split: str, task_id: str) -> Any:
    """A task of a domain; raises `KeyError` for an unknown one."""
    return {task.id: task for task in tasks(domain, split)}[task_id]


_KEPT: dict[tuple[str, str], list[Any]] = {}


def tasks(domain: str, split: str) -> list[Any]:
    """The tasks of a domain's split; banking has none but the whole."""
    from tau2.runner.helpers import get_tasks

    if (domain, split) not in _KEPT:
        _KEPT[domain, split] = get_tasks(domain, task_split_name=None if domain == "banking_knowledge" else split)
    return _KEPT[domain, split]


def main() -> None:
    """Requests until stdin ends; an error is a result with `error`, and the worker goes on."""
    # The library writes to stdout too.
    out, sys.stdout = sys.stdout, sys.stderr
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from loguru import logger

    logger.remove()
    register()
    for request in sys.stdin:
        asked = json.loads(request)
        try:
            result = run(asked)
        except Exception as error:  # Whatever it is, the parent has to know.
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
