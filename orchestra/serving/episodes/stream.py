"""A turn's text while it is written: what is thought, what is answered, and what has to wait until it is clear."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestra.rollout.parse import HALF_TAG, TAG, THINK_CLOSE, THINK_OPEN

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec

SUSPECT = re.compile(r"<|\btool_call")
"""What could become a tag."""
CLEAR_AFTER = 40
"""Characters after which what looked like a tag has become none."""
LONGEST_TAG = 32
"""Characters of the longest tag, and one more."""
CALL = "<tool_call>"


class TurnReader:
    """Reads one turn token by token. An answer's text is given as soon as it can no longer be anything else."""

    def __init__(self, codec: Codec) -> None:
        from tokenizers.decoders import DecodeStream

        self._codec = codec
        self._tokenizer: Any = codec.tokenizer
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._text = ""
        self._thought_given = 0
        self._read = 0
        """Characters of the answer that hold no tag."""
        self._tagged = False
        self.given = ""
        """What was given of the answer."""

    def feed(self, ids: Sequence[int]) -> tuple[str, str]:
        """Tokens that were written next; the text of a thought and of an answer that is clear by now."""
        for token in ids:
            if token != self._codec.eos_id:
                self._text += self._decoder.step(self._tokenizer.backend_tokenizer, token) or ""
        thought, body = self._parts()
        new_thought = thought[self._thought_given :]
        self._thought_given = len(thought)
        answer = self._clear(body)
        new = answer[len(self.given) :]
        self.given += new
        return new_thought, new

    def _parts(self) -> tuple[str, str | None]:
        """The thought so far, and what follows it; None while that has not begun."""
        text = self._text.lstrip()
        if not text.startswith(THINK_OPEN):
            return "", None if THINK_OPEN.startswith(text) else self._text
        thought, closed, body = text[len(THINK_OPEN) :].partition(THINK_CLOSE)
        if closed:
            return thought.strip(), body
        # The end of it may be the beginning of its closing tag, or space before that.
        return thought.rpartition("<")[0].strip() if "<" in thought else thought.strip(), None

    def _clear(self, body: str | None) -> str:
        """The part of the answer that is sure; "" while it may still be a call."""
        answer = (body or "").lstrip()
        if CALL.startswith(answer[: len(CALL)]):
            return ""
        if self._has_tag(answer):
            # No answer at all: see `parse_turn`.
            return self.given
        # Whole words: a half one may become a tag, and space at the end is not part of the answer.
        sure = answer[: max(answer.rfind(" "), answer.rfind("\n"), 0)].rstrip()
        suspect = SUSPECT.search(answer, max(0, len(answer) - CLEAR_AFTER + 1))
        if suspect is not None:
            sure = sure[: suspect.start()].rstrip()
        return sure if sure.startswith(self.given) else self.given

    def _has_tag(self, answer: str) -> bool:
        """Whether a tag is in the answer so far. What was read is not read again: long answers come in many tokens."""
        begin = max(0, self._read - LONGEST_TAG)
        found = None if self._tagged else TAG.search(answer, begin) or HALF_TAG.search(answer, begin)
        if found is None:
            self._read = len(answer)
        # At the end of the text it may still become a word that is no tag.
        self._tagged = self._tagged or (found is not None and found.end() < len(answer))
        return self._tagged or found is not None
