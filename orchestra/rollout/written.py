"""A turn as the policy wrote it: its call opens with the control token; letters that a tool said, repeated, do not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestra.errors import CallError
from orchestra.rollout.parse import ParsedTurn, opens_turn, parse_turn

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec

COPIED = "a tool call in letters, as if copied; call with the <tool_call> token, or give the answer in other words"


def read_turn(codec: Codec, ids: Sequence[int], text: str) -> ParsedTurn:
    """The call or answer of a turn of these tokens, which `text` is; raises `CallError`.

    What tools and users say reaches the policy without control tokens. A policy that repeats it, as it would an answer,
    thus writes no call, whatever the words are. Tokenizers without a token for the tag cannot tell.
    """
    parsed = parse_turn(text)
    tokens = call_tokens(codec)
    if parsed.call is not None and tokens:
        places = (place for place, token in enumerate(ids) if token in tokens)
        if not any(opens_turn(codec.decode(ids[:place])) for place in places):
            raise CallError(COPIED)
    return parsed


@lru_cache(maxsize=4)
def call_tokens(codec: Codec) -> frozenset[int]:
    """The control tokens that open a call."""
    return frozenset(i for text, i in codec.tokenizer.get_added_vocab().items() if text.startswith("<tool_call>"))
