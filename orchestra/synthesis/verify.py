"""Keeps what is solvable and checkable: the known solution is replayed on the real tools."""

from orchestra.domains.compare import mentions
from orchestra.errors import CallError
from orchestra.tools.base import UNSURE
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, ToolKind


async def replay(example: Example, toolkit: Toolkit) -> str | None:
    """Why the known solution does not solve the example; None when it does.

    Golden calls must run without error, show the answer (questions), and change or tell something (domains).
    """
    verifier = example.verifier
    session = toolkit.open(example)
    try:
        observed = ""
        for call in verifier.golden_calls:
            outcome = await session.call(call)
            if outcome.error:
                return f"{call.name} refuses: {outcome.text}"
            observed = outcome.text
        if example.kind == "question":
            if verifier.answer is None or verifier.answer not in observed.rstrip(".").split():
                return "the answer is not in the last observation"
            return None
        answer = verifier.answer or " ".join(verifier.communicate)
        if verifier.kind == "database" and session.domain is not None:
            # What these calls leave is what the verdict compares with: a second replay could only agree with itself.
            missing = [text for text in verifier.communicate if not mentions(answer, text)]
            if missing:
                return f"the known solution does not solve it: the answer does not mention {missing[0]}"
            idle = not verifier.communicate and not session.domain.touched
            return "it is solved by doing nothing" if idle else None
        from orchestra.rewards.outcome import verify

        verdict = verify(example, answer, session)
        return None if verdict.solved else f"the known solution does not solve it: {verdict.why}"
    except CallError as error:
        return f"a golden call is malformed: {error}"
    finally:
        session.close()


def answerable(example: Example, toolkit: Toolkit) -> bool:
    """Whether any expert of a topic question's toolbox replies with the right answer."""
    assert example.category is Category.TOPIC
    replies = (
        toolkit.expert(spec.tool).reply(example.instruction) for spec in example.toolbox if spec.kind is ToolKind.EXPERT
    )
    return any(reply == example.verifier.answer and reply != UNSURE for reply in replies)
