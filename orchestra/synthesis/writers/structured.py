"""Objects that a model writes: asked for by JSON schema, checked, and sent back with the reason at most twice."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from orchestra.config.synthesis import MAX_OUTPUT_TOKENS
from orchestra.errors import DataError
from orchestra.synthesis.writers.prompts import REPAIR, SHORTER, SYSTEM, Prompt
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.failures import ReplyError, Unusable
from orchestra.types import Message

T = TypeVar("T", bound=BaseModel)
REPAIRS = 2
MAX_PROBLEMS = 5
"""Problems that one repair names, so that the model reads each."""
MAX_REASON = 1_000
"""Characters of a reason; it may quote what the model wrote."""
FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


class Writer:
    """Has a model write objects. What it writes is data: it is parsed and checked, never run."""

    def __init__(
        self, chat: PaidChat, *, max_tokens: int = MAX_OUTPUT_TOKENS, settings: Mapping[str, JsonValue] | None = None
    ) -> None:
        """`max_tokens`: of one reply, its thoughts included. `settings`: what else a request says, over its own."""
        self.chat, self._max_tokens, self._settings = chat, max_tokens, settings or {}

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

        A reply that the token limit cut off is asked for once more, and the model is told why. Raises `DataError` with
        the last reason when neither the first reply nor its repairs will do, or a reply holds no answer, `BudgetError`
        when the next call could cross the cap, and `ToolError` when the endpoint fails.
        """
        schema = kind.model_json_schema()
        messages = [
            Message(role="system", content=SYSTEM.fill(schema=as_json(schema))),
            Message(role="user", content=prompt.fill(**values)),
        ]
        settings: dict[str, Any] = {
            "response_format": {"type": "json_schema", "json_schema": {"name": kind.__name__, "schema": schema}},
            "seed": seed,
            "temperature": 1.0,
            **self._settings,
        }
        reason, name, cuts = "", f"{kind.__name__} by {self.chat.chat.model}", 0
        for left in reversed(range(REPAIRS + 1)):
            text, cut = await self._ask(messages, settings, name)
            made: T | None = None
            try:
                made = parse(kind, text)
                if check is not None:
                    check(made)
                return made
            except DataError as error:
                reason = error.what[:MAX_REASON]
            if cut and made is None:
                cuts += 1
                if cuts > 1 or not left:
                    raise self._too_long(name)
                more = SHORTER.fill(tokens=str(self._max_tokens))
                messages[-1] = Message(role="user", content=f"{messages[-1].content}\n\n{more}")
                continue
            messages += [
                Message(role="assistant", content=text),
                Message(role="user", content=REPAIR.fill(reason=reason)),
            ]
        raise DataError(reason, where=f"{name}, after {REPAIRS} repairs")

    async def _ask(self, messages: list[Message], settings: dict[str, Any], name: str) -> tuple[str, bool]:
        """The reply, and whether the token limit cut it off; raises as `write` does."""
        try:
            reply, _charge = await self.chat.ask(messages, max_tokens=self._max_tokens, settings=settings)
        except ReplyError as error:
            if error.unusable is Unusable.TRUNCATED:
                return "", True
            if error.unusable is Unusable.SHAPE:
                raise
            raise DataError(error.what, where=name, fix=error.fix) from None  # It refuses this prompt alone.
        return reply.text, reply.cut

    def _too_long(self, name: str) -> DataError:
        what = f"its replies were cut off after {self._max_tokens} output tokens, thoughts included"
        return DataError(what, where=name, fix="raise the writer's max_output_tokens, or name a model that thinks less")


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
