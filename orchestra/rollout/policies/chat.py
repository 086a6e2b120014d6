"""A prompted model as the orchestrator: any OpenAI-compatible chat endpoint that can call tools."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from orchestra.errors import ConfigError
from orchestra.rollout.parse import CALL_CLOSE, CALL_OPEN, format_answer, parse_turn
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing, note_used
from orchestra.rollout.render import BUDGET, tool_dict
from orchestra.system.environment import required
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import worst_usage
from orchestra.tools.experts.parameters import OutputLimit, name_refused, with_settings
from orchestra.tools.failures import EndpointError, ReplyError, Unusable
from orchestra.tools.replay.cassette import watched
from orchestra.types import Turn, Usage

if TYPE_CHECKING:
    from orchestra.tools.chat.reply import ChatReply
    from orchestra.tools.rate_limits import LimitParameter
    from orchestra.tools.toolkit import Toolkit
    from orchestra.types import Example, ToolSpec

PREFIX = "chat:"
"""How the name of such a policy begins; the name of a catalogue entry follows, such as chat:gpt-5."""
SETTINGS = "orchestrator_settings"
"""The field of an entry with what such a policy says in its requests over the entry's `settings`."""
ABOUT_TOOLS = ("parallel_tool_calls", "tool_choice")
"""Parameters that providers take beside tools only."""
MOST_NAME = 64
"""Characters of a function's name that every provider takes."""
REFUSED = re.compile("[^A-Za-z0-9_-]")
"""What some providers take in no function's name, the dot among it."""
SYSTEM = (
    "Solve the task. Call one tool at a time, and answer when you know enough. Every call costs the dollars and "
    "seconds that its description says. Ask the user where only the user can know. Reply with the answer alone."
)


class ChatPolicy(KeepsNothing):
    """One model at one endpoint, greedy unless its settings say otherwise. A turn is one call, or an answer: of calls
    that a reply asks for in parallel the first is made, and the others are neither made nor shown to the model.

    An attempt whose reply is lost, or does not say its tokens, counts at its worst, as an expert's does. Thoughts that
    do not end, and a refusal, are the model's own doing: the episode ends as at the token limit, and is wrong.
    """

    by_episode = True

    def __init__(
        self,
        name: str,
        chat: Chat,
        encode_turn: Callable[[str], list[int]],
        settings: dict[str, Any] | None = None,
        limit_parameter: LimitParameter = "max_completion_tokens",
    ) -> None:
        """`settings`: what else a request says, such as reasoning_effort; a temperature of 0 is sent by default, null
        sends none."""
        self._name, self._chat, self._encode = name, chat, encode_turn
        self._limit = OutputLimit(name, limit_parameter)
        self._settings = {"temperature": 0} | (settings or {})

    @property
    def name(self) -> str:
        return self._name

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each, all asked at the same time within the provider's limits."""
        lost: list[Usage] = []
        turns = (self._turn(c, most, lost.append) for c, most in zip(conversations, max_tokens, strict=True))
        try:
            return list(await asyncio.gather(*turns))
        except asyncio.CancelledError as given_up:
            note_used(given_up, lost)
            raise

    def worst_usage(self, conversation: Conversation, most: int) -> Usage:
        """The most tokens that a turn may be billed: of every attempt."""
        return _sum([None] * self._chat.attempts, worst_usage(self._body(conversation, most), most))

    async def _turn(self, conversation: Conversation, most: int, on_given_up: Callable[[Usage], None]) -> Generation:
        body = self._body(conversation, most)
        worst = worst_usage(body, most)
        lost: list[Usage | None] = []
        with watched() as asked:
            try:
                reply = await self._chat.ask(body, on_lost=lost.append)
            except asyncio.CancelledError:
                on_given_up(_sum(lost, worst))
                raise
            except EndpointError as error:
                self._limit.check(error.lost, most)
                if "unction tools with reasoning_effort" in error.what:  # OpenAI's from GPT-5.4 on, also by default.
                    error.advise(f"say {SETTINGS}: {{reasoning_effort: none}} in its entry")
                name_refused(error, body, SETTINGS)
                usage, seconds, replayed = _sum(error.lost, worst), error.seconds, any(asked)
                if (own := _own(error)) is not None:
                    return Generation([], [], own, usage=usage, seconds=seconds, replayed=replayed)
                return Generation([], [], "failed", usage=usage, seconds=seconds, replayed=replayed, failure=error)
        self._limit.check(reply.attempts, most)
        usage = _sum(reply.attempts, worst)
        ended: Literal["stop", "length"] = "length" if reply.cut else "stop"
        ids = self._encode(turn_text(reply, sent_names(conversation.example.toolbox)))
        return Generation(ids, [], ended, usage=usage, seconds=reply.seconds, replayed=reply.replayed)

    def _body(self, conversation: Conversation, most: int) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": list(messages(conversation)), **self._limit.of(most)}
        names = sent_names(conversation.example.toolbox)
        if tools := [function(spec, names[spec.name]) for spec in conversation.example.toolbox]:
            body["tools"] = tools
        unfit = {} if tools else dict.fromkeys(ABOUT_TOOLS)
        return with_settings(body, self._settings | unfit)


