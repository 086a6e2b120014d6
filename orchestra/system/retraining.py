"""Requests for the next retraining in `.state/retraining`: what asked, which run answered, and when one may begin."""

import contextlib
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from orchestra.config.retraining import Retraining
from orchestra.errors import ConfigError
from orchestra.files import atomic
from orchestra.system.runs import AWAITING, KILLED, RunRecord
from orchestra.system.workspace import locked_elsewhere
from orchestra.text import one_line
from orchestra.types import Record, Usd

REQUESTS = ".state/retraining"
"""One JSON file a request."""
KEPT_DAYS = 400
"""Days that a closed request is kept: a fact that was answered or dropped does not ask again meanwhile."""

Cause = Literal["drift", "price", "model", "data", "person"]
"""What asks: served episodes that differ, a changed or stale price, a retired model, new data, a person."""
State = Literal["open", "taken", "answered", "settled", "dropped"]
"""taken: a run works on it; answered: a run came to a decision; settled: its fact is gone; dropped: by hand."""


@dataclass(frozen=True)
class RetrainReason:
    """A fact that asks for a retraining."""

    cause: Cause
    key: str
    """Names the fact: an equal one asks once."""
    what: str
    """One line for a person."""
    needs: str = ""
    """What a person has to do first; empty: a run can begin."""
    assignments: tuple[str, ...] = ()
    """Changes of params.yaml without which the run would make the same model again: section.key=value."""
    serving: str = ""
    """Fingerprint of the version that serves, where it is about that one."""


class RetrainAttempt(Record):
    """A run that took the request."""

    run_id: str
    run: str
    """Its name."""
    began: datetime
    state: str = ""
    """How it ended; empty while it runs."""
    usd: Usd = Decimal(0)
    month_usd: Usd | None = None
    """The month's cap, where that ended the run: what is left of it pays for no further call."""


