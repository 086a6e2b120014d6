"""Simulated users that answer the policy's questions: a script offline, a model online."""

from decimal import Decimal
from typing import Protocol

from orchestra.domains.compare import mentions
from orchestra.tools.experts.metered import PaidChat
from orchestra.types import EXACT, Charge, Message, User

IGNORANT = "I do not know that."
MAX_TOKENS = 200
"""Of one reply of a model that plays the user."""
RULES = (
    "You play a person who has asked an assistant for something: {instruction}\n"
    "All that you know beside it: {facts}.\n"
    "Answer the assistant's question in one short sentence, from what you know only, and tell no more than it asks. "
    "Where you do not know, say so. Never ask back, and never do the assistant's work."
)
OWN_RULES = "\nThis is how you behave: {rules}"
"""What follows for a user with rules of its own."""


class UserSimulator(Protocol):
    """Answers one question of a policy. One with a method `worst_usd` is not asked where that crosses the episode's
    cap."""

    async def reply(self, user: User, instruction: str, question: str) -> tuple[str, Charge | None]:
        """What the user says, and what that cost; raises `ToolError` when it cannot be known."""
        ...


class ScriptedUser:
    """Tells each fact whose word the question uses, and knows nothing else."""

    async def reply(self, user: User, instruction: str, question: str) -> tuple[str, Charge | None]:
        del instruction
        told = [f"the {word} is {fact}" for word, fact in user.facts.items() if mentions(question, word)]
        return (", ".join(told) or IGNORANT), None


class ModelUser:
    """A model that plays the user by the same rules; its calls are charged and count for the budget's cap."""

    def __init__(self, chat: PaidChat) -> None:
        self._chat = chat

    async def reply(self, user: User, instruction: str, question: str) -> tuple[str, Charge | None]:
        """The charge holds the reply's tokens, and the dollars of lost attempts before it too."""
        messages = _asked(user, instruction, question)
        reply, charge = await self._chat.ask(messages, max_tokens=MAX_TOKENS)
        if not reply.replayed:
            lost_usd = self._chat.listed_usd(reply.lost, messages, max_tokens=MAX_TOKENS)
            charge = charge.model_copy(update={"cost_usd": EXACT.add(charge.cost_usd, lost_usd)})
        return " ".join(reply.text.split()), charge

    def worst_usd(self, user: User, instruction: str, question: str) -> Decimal:
        """The most that the reply can cost."""
        return self._chat.worst_usd(_asked(user, instruction, question), max_tokens=MAX_TOKENS)


def _asked(user: User, instruction: str, question: str) -> list[Message]:
    facts = ", ".join(f"the {word} is {fact}" for word, fact in user.facts.items())
    said = RULES.format(instruction=instruction, facts=facts)
    if user.rules:
        said += OWN_RULES.format(rules=" ".join(user.rules))
    return [Message(role="system", content=said), Message(role="user", content=question)]


def is_question(answer: str) -> bool:
    """Whether a final answer asks instead of answering."""
    return answer.rstrip().endswith("?")
