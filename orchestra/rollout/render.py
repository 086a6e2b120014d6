"""Messages and toolbox to token ids, by the checkpoint's own chat template; text can never become control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import DataError
from orchestra.types import Example, Message, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANSWER, _OBSERVATION, _PART = "\ue1f0", "\ue1f1", "\ue200"
"""Private-use characters: two stand for content while the template is rendered, the last parts control strings."""


BUDGET = "spend at most ${usd:.4f}."
"""What a policy is told of its budget, in dollars."""


def _any_of(strings: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds the strings. One character alone controls nothing, and could not be parted."""
    longer = [re.escape(s) for s in strings if len(s) > 1]
    return re.compile("|".join(longer)) if longer else None


def _pieces(pattern: re.Pattern[str] | None, text: str) -> list[str]:
    """`text` cut after the first character of every match, so that no piece holds one."""
    pieces, start = [], 0
    while pattern is not None and (match := pattern.search(text, start)):
        pieces.append(text[start : match.start() + 1])
        start = match.start() + 1
    return [*pieces, text[start:]]


def tool_dict(spec: ToolSpec) -> dict[str, Any]:
    """The OpenAI tools-array form, with this example's expected price and seconds beside the function.

    Templates that print the whole object (Qwen3) and templates that format it (ours) both show them.
    """
    return {
        "type": "function",
        "function": {"name": spec.name, "description": spec.description, "parameters": spec.parameters},
        "cost_usd": f"{min(spec.call_usd, 9):.4f}",
        "latency_s": f"{min(round(spec.latency_s), 999):03d}",
    }


class Codec:
    """Token ids of prompts, turns and observations for one tokenizer and chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        eos = tokenizer.eos_token_id
        if not isinstance(eos, int):
            raise DataError("the tokenizer has no eos token", where=str(tokenizer.name_or_path))
        self.eos_id = eos
        added = list(tokenizer.added_tokens_decoder.values())
        # Any added token, special or not, is a control string when it appears inside content.
        self._control = _any_of(token.content for token in added)
        self._ends = tuple({token.content[cut:] for token in added for cut in range(1, len(token.content))})
        """Content that begins so is parted from the template: together they could make a control string."""
        self._special = _any_of(token.content for token in added if token.special)

    @classmethod
    def load(cls, folder: Path | str) -> Codec:
        """Read tokenizer and chat template from a checkpoint or recipe folder; never runs code from it."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        except (OSError, ValueError) as error:
            raise DataError(f"no tokenizer: {error}", where=str(folder), fix="name a checkpoint folder") from None
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Template text: control strings become control tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def encode_content(self, text: str) -> list[int]:
        """Content: control strings stay plain text."""
        return [i for piece in _pieces(self._control, text) for i in self.encode(piece)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a turn, without its stop token."""
        kept = list(ids[:-1]) if ids and ids[-1] == self.eos_id else list(ids)
        text = self.tokenizer.decode(kept, skip_special_tokens=False)
        assert isinstance(text, str)
        return text

    def prompt(self, example: Example) -> list[int]:
        """Preference, toolbox and instruction of an example, ready for the policy's first turn: (time,)."""
        asked = [Message(role="user", content=example.instruction)]
        return self.messages_prompt(asked, example.toolbox, example.preference.words, example.budget_usd)

    def messages_prompt(
        self,
        messages: Sequence[Message],
        toolbox: Sequence[ToolSpec],
        preference: str = "",
        budget_usd: Decimal | None = None,
    ) -> list[int]:
        """A conversation so far with its toolbox, ready for the policy's turn: (time,).

        The preference leads, in the system message before the tools: a causal model can then mark a tool that it names
        while it reads the table. A budget follows the preference, written as the table's prices are.
        """
        led = bool(messages) and messages[0].role == "system"
        if budget_usd is not None:
            preference = f"{preference}\n{BUDGET.format(usd=budget_usd)}".strip()
        leading = f"{preference}\n{messages[0].content if led else ''}".strip()
        messages = [*([Message(role="system", content=leading)] if leading else []), *messages[led:]]

        def hold(value: Any) -> Any:
            # Marked before rendering and parted after it, so that whatever escaping a template does still applies.
            match value:
                case str():
                    return _PART.join(_pieces(self._control, re.sub("[\ue000-\uf8ff]", "\ufffd", value)))
                case dict():
                    return {hold(key): hold(inner) for key, inner in value.items()}
                case list():
                    return [hold(inner) for inner in value]
                case _:
                    return value

        tools = [hold(tool_dict(spec)) for spec in toolbox]
        chat = [
            {"role": m.role, "content": _PART * m.content.startswith(self._ends) + hold(m.content)} for m in messages
        ]
        text = self.tokenizer.apply_chat_template(chat, tools=tools or None, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        return [i for piece in text.split(_PART) for i in self.encode(piece)]

    def turn(self, text: str) -> list[int]:
        """What a teacher or script says in one turn, with the stop token.

        The turn's tags are control tokens, as a model would write them; a special token such as the stop token is
        text, since scripts repeat what tools told them.
        """
        return [*(i for piece in _pieces(self._special, text) for i in self.encode(piece)), self.eos_id]

    def observation(self, text: str) -> list[int]:
        """What the environment appends after a turn's stop token, up to where the policy speaks again: (time,)."""
        before, after = self._around_observation
        return [*before, *self.encode_content(text), *after]

    def reply(self, text: str) -> list[int]:
        """What a user says after a turn's stop token, up to where the policy speaks again: (time,)."""
        before, after = self._around_reply
        return [*before, *self.encode_content(text), *after]

    @cached_property
    def _around_observation(self) -> tuple[list[int], list[int]]:
        return self._around("tool")

    @cached_property
    def _around_reply(self) -> tuple[list[int], list[int]]:
        return self._around("user")

    def _around(self, role: str) -> tuple[list[int], list[int]]:
        """What the template puts between a turn's stop token and a message of that role, and after it."""
        chat = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": _ANSWER},
            {"role": role, "content": _OBSERVATION},
        ]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        after_answer = text.partition(_ANSWER)[2]
        between, _, end = after_answer.partition(_OBSERVATION)
        eos = self.tokenizer.eos_token
        assert isinstance(eos, str)
        if not between.startswith(eos):
            raise DataError("the chat template does not end a turn with the eos token", fix="fix the template")
        return self.encode(between[len(eos) :]), self.encode(end)