def chat_policy(
    name: str, toolkit: Toolkit, encode_turn: Callable[[str], list[int]], settings: dict[str, Any] | None = None
) -> ChatPolicy:
    """The policy `chat:ENTRY` over an entry of the toolkit's catalogue, whose settings come before `settings`; those
    for an orchestrator come first.

    Raises `ConfigError` when that is no endpoint, or its address or key is not in the environment.
    """
    expert = name.removeprefix(PREFIX)
    entry = toolkit.catalogue.entry(expert)
    if entry.implementation != "openai" or entry.base_url_env is None or entry.endpoint_model is None:
        fix = "name an entry with implementation: openai (data/catalogue/current.yaml has some)"
        raise ConfigError(f"{expert} is no model behind an endpoint", where=name, fix=fix)
    asks = toolkit.cassette is None or toolkit.cassette.mode != "replay"
    provider = toolkit.resources.provider(entry.price)
    chat = Chat(
        name,
        model=entry.endpoint_model,
        url=required(entry.base_url_env, tool=name) if asks else "",
        key=required(entry.api_key_env, tool=name) if asks and entry.api_key_env else "",
        deadline_s=entry.deadline_s,
        cassette=toolkit.cassette,
        entry=entry.fingerprint,
        provider=provider,
        own_counts=True,
    )
    said = (settings or {}) | entry.settings | entry.orchestrator_settings
    return ChatPolicy(name, chat, encode_turn, said, provider.limits.limit_parameter)


def messages(conversation: Conversation) -> Iterator[dict[str, Any]]:
    """The conversation so far in the words of the chat protocol."""
    example, names = conversation.example, sent_names(conversation.example.toolbox)
    yield {"role": "system", "content": told(example)}
    yield {"role": "user", "content": example.instruction}
    for number, turn in enumerate(conversation.turns):
        yield from _exchange(turn, f"call_{number}", names)


def told(example: Example) -> str:
    """What a prompted orchestrator is told: how to act, what the user prefers, and the budget."""
    budget = "" if example.budget_usd is None else BUDGET.format(usd=example.budget_usd)
    return "\n".join(filter(None, [SYSTEM, example.preference.words, budget]))


def sent_names(toolbox: Sequence[ToolSpec]) -> dict[str, str]:
    """The names that a provider is sent for these tools, by ours; no two tools share one. Only names that may be
    refused differ."""
    names = {spec.name: spec.name for spec in toolbox if _sent(spec.name) == spec.name}
    for spec in toolbox:
        name, number = _sent(spec.name), 1
        while spec.name not in names:
            if name not in names.values():
                names[spec.name] = name
            number += 1
            end = f"_{number}"
            name = _sent(spec.name)[: MOST_NAME - len(end)] + end
    return names


def function(spec: ToolSpec, name: str) -> dict[str, Any]:
    """A tool as an OpenAI function of this name, whose description says dollars and seconds of a call, and our name of
    the tool where it is another: preferences and messages say that one."""
    whole = tool_dict(spec)
    ours = "" if name == spec.name else f"{spec.name}: "
    offer = f"{ours}{spec.description} (about ${whole['cost_usd']} and {int(whole['latency_s'])} s a call)"
    return {"type": "function", "function": whole["function"] | {"name": name, "description": offer}}


def turn_text(reply: ChatReply, names: Mapping[str, str]) -> str:
    """A reply as the text of a turn: its first call, by our name of the tool, or its answer."""
    if not reply.calls:
        return format_answer(reply.text)
    first, ours = reply.calls[0], {sent: name for name, sent in names.items()}
    name = json.dumps(ours.get(first.name, first.name), ensure_ascii=False)
    return f'{CALL_OPEN}{{"name": {name}, "arguments": {first.arguments}}}{CALL_CLOSE}'


def _sent(name: str) -> str:
    """A name with nothing in it that a provider refuses, be it of no tool at all."""
    return REFUSED.sub("_", name)[:MOST_NAME] or "_"


def _exchange(turn: Turn, call_id: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What the model wrote in a turn, and what came back."""
    if turn.call is not None:
        name = names.get(turn.call.name) or _sent(turn.call.name)
        asked = {"name": name, "arguments": json.dumps(turn.call.arguments, ensure_ascii=False)}
        call = {"id": call_id, "type": "function", "function": asked}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call_id, "content": turn.observation or ""}
        return
    written = turn.text if turn.parse_error is not None else parse_turn(turn.text).answer
    yield {"role": "assistant", "content": written}
    if turn.observation is not None:
        yield {"role": "user", "content": turn.observation}


def _own(error: EndpointError) -> Literal["length", "refused"] | None:
    """How the model itself ended its turn; None: its endpoint failed."""
    if not isinstance(error, ReplyError) or error.own is None:
        return None
    return "refused" if error.unusable is Unusable.REFUSED else "length"


def _sum(usages: Sequence[Usage | None], unknown: Usage) -> Usage:
    known = [unknown if usage is None else usage for usage in usages]
    return Usage(
        input_tokens=sum(one.input_tokens for one in known),
        cached_input_tokens=sum(one.cached_input_tokens for one in known),
        output_tokens=sum(one.output_tokens for one in known),
    )
