"""Messages and toolbox to token ids, by the checkpoint's own chat template; text can never become control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import DataError
from orchestra.rollout.marks import Marks, Owner, RenderedText, any_of, parted, segments
from orchestra.types import Example, Message, ToolSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_ANSWER, _OBSERVATION = "\ufdd4", "\ufdd5"
"""Noncharacters that stand for content while the template is rendered."""
_NAMELESS = "\ufdd6"
"""A noncharacter in place of the name of a token that no text is to become."""
BUDGET = "spend at most ${usd:.4f}."
"""What a policy is told of its budget, in dollars."""


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
        self.name = str(tokenizer.name_or_path)
        eos = tokenizer.eos_token_id
        if not isinstance(eos, int):
            raise DataError("the tokenizer has no eos token", where=self.name)
        self.eos_id = eos
        added = list(tokenizer.added_tokens_decoder.values())
        # Any added token, special or not, is a control string when it appears inside content.
        self._control = any_of(token.content for token in added)
        self._control_ids = {t.content: i for i, t in tokenizer.added_tokens_decoder.items() if len(t.content) > 1}
        self._special = any_of(token.content for token in added if token.special)
        self._marks = Marks(self._control)

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
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if self._forbidden.isdisjoint(ids):
            return ids
        return self._letters(text, self._forbidden)

    def _letters(self, text: str, never: Set[int]) -> list[int]:
        """The model's own vocabulary spells a control string; its characters one by one cannot.

        A character that the tokenizer turns into a control string by itself is left out.
        """
        ids = (i for one in text for i in self._plain.encode(one, add_special_tokens=False).ids)
        return [i for i in ids if i not in never]

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
        return self.rendered_prompt(self.led(messages, preference, budget_usd), toolbox)

    @staticmethod
    def led(messages: Sequence[Message], preference: str, budget_usd: Decimal | None) -> list[Message]:
        """The messages, with what leads them in a system message."""
        led = bool(messages) and messages[0].role == "system"
        if budget_usd is not None:
            preference = f"{preference}\n{BUDGET.format(usd=budget_usd)}".strip()
        leading = f"{preference}\n{messages[0].content if led else ''}".strip()
        return [*([Message(role="system", content=leading)] if leading else []), *messages[led:]]

    def rendered_prompt(self, messages: Sequence[Message], toolbox: Sequence[ToolSpec]) -> list[int]:
        """Messages and toolbox as the template writes them: (time,)."""
        return self._encode_rendered(self._segments(messages, toolbox))

    def frame(self, messages: Sequence[Message], toolbox: Sequence[ToolSpec]) -> list[list[int]] | None:
        """The token ids before, between and after the messages, where these are all that the prompt has besides.

        None where the template writes a message otherwise than once, whole and in its place.
        """
        parts: list[list[RenderedText]] = [[]]
        contents = []
        for segment in self._segments(messages, toolbox):
            if segment.owner is Owner.MESSAGE:
                contents.append(segment.text)
                parts.append([])
            else:
                parts[-1].append(segment)
        if contents != [message.content for message in messages]:
            return None
        return [self._encode_rendered(part) for part in parts]

    def _segments(self, messages: Sequence[Message], toolbox: Sequence[ToolSpec]) -> list[RenderedText]:
        text = self._render(
            [{"role": m.role, "content": self._marks.message(m.content)} for m in messages],
            [self._marked_tool(spec) for spec in toolbox],
        )
        return list(segments(text))

    def _marked_tool(self, spec: ToolSpec) -> dict[str, Any]:
        shown = tool_dict(spec)
        said = {key: self._marks.field(shown["function"][key]) for key in ("name", "description")}
        return {**shown, "function": {**said, "parameters": self._marks.schema(spec.parameters)}}

    def _render(self, chat: list[dict[str, str]], tools: list[Any] | None = None) -> str:
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                chat, tools=tools or None, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            fix = "give messages that it takes, or another checkpoint"
            raise DataError(f"the chat template refuses: {error}", where=self.name, fix=fix) from None
        assert isinstance(text, str)
        return text

    def _encode_rendered(self, rendered: Iterable[RenderedText]) -> list[int]:
        """The control tokens are those of the template's own text.

        Other text is plain. A message is encoded apart, as an observation is; what the template and a tool's fields
        make together is one stretch, as the tokenizer alone would see it.
        """
        ids: list[int] = []
        stretch = ""
        for segment in rendered:
            match segment.owner:
                case Owner.FIELD:
                    stretch += segment.text
                case Owner.MESSAGE:
                    ids += [*self.encode_content(stretch), *self.encode_content(segment.text)]
                    stretch = ""
                case Owner.TEMPLATE:
                    for plain, control in self._own_controls(segment.text):
                        stretch += plain
                        if control:
                            ids += [*self.encode_content(stretch), self._control_ids[control]]
                            stretch = ""
        return ids + self.encode_content(stretch)

    def _own_controls(self, text: str) -> Iterator[tuple[str, str]]:
        """Template text as pairs of plain text and the control string that follows, empty at the end."""
        start = 0
        for match in self._control.finditer(text) if self._control is not None else ():
            yield text[start : match.start()], match[0]
            start = match.end()
        yield text[start:], ""

    def turn(self, text: str) -> list[int]:
        """What a teacher or script says in one turn, with the stop token.

        The turn's tags are control tokens, as a model would write them; a special token such as the stop token is
        text, since scripts repeat what tools told them. A tag is one as it is written, not as a tokenizer that turns
        letters into others would read it.
        """
        return [*(i for piece in parted(self._special, text) for i in self._encode_turn(piece)), self.eos_id]

    def _encode_turn(self, piece: str) -> list[int]:
        ids: list[int] = self._tags.encode(piece, add_special_tokens=False).ids
        return ids if self._stops.isdisjoint(ids) else self._letters(piece, self._stops)

    def observation(self, text: str) -> list[int]:
        """What the environment appends after a turn's stop token, up to where the policy speaks again: (time,)."""
        before, after = self._around_observation
        return [*before, *self.encode_content(text), *after]

    def reply(self, text: str) -> list[int]:
        """What a user says after a turn's stop token, up to where the policy speaks again: (time,)."""
        before, after = self._around_reply
        return [*before, *self.encode_content(text), *after]

    @cached_property
    def _forbidden(self) -> set[int]:
        return set(self._control_ids.values())

    @cached_property
    def _stops(self) -> set[int]:
        """The control tokens that no turn holds before its end."""
        known = self.tokenizer.added_tokens_decoder
        return {i for i in self._forbidden if known[i].special}

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer without its control tokens: there is no text that it encodes to one by matching it."""
        return self._without(self._forbidden)

    @cached_property
    def _tags(self) -> Tokenizer:
        """The tokenizer without its special tokens; the others match the text as it stands, before it is normalised."""
        return self._without(self._stops)

    def _without(self, ids: Set[int]) -> Tokenizer:
        from tokenizers import Tokenizer

        known = json.loads(self.tokenizer.backend_tokenizer.to_str())
        bare = {**known, "added_tokens": [], "truncation": None, "padding": None}
        spelled = Tokenizer.from_str(json.dumps(bare)).token_to_id
        kept = []
        for token in known["added_tokens"]:
            if token["id"] not in ids:
                kept.append({**token, "normalized": token["normalized"] and token["id"] not in self._forbidden})
            elif spelled(token["content"]) is None:
                # Its place stays, since tokens that the vocabulary lacks are numbered in their order.
                kept.append({**token, "content": f"{_NAMELESS}{token['id']}{_NAMELESS}", "normalized": False})
        return Tokenizer.from_str(json.dumps({**bare, "added_tokens": kept}))

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
        text = self._render(chat)
        after_answer = text.partition(_ANSWER)[2]
        between, _, end = after_answer.partition(_OBSERVATION)
        eos = self.tokenizer.eos_token
        assert isinstance(eos, str)
        if not between.startswith(eos):
            raise DataError("the chat template does not end a turn with the eos token", fix="fix the template")
        return self.encode(between[len(eos) :]), self.encode(end)
