"""Messages and toolbox to token ids, by the checkpoint's own chat template; text can never become control tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import DataError
from orchestra.types import Example, Message, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANSWER, _OBSERVATION = "\ue1f0", "\ue1f1"
"""Private-use characters that stand for content while the template is rendered."""


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
        # Any added token, special or not, is a control string when it appears inside content.
        strings = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._control = re.compile("|".join(re.escape(s) for s in strings)) if strings else None

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
        """Content: control strings stay plain text. Splitting one after its first character keeps it from matching."""
        if self._control is None or not self._control.search(text):
            return self.encode(text)
        ids: list[int] = []
        rest = text
        while match := self._control.search(rest):
            head = rest[: match.start() + 1]
            ids += self.encode_content(head)
            rest = rest[match.start() + 1 :]
        return ids + (self.encode(rest) if rest else [])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a turn, without its stop token."""
        kept = list(ids[:-1]) if ids and ids[-1] == self.eos_id else list(ids)
        text = self.tokenizer.decode(kept, skip_special_tokens=False)
        assert isinstance(text, str)
        return text

    def prompt(self, example: Example) -> list[int]:
        """Instruction, preference and toolbox of an example, ready for the policy's first turn: (time,)."""
        words = f"{example.instruction}\n{example.preference.words}".strip()
        return self.messages_prompt([Message(role="user", content=words)], example.toolbox)

    def messages_prompt(self, messages: Sequence[Message], toolbox: Sequence[ToolSpec]) -> list[int]:
        """A conversation so far with its toolbox, ready for the policy's turn: (time,)."""
        held: list[str] = []

        def hold(text: str) -> str:
            # Only the control strings are held back: the rest goes through the template as it is.
            if self._control is None:
                return text

            def keep(match: re.Match[str]) -> str:
                held.append(match.group())
                return f"\ue200{len(held) - 1}\ue201"

            clean = re.sub("[\ue000-\uf8ff]", "\ufffd", text)
            return self._control.sub(keep, clean)

        tools: list[Any] = [tool_dict(spec) for spec in toolbox]
        for tool in tools:
            tool["function"]["description"] = hold(tool["function"]["description"])
        chat = [{"role": m.role, "content": hold(m.content)} for m in messages]
        text = self.tokenizer.apply_chat_template(chat, tools=tools or None, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        pieces = re.split("\ue200([0-9]+)\ue201", text)
        ids = self.encode(pieces[0])
        for index, after in zip(pieces[1::2], pieces[2::2], strict=True):
            ids += self.encode_content(held[int(index)]) + self.encode(after)
        return ids

    def turn(self, text: str) -> list[int]:
        """What a teacher or script says in one turn, with the stop token.

        The turn's own tags are control tokens, as a model would write them; what it says inside them is text.
        """
        return [*self.encode(text), self.eos_id]

    def observation(self, text: str) -> list[int]:
        """What the environment appends after a turn's stop token, up to where the policy speaks again: (time,)."""
        before, after = self._around_observation
        return [*before, *self.encode_content(text), *after]

    @cached_property
    def _around_observation(self) -> tuple[list[int], list[int]]:
        chat = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": _ANSWER},
            {"role": "tool", "content": _OBSERVATION},
        ]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        after_answer = text.partition(_ANSWER)[2]
        between, _, end = after_answer.partition(_OBSERVATION)
        eos = self.tokenizer.eos_token
        assert isinstance(eos, str)
        if not between.startswith(eos):
            raise DataError("the chat template does not end a turn with the eos token", fix="mend the template")
        return self.encode(between[len(eos) :]), self.encode(end)
