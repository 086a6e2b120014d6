"""A person's approval of a version that passed every check: the request, its answer, and when it expires."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from orchestra.text import one_line
from orchestra.types import Record


class Answer(Record):
    """What a person says."""

    approve: bool
    by: Annotated[str, Field(min_length=1, max_length=200)]
    """The person's name."""
    reason: Annotated[str, Field(max_length=1000)] = ""


class Approval(Record):
    """A request for approval of a version, and its answer. Times are UTC."""

    state: Literal["waiting", "approved", "refused", "expired", "withdrawn"]
    """Withdrawn: the gate judged the version again, and asks nobody."""
    version: int
    champion: int | None
    """The version in whose place it is to serve: an answer counts for nothing else."""
    data_hash: str
    """Of the held-out data, tools and code that it was measured on."""
    asked: datetime
    expires: datetime
    run: str = ""
    """The flow run that asked; a suspended one waits for the answer."""
    mlflow_run: str = ""
    """Its MLflow run; empty where none is."""
    by: str = ""
    at: datetime | None = None
    """When it was answered, found expired or withdrawn."""
    reason: str = ""

    @property
    def line(self) -> str:
        """One sentence for a person."""
        if self.state == "waiting":
            n = self.version
            return f"A person must answer by {_told(self.expires)}: `orchestra approve {n}` or `orchestra refuse {n}`."
        if self.state == "expired":
            return f"Nobody answered by {_told(self.expires)}."
        when = "" if self.at is None else f" on {_told(self.at)}"
        if self.state == "withdrawn":
            return f"Withdrawn{when}: the gate judged the version again."
        return f"{self.state.capitalize()} by {self.by}{when}{f': {one_line(self.reason)}' if self.reason else '.'}"

    def expired(self, now: datetime) -> bool:
        """Whether it holds no more: nobody answered in time, or it is withdrawn."""
        return self.state in ("expired", "withdrawn") or (self.state == "waiting" and now >= self.expires)

    def answered(self, said: Answer, now: datetime) -> "Approval":
        """With that answer; one that comes too late changes nothing. A later answer replaces an earlier one."""
        if self.state == "withdrawn":
            return self
        if self.expired(now):
            return self.model_copy(update={"state": "expired", "at": now})
        state = "approved" if said.approve else "refused"
        return self.model_copy(update={"state": state, "by": said.by, "at": now, "reason": said.reason})


def request(version: int, champion: int | None, data_hash: str, now: datetime, hours: int) -> Approval:
    """A new request, open for so many hours."""
    return Approval(
        state="waiting",
        version=version,
        champion=champion,
        data_hash=data_hash,
        asked=now,
        expires=now + timedelta(hours=hours),
    )


def _told(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
