"""Real experts: a model behind an OpenAI-compatible endpoint as a tool."""

import time

from pydantic import JsonValue

from orchestra.ledger import cost_of
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.catalogue import Entry, environment
from orchestra.tools.chat import Chat
from orchestra.types import Component


class Endpoint:
    """Asks one model at one address."""

    component = Component.EXPERT

    def __init__(self, name: str, entry: Entry, *, attempts: int = 3, backoff_s: float = 0.5) -> None:
        assert entry.base_url_env is not None and entry.endpoint_model is not None
        self._limit = {} if entry.max_output_tokens is None else {"max_completion_tokens": entry.max_output_tokens}
        self._chat = Chat(
            name,
            model=entry.endpoint_model,
            url=environment(entry.base_url_env, tool=name),
            key=environment(entry.api_key_env, tool=name) if entry.api_key_env else "",
            deadline_s=entry.deadline_s,
            attempts=attempts,
            backoff_s=backoff_s,
        )

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """Ask the question (default: the instruction and what is known so far); raises `ToolError`."""
        question = str(arguments.get("question") or "\n".join([context.instruction, *context.notes]))
        began = time.monotonic()
        reply = await self._chat.ask({"messages": [{"role": "user", "content": question}], **self._limit})
        return ToolResult(
            text=reply.text,
            usage=reply.usage,
            cost_usd=cost_of(context.price, reply.usage),
            latency_s=round(time.monotonic() - began, 3),
        )

    async def aclose(self) -> None:
        """Close the pooled connections."""
        await self._chat.aclose()
