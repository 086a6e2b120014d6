"""Where the choice of a turn stands, and the tokens of each way on from there."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestra.config.reward import Branch
from orchestra.config.schema import Rollout
from orchestra.errors import CallError
from orchestra.rollout.parse import THINK_CLOSE, parse_turn
from orchestra.rollout.policies.base import Conversation
from orchestra.types import Example, ToolKind

if TYPE_CHECKING:
    from orchestra.rollout.render import Codec


def ways(
    conversation: Conversation, turn: list[int], codec: Codec, limits: Rollout, branch: Branch
) -> dict[str, tuple[int, ...]]:
    """Tokens of the turn up to the end of each choice, by choice; {} without a choice point.

    The turn that was sampled must be written in the tokens that its text is encoded in, and no way may need more tokens
    than a turn and an episode may have.
    """
    text = codec.decode(turn)
    point = _point(text, conversation.example, branch)
    if point is None or codec.turn(text) != turn:
        return {}
    start, end, choices = point
    found = {}
    room = min(limits.max_turn_tokens, limits.max_tokens - conversation.length)
    for name, written in choices.items():
        ids, whole = codec.turn(text[:start] + written + text[end:])[:-1], start + len(written)
        # The fewest tokens that hold it whole: a longer beginning never decodes to a shorter text.
        count = 1 + bisect_left(range(1, len(ids)), whole, key=lambda n: len(codec.decode(ids[:n])))
        if count < room and codec.decode(ids[:count])[:whole] == text[:start] + written:
            found[name] = tuple(ids[:count])
    return found


def _point(text: str, example: Example, branch: Branch) -> tuple[int, int, dict[str, str]] | None:
    """Where the choice stands in a turn's text (start, end), and what would be written for each; None: nowhere.

    What ends a name or word belongs to it, so that gpt-5 and gpt-5-mini are two choices.
    """
    if branch.at == "word":
        end = text.find(f"\n{THINK_CLOSE}") + 1
        start = text.rfind("\n", 0, max(0, end - 1)) + 1
        line = text[start : end - 1] if end else ""
        ending = [word for word in branch.words if f" {line}".endswith((f" {word}", f"-{word}"))]
        written = max(ending, key=len, default=None)
        choices = {word: f"{word}\n" for word in branch.words}
        return None if written is None else (end - 1 - len(written), end, choices)
    try:
        call = parse_turn(text).call
    except CallError:
        return None
    experts = [spec.name for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
    if call is None or call.name not in experts:
        return None
    quoted = json.dumps(call.name)
    start = text.find(quoted, text.find("<tool_call>"))
    return (start, start + len(quoted), {name: json.dumps(name) for name in experts}) if start >= 0 else None


def said(text: str, example: Example, branch: Branch) -> str:
    """What the line of the choice says before it; "" where the choice is an expert's name."""
    point = _point(text, example, branch)
    return text[: point[0]].rpartition("\n")[2] if point is not None and branch.at == "word" else ""


def shared(ways: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all ways begin with."""
    return next((n for n, tokens in enumerate(zip(*ways, strict=False)) if len(set(tokens)) > 1), 0)
