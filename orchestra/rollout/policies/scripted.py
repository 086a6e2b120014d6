"""Scripted ways to act that know an example's known solution: the teacher and the rule baselines share them."""

from collections.abc import Callable

from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation
from orchestra.tools.base import UNSURE, unanswered
from orchestra.types import ToolCall, ToolKind, ToolSpec

ChooseExpert = Callable[[Conversation, list[ToolSpec]], ToolSpec | None]
"""The next expert to ask among those not yet asked, or None to answer with what is known."""


def asking(expert: ToolSpec, words: str) -> ToolCall:
    """The call that asks an expert so: its `question` is written out where the expert's schema requires it; an expert
    without one is asked the example's instruction."""
    required = expert.parameters.get("required")
    return ToolCall(name=expert.name, arguments={"question": words} if required == ["question"] else {})


def expert_answers(conversation: Conversation) -> list[str]:
    """What the experts asked so far replied, oldest first, without those that hold no answer."""
    kinds = {spec.name: spec.kind for spec in conversation.example.toolbox}
    return [
        turn.observation
        for turn in conversation.turns
        if turn.call is not None
        and kinds.get(turn.call.name) is ToolKind.EXPERT
        and turn.observation is not None
        and not unanswered(turn.observation)
    ]


def follow(
    conversation: Conversation,
    choose: ChooseExpert,
    thought: Callable[[Conversation], str] | None = None,
    enough: Callable[[Conversation], bool] | None = None,
) -> str:
    """The next turn: ask for what only the user knows; then the known solution's next call, or for topic questions the
    chosen expert; then the answer. What needs no tool is answered at once.

    Experts are asked until `enough` (default: one was not unsure); the last such reply is the answer.
    """
    example = conversation.example
    think = thought(conversation) if thought is not None else ""
    golden = example.verifier.golden_calls
    done = len(conversation.turns)
    if example.user is not None:
        words = list(example.user.facts)
        if done < len(words):
            return format_answer(f"which {words[done]}?", think)
        done -= len(words)
    if golden:
        if done < len(golden):
            return format_call(golden[done], think)
        return format_answer(example.verifier.answer or " ".join(example.verifier.communicate) or "Done.", think)
    if not example.needs_expert:
        return format_answer(example.verifier.answer or UNSURE, think)
    answers = expert_answers(conversation)
    if not (enough(conversation) if enough is not None else answers):
        asked = {turn.call.name for turn in conversation.turns if turn.call is not None}
        left = [s for s in example.toolbox if s.kind is ToolKind.EXPERT and s.name not in asked]
        expert = choose(conversation, left) if left else None
        if expert is not None:
            return format_call(asking(expert, example.instruction), think)
    return format_answer(answers[-1] if answers else UNSURE, think)
