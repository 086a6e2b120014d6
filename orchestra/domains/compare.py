"""The verdict on a domain episode: final contents, rows operated on, and what the answer mentions."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from orchestra.domains.reads import Place
from orchestra.domains.session import Domain, Session, short
from orchestra.domains.spec import Scalar
from orchestra.errors import CallError, DataError
from orchestra.text import number
from orchestra.types import ToolCall, Verdict

BEFORE = r"(?<!\w)(?<!\d[.,])(?<![-\u2212][$€£])(?:(?!\d)|(?<![-\u2212.])|(?<=\w[-.]))"
AFTER = r"(?!\w)(?![.,]\d)"
"""Where a whole word or number may begin and end: 41 is neither in -41, -$41 nor .41, but in A-41."""
BEGINS, ENDS = re.compile(BEFORE), re.compile(AFTER)
FIGURE = re.compile(
    rf"{BEFORE}[-\u2212]?[$€£]?(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+){AFTER}", re.ASCII
)
CODE = re.compile(r"[-\u2212]?0\d")
"""What begins like this is no amount."""
CURRENCY = str.maketrans("", "", "$€£")
Rows = dict[tuple[str, str], dict[str, Scalar] | None]
"""What stands at (table, condition on its key), as in `Session.touched`; None where there is no such row."""


@dataclass(frozen=True)
class Golden:
    """The effects of the golden calls."""

    written: Rows
    """The rows they wrote, as they left them."""
    seen: Mapping[Place, set[str]]
    """As in `Session.seen`."""


def judge(
    domain: Domain,
    session: Session,
    golden_calls: Sequence[ToolCall],
    communicate: Sequence[str],
    answer: str | None,
) -> Verdict:
    """Solved when all three hold: the contents equal those after the golden calls (execution correctness), every row
    they wrote was written and all that they read of a row was read (operation completeness; by whichever tools, in
    whichever order), and the answer mentions all of `communicate` (process fidelity). Raises `DataError` when a golden
    call is refused: the example is bad.
    """
    if answer is None:
        return Verdict(solved=False, why="no answer")
    golden = _golden(domain, tuple(call.model_dump_json() for call in golden_calls))
    why = _difference(session, golden.written) or _unseen(session, golden.seen)
    if why is None:
        missing = [text for text in communicate if not mentions(answer, text)]
        why = f"the answer does not mention {missing[0]}" if missing else None
    return Verdict(solved=why is None, why=why or "right")


@lru_cache(maxsize=4096)
def _golden(domain: Domain, calls: tuple[str, ...]) -> Golden:
    """Kept, since a group judges one example many times."""
    session = domain.open()
    try:
        run_calls(session, [ToolCall.model_validate_json(call) for call in calls])
        return Golden({place: session.row(*place) for place in session.touched}, session.seen)
    finally:
        session.close()


def run_calls(session: Session, calls: Sequence[ToolCall]) -> list[str]:
    """The text that each call returned; raises `DataError` when one is refused."""
    texts = []
    for call in calls:
        try:
            texts.append(session.call(call.name, call.arguments))
        except CallError as error:
            where = f"domain {session.domain.name}, golden call {call.name}"
            raise DataError(f"refused: {error}", where=where, fix="make the example again") from None
    return texts


def mentions(answer: str, text: str) -> bool:
    """Whether `text` stands in `answer` as whole words or numbers: 41 is not in 141, 41.5 or 4,100, but in 41.00."""
    # Found first and its surroundings looked at then: an expression made of every text would be compiled every time.
    body, whole = " ".join(text.casefold().split()), " ".join(answer.casefold().split())
    at = whole.find(body)
    while at >= 0:
        if BEGINS.match(whole, at) and ENDS.match(whole, at + len(body)):
            return True
        at = whole.find(body, at + 1)
    # Another may write the same number with more decimals, with commas or with a currency.
    wanted = _amount(body) if FIGURE.fullmatch(body) else None
    return wanted is not None and any(_amount(found) == wanted for found in FIGURE.findall(whole))


def _amount(figure: str) -> Fraction | None:
    return None if CODE.match(figure) else number(figure.translate(CURRENCY))


def _difference(session: Session, golden: Rows) -> str | None:
    """Why the contents differ, or None. Rows that neither wrote are as they were, so only written ones are compared."""
    done = session.touched
    for place in sorted(golden):
        if not _same_row(ours := session.row(*place), golden[place]):
            return f"{_plain(*place)}: {_changes(ours, golden[place])}"
    if beside := sorted(done - golden.keys()):
        before = session.domain.open()
        try:
            for place in beside:
                if not _same_row(ours := session.row(*place), was := before.row(*place)):
                    return f"{_plain(*place)}: {_changes(ours, was)}"
        finally:
            before.close()
    left = sorted(golden.keys() - done)
    return f"{_plain(*left[0])}: not operated on" if left else None


def _same_row(ours: dict[str, Scalar] | None, theirs: dict[str, Scalar] | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return all(_same(value, theirs[column]) for column, value in ours.items())


def _same(ours: Scalar, theirs: Scalar) -> bool:
    """Sums of floats depend on their order in the last digits, which decide nothing."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return ours == theirs


def _unseen(session: Session, golden: Mapping[Place, set[str]]) -> str | None:
    for place, columns in golden.items():
        seen = session.seen.get(place)
        if seen is None or not columns <= seen:
            table, key = place
            where = " and ".join(f"{column} is {value!r}" for column, value in key)
            return f"{table} where {where or 'true'}: {'row' if seen is None else min(columns - seen)} not read"
    return None


def _plain(table: str, condition: str) -> str:
    return f"{table} where {condition.replace(chr(34), '')}"


def _changes(ours: dict[str, Scalar] | None, theirs: dict[str, Scalar] | None) -> str:
    if ours is None or theirs is None:
        return "is missing" if ours is None else "should not be there"
    return ", ".join(
        f"{column} is {short(value)}, should be {short(theirs[column])}"
        for column, value in ours.items()
        if not _same(value, theirs[column])
    )