class RetrainRequest(Record):
    """One request."""

    id: str
    cause: Cause
    what: str
    needs: str = ""
    assignments: tuple[str, ...] = ()
    serving: str = ""
    asked_by: str
    """What looked and saw it: the monitor's run, or a person's command."""
    asked: datetime
    state: State = "open"
    closed: datetime | None = None
    attempts: tuple[RetrainAttempt, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether a run could take it now."""
        return self.state == "open" and not self.needs

    @property
    def begun(self) -> bool:
        """Whether a run may have taken its fact away: it moves the day of the prices, and its stages read new data."""
        return self.cause in ("price", "data") and bool(self.attempts)

    @property
    def line(self) -> str:
        return f"{self.cause}: {self.what}"


def requests(root: Path) -> list[RetrainRequest]:
    """Every request, oldest first. Damaged files are left out."""
    found = []
    for file in (root / REQUESTS).glob("*.json"):
        with contextlib.suppress(OSError, UnicodeDecodeError, ValidationError):
            request = RetrainRequest.model_validate_json(file.read_text(encoding="utf-8"))
            if request.id == file.stem:  # Any other id could lead out of the folder when the request is written.
                found.append(request)
    return sorted(found, key=lambda one: (one.asked, one.id))


def unanswered(root: Path) -> list[RetrainRequest]:
    """Those that wait for a run or a person, or that a run works on."""
    return [one for one in requests(root) if one.state in ("open", "taken")]


def find_request(root: Path, wanted: str) -> RetrainRequest:
    """The request whose id begins so; raises `ConfigError` where there is none, or more than one."""
    # Every id begins with nothing, so a script's empty variable would find a single request.
    found = [one for one in requests(root) if wanted and one.id.startswith(wanted)]
    if len(found) != 1:
        what = f"no request {wanted!r}" if not found else f"{wanted} is the beginning of {len(found)} ids"
        raise ConfigError(what, where=REQUESTS, fix="orchestra retraining list shows them")
    return found[0]


def ask(root: Path, reasons: Sequence[RetrainReason], looked: Collection[Cause], asked_by: str) -> list[RetrainRequest]:
    """Open a request for each reason that is new; returns those.

    Open requests of a cause that was `looked` for, and whose fact is gone, are settled; but not those whose fact a run
    took away itself before it failed: only an answer or a person closes them. A fact that a run has answered, or that
    a person dropped, does not ask again; one that was settled and is back does, with the attempts of before: they count
    for the cool-down and the month. See `replaced` for drift that was answered.
    """
    now = datetime.now(UTC)
    known = {one.id: one for one in requests(root)}
    made = []
    for reason in reasons:
        ours = _id(reason)
        before = known.get(ours)
        if before is None or before.state == "settled":
            made.append(
                RetrainRequest(
                    id=ours,
                    cause=reason.cause,
                    what=one_line(reason.what),
                    needs=one_line(reason.needs),
                    assignments=reason.assignments,
                    serving=reason.serving,
                    asked_by=asked_by,
                    asked=now,
                    attempts=() if before is None else before.attempts,
                )
            )
            _save(root, made[-1])
    settle(root, reasons, looked)
    for one in known.values():
        if one.closed is not None and now - one.closed > timedelta(days=KEPT_DAYS):
            (root / REQUESTS / f"{one.id}.json").unlink(missing_ok=True)
    return made


def settle(root: Path, reasons: Sequence[RetrainReason], looked: Collection[Cause], *, begun: bool = False) -> None:
    """Settle open requests of a cause that was `looked` for, and whose fact is not among the reasons.

    `begun`: also those whose fact a run took away before it failed, as another run has come to a decision since.
    """
    present = {_id(reason) for reason in reasons}
    for one in requests(root):
        if one.state == "open" and one.cause in looked and one.id not in present and (begun or not one.begun):
            _save(root, one, state="settled", closed=datetime.now(UTC))


def drop(root: Path, request: RetrainRequest) -> None:
    """Close it by hand; raises `ConfigError` for one that is not open."""
    if request.state != "open":
        raise ConfigError(f"it is {request.state}", where=f"request {request.id}", fix="only open ones can be dropped")
    _save(root, request, state="dropped", closed=datetime.now(UTC))


def replaced(root: Path, serving: str, *, open_too: bool = False) -> None:
    """Settle what was answered about versions before the one of fingerprint `serving`: where that one goes and they
    serve again, their facts ask again. `open_too`: it has other weights, so that what is open is of the past, too."""
    for one in requests(root):
        if one.state in ("answered", *(["open"] if open_too else [])) and one.serving not in ("", serving):
            _save(root, one, state="settled", closed=datetime.now(UTC))


def reopen_lost(root: Path, records: Sequence[RunRecord], spent: Callable[[RunRecord], Decimal]) -> None:
    """Open again what was taken by a run that is gone: it was killed, or its record is lost. `spent`: its dollars."""
    by_id = {one.id: one for one in records}
    for one in requests(root):
        if one.state == "taken":
            record = by_id.get(one.attempts[-1].run_id)
            if record is None or not record.lives:
                _end(root, one, KILLED, Decimal(0) if record is None else spent(record))


def hindrance(root: Path, limits: Retraining, records: Sequence[RunRecord], *, now: bool = False) -> str:
    """Why no run may begin that answers the open requests; empty when one may.

    One at a time, after the cool-down (which `now` leaves out), within the month's dollars.
    """
    every = requests(root)
    if not any(one.waits for one in every):
        needs = sum(one.state == "open" for one in every)
        return f"{needs} requests wait for a person" if needs else "nothing asks for a retraining"
    busy = next((one for one in records if one.lives and one.alone), None)
    if busy is not None:
        return f"{busy.flow} {busy.name} works"
    if locked_elsewhere(root):
        return "another command works in this workspace"  # One without a record, such as learn.
    last = max((one.began for request in every for one in request.attempts), default=None)
    until = None if last is None else last + timedelta(hours=limits.cooldown_hours)
    if until is not None and until > datetime.now(UTC) and not now:
        return f"the cool-down of {limits.cooldown_hours:g} hours lasts until {until:%Y-%m-%d %H:%M} UTC"
    if month_left(root, limits) == 0:
        return f"this month's {limits.monthly_usd} USD for such runs are spent"
    return ""


def month_left(root: Path, limits: Retraining, *, besides: str = "") -> Decimal | None:
    """Dollars that such runs may still spend in this calendar month, UTC; None: no cap.

    None are left once the cap has ended a run, until a person raises it: a budget refuses before the last cent.
    `besides`: the run that is to spend them; its ledger counts what it spent before, so that its attempts do not.
    """
    if limits.monthly_usd is None:
        return None
    others = [one for one in _this_month(root) if one.run_id != besides]
    if any(one.month_usd is not None and one.month_usd >= limits.monthly_usd for one in others):
        return Decimal(0)
    return max(Decimal(0), limits.monthly_usd - _spent(others))


def month_spent(root: Path) -> Decimal:
    """Dollars of the runs that began in this calendar month, UTC, and that requests asked for."""
    return _spent(_this_month(root))


def _spent(attempts: Iterable[RetrainAttempt]) -> Decimal:
    found: dict[str, Decimal] = {}
    for one in attempts:
        # A run may have taken several requests, and a retried one took them twice.
        found[one.run_id] = max(one.usd, found.get(one.run_id, Decimal(0)))
    return sum(found.values(), Decimal(0))


def _this_month(root: Path) -> Iterator[RetrainAttempt]:
    today = datetime.now(UTC)
    for one in (attempt for request in requests(root) for attempt in request.attempts):
        if (one.began.year, one.began.month) == (today.year, today.month):
            yield one


def take(root: Path, run_id: str, run: str, seed: int) -> list[RetrainRequest]:
    """Mark every request that waits as taken by a run; returns them.

    Drift may leave data and prices as they were, so that only the next `seed` makes another model; what goes on after a
    run that failed keeps that one's.
    """
    taken = []
    for one in requests(root):
        if one.waits:
            attempt = RetrainAttempt(run_id=run_id, run=run, began=datetime.now(UTC))
            fresh = one.cause == "drift" and not (one.attempts and one.assignments)
            made = (f"grpo.seed={seed}",) if fresh else one.assignments
            taken.append(_save(root, one, state="taken", attempts=(*one.attempts, attempt), assignments=made))
    return taken


def decided(root: Path, run_id: str) -> list[RetrainRequest]:
    """What a run answered but for a person, for whom it is suspended; when it goes on, it goes on with these."""
    every = [one for one in requests(root) if one.attempts]
    return [one for one in every if (one.attempts[-1].run_id, one.attempts[-1].state) == (run_id, AWAITING)]


def take_up(root: Path, run_id: str) -> list[RetrainRequest]:
    """Mark what a suspended run had answered as taken by it again; returns those, none for a run that begins."""
    taken = []
    for one in decided(root, run_id):
        attempts = (*one.attempts[:-1], one.attempts[-1].model_copy(update={"state": ""}))
        taken.append(_save(root, one, state="taken", closed=None, attempts=attempts))
    return taken


def close(
    root: Path,
    taken: Sequence[RetrainRequest],
    state: str,
    usd: Decimal,
    *,
    answered: bool,
    month_usd: Decimal | None = None,
) -> None:
    """Close what a run took, with how it ended; open it again where it came to no decision. `month_usd`: the month's
    cap, where that ended it."""
    for one in taken:
        _end(root, one, state, usd, answered=answered, month_usd=month_usd)


def assignments(taken: Sequence[RetrainRequest], reached: Sequence[str] = ()) -> list[str]:
    """What changes in params.yaml, and stays so; drift's own changes only where nothing else asks.

    New prices and data make another model anyway. `reached`: values behind which none goes, as a person may have moved
    on since a run failed.
    """
    others = [one for one in taken if one.cause in ("price", "data")]
    newest: dict[str, str] = {}
    for one in (*reached, *(each for request in others or taken for each in request.assignments)):
        key = one.partition("=")[0]
        newest[key] = max(newest.get(key, one), one, key=_with_numbers)
    return [one for one in newest.values() if one not in reached]


def _with_numbers(text: str) -> list[str | int]:
    """To compare by: the 10th comes after the 9th."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def listed(root: Path, limits: Retraining, records: Sequence[RunRecord]) -> Iterator[str]:
    """The requests for a person, open ones first, and why a run does or does not begin."""
    first = unanswered(root)
    for one in [*first, *(other for other in requests(root) if other not in first)]:
        yield f"{one.id}  {one.state:<9}{one.asked:%Y-%m-%d %H:%M}  {one.line}"
        if one.state == "open" and one.needs:
            yield f"          needs a person: {one.needs}"
        for each in one.attempts:
            yield f"          {each.run}, {each.began:%Y-%m-%d %H:%M}: {each.state or 'runs'}, {each.usd:.2f} USD"
    why = hindrance(root, limits, records)
    left = month_left(root, limits)
    cap = "" if left is None else f"; {left:.2f} of {limits.monthly_usd:.2f} USD are left this month"
    yield (f"no run begins: {why}" if why else "a run may begin: orchestra retraining start") + cap


def _id(reason: RetrainReason) -> str:
    return hashlib.sha256(f"{reason.cause}\0{reason.key}".encode()).hexdigest()[:8]


def _end(
    root: Path,
    request: RetrainRequest,
    state: str,
    usd: Decimal,
    *,
    answered: bool = False,
    month_usd: Decimal | None = None,
) -> None:
    last = request.attempts[-1]
    # The ledger of a suspended run may lie in MLflow by now: what it had booked stays.
    changes = {"state": state, "usd": max(last.usd, usd), "month_usd": month_usd}
    attempts = (*request.attempts[:-1], last.model_copy(update=changes))
    if answered:
        _save(root, request, state="answered", closed=datetime.now(UTC), attempts=attempts)
    else:
        _save(root, request, state="open", attempts=attempts)


def _save(root: Path, request: RetrainRequest, **changes: object) -> RetrainRequest:
    changed = request.model_copy(update=changes)
    atomic.write_text(root / REQUESTS / f"{changed.id}.json", changed.model_dump_json(indent=1) + "\n")
    return changed
