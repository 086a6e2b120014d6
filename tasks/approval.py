"""A person's approval: requests and answers, kept as tags of the version that they are about."""

from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import ValidationError

from orchestra.errors import ConfigError, DataError
from orchestra.promotion.approval import Answer, Approval
from orchestra.promotion.parts import renewed_description
from orchestra.types import Record
from tasks.platform.pages import renew_verdict
from tasks.platform.registry import CHAMPION, ROLLED_BACK, ModelVersion, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import said
from tasks.rollback import take_over

STATE = "approval"
"""Tag of a version: waiting, approved, refused or expired."""
RECORD = "approval.record"
"""Tag of a version: the whole request and its answer, as JSON."""
AGAIN = "orchestra run compares and asks again"


class Answered(Record):
    """What an answer did."""

    approval: Approval
    changed: bool
    """Whether the champion is another than before."""

    @property
    def name(self) -> str:
        """The decision now."""
        return "Promoted" if self.approval.state == "approved" else "Rejected"


def now() -> datetime:
    """The present second, UTC."""
    return datetime.now(UTC).replace(microsecond=0)


def read(version: ModelVersion) -> Approval | None:
    """The last request about a version; None when there was none that this program can read."""
    try:
        return Approval.model_validate_json(version.tags.get(RECORD, ""))
    except ValidationError:
        return None


def write(registry: Registry, version: ModelVersion, approval: Approval) -> None:
    """Keep it: whole for this program, and in words for people and searches."""
    registry.tag(version, {**_in_words(approval), RECORD: approval.model_dump_json()})
    _tag_run(registry, approval.mlflow_run, _in_words(approval))


def _in_words(approval: Approval) -> dict[str, str]:
    return {
        STATE: approval.state,
        "approval.expires": approval.expires.isoformat(),
        "approval.by": said(approval.by),
        "approval.at": "" if approval.at is None else approval.at.isoformat(),
        "approval.reason": said(approval.reason),
    }


def _tag_run(registry: Registry, run_id: str, tags: Mapping[str, str]) -> None:
    """Say it also in the MLflow run that asked; nothing where none did."""
    for key, value in tags.items() if run_id else ():
        registry.client.set_tag(run_id, key, value)


def standing(registry: Registry, candidate: ModelVersion, fresh: Approval) -> Approval:
    """The approval of a candidate that passed every check: what is known of it, or the new request.

    A request and its answer hold as long as the evidence and the champion are the same. One that expired is made again.
    """
    known = read(candidate)
    same = known is not None and (known.champion, known.data_hash) == (fresh.champion, fresh.data_hash)
    if known is not None and same and not known.expired(fresh.asked):
        runs = {"run": known.run or fresh.run, "mlflow_run": fresh.mlflow_run or known.mlflow_run}
        fresh = known.model_copy(update=runs)
    elif known is not None and known.state == "waiting":
        _tag_run(registry, known.mlflow_run, {STATE: "expired", "approval.at": fresh.asked.isoformat()})
    write(registry, candidate, fresh)
    return fresh


def answer(stage: Stage, number: int | None, said: Answer) -> Answered:
    """Give a person's answer about a version, None: the one that waits; approved, it is champion.

    Safe to repeat after a kill. Raises `ConfigError` when nobody asked about that version, `DataError` when the request
    has expired or is about another champion, or the checkpoint is lost; nothing moves then.
    """
    registry = Registry(stage.root, stage.params.promote.model_name)
    version, asked = _asked(registry, number)
    champion, present, where = registry.at(CHAMPION), now(), f"version {version.number}"
    if champion is not None and champion.number == version.number:
        if said.approve and asked.state == "approved":
            return Answered(approval=asked, changed=False)
        raise DataError("this version already serves", where=where, fix="orchestra release --rollback takes it out")
    if ROLLED_BACK in version.tags:
        fix = f"orchestra release --to {version.number}"
        raise DataError("a person took it out of service", where=where, fix=fix)
    made = asked.answered(said, present)
    if made.state == "expired":
        write(registry, version, made)
        raise DataError(made.line.rstrip("."), where=where, fix=AGAIN)
    if said.approve and asked.champion != (None if champion is None else champion.number):
        raise DataError("it was compared with another champion than the present one", where=where, fix=AGAIN)
    if said.approve:
        registry.fetch(version).verified()
    write(registry, version, made)
    done = Answered(approval=made, changed=said.approve and take_over(registry, version))
    registry.tag(version, {"decision": done.name})
    _tell(registry, version.number, asked, done)
    return done


def check_asked(stage: Stage, number: int | None) -> None:
    """Raises `ConfigError` when nobody asked about that version; None: when not just one waits."""
    _asked(Registry(stage.root, stage.params.promote.model_name), number)


def _asked(registry: Registry, number: int | None) -> tuple[ModelVersion, Approval]:
    """The version of that number and the request about it; without a number the only one that waits."""
    requests = {one.number: (one, found) for one in registry.versions() if (found := read(one)) is not None}
    waiting = [one for one, (_, approval) in requests.items() if approval.state == "waiting"]
    if number is None and len(waiting) == 1:
        number = waiting[0]
    if number is not None and number in requests:
        return requests[number]
    if number is None:
        what = "several versions wait" if waiting else "no version waits for approval"
    else:
        what = f"nobody asked about version {number}"
    known = ", ".join(map(str, sorted(waiting or requests)))
    fix = f"name one of: {known}" if known else "promote.approval: required in params.yaml, then orchestra run"
    raise ConfigError(what, where=registry.model_name, fix=fix)


def _tell(registry: Registry, number: int, asked: Approval, done: Answered) -> None:
    """The answer on the decision page, in the version's description, and in the MLflow run that asked."""
    version = registry.version(number)
    assert version is not None, "it was just tagged"
    renew_verdict(registry, version, done.name, done.approval)
    described = renewed_description(registry.description(number), asked, done.approval, done.name)
    registry.describe(number, described)
    _tag_run(registry, asked.mlflow_run, {"decision": done.name, "mlflow.note.content": described})
