"""The verdict on a domain episode: final contents, rows operated on, and what the answer mentions."""

import re
from collections.abc import Sequence

from orchestra.domains.session import Domain, Session, short
from orchestra.domains.spec import Scalar
from orchestra.errors import CallError, DataError
from orchestra.types import ToolCall, Verdict


def judge(
    domain: Domain,
    session: Session,
    golden_calls: Sequence[ToolCall],
    communicate: Sequence[str],
    answer: str | None,
) -> Verdict:
    """Solved when all three hold: the contents equal those after the golden calls (execution correctness), every row
    they wrote was written (operation completeness; rows only read are not counted), and the answer mentions all of
    `communicate` (process fidelity). Raises `DataError` when a golden call is refused: the example is bad.
    """
    if answer is None:
        return Verdict(solved=False, why="no answer")
    golden = domain.open()
    try:
        replay(golden, golden_calls)
        why = _difference(session, golden)
    finally:
        golden.close()
    if why is None:
        missing = [text for text in communicate if not mentions(answer, text)]
        why = f"the answer does not mention {missing[0]}" if missing else None
    return Verdict(solved=why is None, why=why or "right")


def replay(session: Session, calls: Sequence[ToolCall]) -> list[str]:
    """What each call returned; raises `DataError` when one is refused."""
    texts = []
    for call in calls:
        try:
            texts.append(session.call(call.name, call.arguments))
        except CallError as error:
            where = f"domain {session.domain.name}, golden call {call.name}"
            raise DataError(f"refused: {error}", where=where, fix="make the example again") from None
    return texts


def mentions(answer: str, text: str) -> bool:
    """Whether `text` stands in `answer` as whole words or numbers: 41 is not in 141, 41.5 or 4,100."""
    body = r"\s+".join(re.escape(word) for word in text.casefold().split())
    return re.search(rf"(?<!\w)(?<!\d[.,]){body}(?!\w)(?![.,]\d)", answer.casefold()) is not None


def _difference(session: Session, golden: Session) -> str | None:
    """Why the contents differ, or None. Rows that neither wrote are as they were, so only written ones are compared."""
    done, wanted = session.touched, golden.touched
    for table, condition in sorted(wanted | done):
        ours, theirs = session.row(table, condition), golden.row(table, condition)
        if ours != theirs:
            return f"{_plain(table, condition)}: {_changes(ours, theirs)}"
    left = sorted(wanted - done)
    return f"{_plain(*left[0])}: not operated on" if left else None


def _plain(table: str, condition: str) -> str:
    return f"{table} where {condition.replace(chr(34), '')}"


def _changes(ours: dict[str, Scalar] | None, theirs: dict[str, Scalar] | None) -> str:
    if ours is None or theirs is None:
        return "is missing" if ours is None else "should not be there"
    return ", ".join(
        f"{column} is {short(value)}, should be {short(theirs[column])}"
        for column, value in ours.items()
        if value != theirs[column]
    )
