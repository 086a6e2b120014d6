"""Objects that a model writes: asked for by JSON schema, checked, and sent back with the reason at most twice."""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestra.errors import DataError
from orchestra.synthesis.writers.prompts import REPAIR, SYSTEM, Prompt
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.failures import ReplyError, Unusable
from orchestra.types import Message

T = TypeVar("T", bound=BaseModel)
REPAIRS = 2
MAX_TOKENS = 6_000
"""Of one reply; a table of entries is the longest."""
MAX_PROBLEMS = 5
"""Problems that one repair names, so that the model reads each."""
MAX_REASON = 1_000
"""Characters of a reason; it may quote what the model wrote."""
FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


class Writer:
    """Has a model write objects. What it writes is data: it is parsed and checked, never run."""

    def __init__(self, chat: PaidChat, *, temperature: float = 1.0) -> None:
        self.chat, self._temperature = chat, temperature

    async def write(
        self,
        kind: type[T],
        prompt: Prompt,
        values: dict[str, str],
        *,
        seed: int,
        check: Callable[[T], None] | None = None,
    ) -> T:
        """An object of `kind` that `check` does not refuse.

        Raises `DataError` with the last reason when neither the first reply nor its repairs will do, or a reply holds
        no answer, `BudgetError` when the next call could cross the cap, and `ToolError` when the endpoint fails.
        """
        messages = [
            Message(role="system", content=SYSTEM.text),
            Message(role="user", content=prompt.fill(**values)),
        ]
        schema = {"name": kind.__name__, "schema": kind.model_json_schema()}
        settings: dict[str, Any] = {
            "response_format": {"type": "json_schema", "json_schema": schema},
            "seed": seed,
            "temperature": self._temperature,
        }
        reason, name = "", f"{kind.__name__} by {self.chat.chat.model}"
        for _ in range(REPAIRS + 1):
            try:
                reply, _charge = await self.chat.ask(messages, max_tokens=MAX_TOKENS, settings=settings)
            except ReplyError as error:
                if error.unusable is Unusable.SHAPE:
                    raise
                raise DataError(error.what, where=name, fix=error.fix) from None  # It refuses this prompt alone.
            try:
                made = parse(kind, reply.text)
                if check is not None:
                    check(made)
                return made
            except DataError as error:
                reason = error.what[:MAX_REASON]
            messages += [
                Message(role="assistant", content=reply.text),
                Message(role="user", content=REPAIR.fill(reason=reason)),
            ]
        raise DataError(reason, where=f"{name}, after {REPAIRS} repairs")


def parse(kind: type[T], text: str) -> T:
    """The object that a reply holds, alone or in a code fence; raises `DataError` naming what is wrong."""
    fenced = FENCE.match(text)
    try:
        return kind.model_validate_json(fenced[1] if fenced else text)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in one['loc']) or 'the reply'}: {one['msg']} (got {one['input']!r:.80})"
            for one in error.errors()[:MAX_PROBLEMS]
        ]
        raise DataError("; ".join(problems)) from None


def as_json(value: Any) -> str:
    """A value as a prompt shows it."""
    return json.dumps(value, ensure_ascii=False)
