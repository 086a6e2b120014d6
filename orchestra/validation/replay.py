"""Keeps what is solvable and checkable: the known solution is replayed on the real tools."""

from typing import Self

from orchestra.domains.compare import mentions
from orchestra.domains.session import Session
from orchestra.errors import CallError
from orchestra.tools.base import UNSURE
from orchestra.tools.recording import is_recorded
from orchestra.tools.session import ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, ToolKind


class Copies:
    """Copies of domains for replays one after another: rewound, one serves again, since opening costs more than most
    replays. A context, at whose end they are freed; not for two replays at once.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Session] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for copy in self._kept.values():
            copy.close()

    def open(self, example: Example, toolkit: Toolkit) -> ToolSession:
        """The tools of a replay."""
        if example.domain is None or is_recorded(example, toolkit.domain_folders):
            return ToolSession(toolkit, example)
        kept = self._kept.pop(example.domain, None)
        return ToolSession(toolkit, example, kept or toolkit.domain(example.domain).open(rewinds=True))

    def close(self, session: ToolSession) -> None:
        """End a replay."""
        copy = session.domain
        if copy is None or copy.domain.name in self._kept or not copy.rewind():
            session.close()
        else:
            self._kept[copy.domain.name] = copy


def unjudged(example: Example, *, judge: bool) -> str | None:
    """That an example needs a judge where there is none (`judge`); None where a rule or the judge decides."""
    needs = example.verifier.kind == "judge" and not judge
    return "only a judge can check its answer, and none is configured" if needs else None


async def replay(example: Example, toolkit: Toolkit, copies: Copies | None = None) -> str | None:
    """Why the known solution does not solve the example; None when it does.

    Golden calls must run without error, show the answer (questions), and change or tell something (domains). `copies`
    saves opening a domain again for every example.
    """
    if copies is None:
        with Copies() as own:
            return await replay(example, toolkit, own)
    verifier = example.verifier
    session = copies.open(example, toolkit)
    try:
        observed = ""
        for call in verifier.golden_calls:
            outcome = await session.call(call)
            if outcome.error:
                return f"{call.name} refuses: {outcome.text}"
            observed = outcome.text
        if session.recording is not None:
            return None
        if example.kind == "question":
            if not verifier.answer or not mentions(observed, verifier.answer):
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
        copies.close(session)


def answerable(example: Example, toolkit: Toolkit) -> bool:
    """Whether any expert of a topic question's toolbox replies with the right answer."""
    assert example.category is Category.TOPIC
    replies = (
        toolkit.expert(spec.tool).reply(example.instruction) for spec in example.toolbox if spec.kind is ToolKind.EXPERT
    )
    return any(reply == example.verifier.answer and reply != UNSURE for reply in replies)
