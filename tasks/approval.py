"""A person's approval: requests and answers, kept as tags of the version that they are about."""

from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import ValidationError

from orchestra.errors import ConfigError, DataError
from orchestra.promotion.approval import Answer, Approval
from orchestra.promotion.parts import description_taken_back, renewed_description, renewed_summary
from orchestra.system.runs import TAKEN_BACK
from orchestra.types import Record
from tasks.platform.pages import renew_verdict
from tasks.platform.registry import CHAMPION, DECISION, PROMOTED, ModelVersion, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import LONGEST_NAME, NOTE, said
from tasks.rollback import take_over

STATE = "approval"
"""Tag of a version: waiting, approved, refused, expired or withdrawn."""
RECORD = "approval.record"
"""Tag of a version: the whole request and its answer, as JSON."""
WAITING = "Waiting"
"""Decision about a version until a person's answer is carried out and told."""
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


def waits(version: ModelVersion) -> bool:
    """Whether it waits for a person who can still answer; so does one whose request another program version wrote."""
    known = read(version)
    return version.tags.get(STATE) == "waiting" and not (known is not None and known.expired(now()))


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


def withdraw(registry: Registry, candidate: ModelVersion) -> None:
    """End the request about a candidate of which nobody is asked now, be it refused; nothing where there is none."""
    known = read(candidate)
    if known is not None and known.state in ("waiting", "refused"):
        write(registry, candidate, known.model_copy(update={"state": "withdrawn", "at": now()}))


def answer(stage: Stage, number: int | None, said: Answer) -> Answered:
    """Give a person's answer about a version, None: the one that waits; approved, it is champion.

    Safe to repeat after a kill, also without the number. Raises `ConfigError` when nobody asked about that version,
    `DataError` when the request does not hold any more, or is about another champion or other held-out data, or the
    checkpoint is lost; nothing moves then.
    """
    from tasks.evaluate import data_hash, heldout

    registry = Registry(stage.root, stage.params.promote.model_name)
    version, asked = _asked(registry, number)
    champion, present, where = registry.at(CHAMPION), now(), f"version {version.number}"
    if champion is not None and champion.number == version.number:
        if said.approve and asked.state == "approved":
            complete(registry, version.number)
            return Answered(approval=asked, changed=False)
        raise DataError("this version already serves", where=where, fix="orchestra release --rollback takes it out")
    if version.taken_out:
        raise DataError(version.taken_out, where=where, fix=f"orchestra release --to {version.number}")
    made = asked.answered(said, present)
    if made.expired(present):
        write(registry, version, made)
        raise DataError(made.line.rstrip("."), where=where, fix=AGAIN)
    decision = version.tags.get(DECISION)
    if decision != WAITING and (decision, asked.state) != ("Rejected", "refused"):
        fix = AGAIN if PROMOTED not in version.tags else f"orchestra release --to {version.number} brings it back"
        raise DataError(f"no answer is open: the last decision about it is {decision}", where=where, fix=fix)
    if said.approve and asked.champion != (None if champion is None else champion.number):
        raise DataError("it was compared with another champion than the present one", where=where, fix=AGAIN)
    if said.approve and asked.data_hash != data_hash(stage, heldout(stage)):
        raise DataError(
            "it was measured on other held-out data, tools or code than the present", where=where, fix=AGAIN
        )
    if said.approve:
        registry.fetch(version).verified()
    registry.tag(version, {DECISION: WAITING})
    write(registry, version, made)
    done = Answered(approval=made, changed=said.approve and take_over(registry, version))
    complete(registry, version.number)
    return done


def complete(registry: Registry, number: int) -> None:
    """Tell an answer that was carried out: on the page, in the description, in the MLflow run that asked; in tags last.

    Nothing where that is done. The alias of an approved version moved before, so a kill may have ended this.
    """
    version = registry.version(number)
    given = None if version is None else read(version)
    if version is None or given is None or not _is_open(version, given):
        return
    name = Answered(approval=given, changed=False).name
    renew_verdict(registry, version, name, given)
    described = renewed_description(registry.description(number), given, name)
    registry.describe(number, described)
    _tell_run(registry, given, name, name.lower(), described)
    registry.tag(version, {DECISION: name})


def taken_back(stage: Stage, given: Approval, found: str) -> None:
    """Tell in the MLflow run that asked what a canary found of the approved version; nothing where none did.

    Safe to repeat.
    """
    if not given.mlflow_run:
        return
    registry = Registry(stage.root, stage.params.promote.model_name)
    note = registry.client.get_run(given.mlflow_run).data.tags.get(NOTE, "")
    _tell_run(registry, given, TAKEN_BACK, "rolled back", description_taken_back(note, found))


def _tell_run(registry: Registry, given: Approval, name: str, verdict: str, described: str) -> None:
    """Put the decision into the MLflow run that asked, its name and its reasons too; nothing where none did."""
    if not given.mlflow_run:
        return
    run = registry.client.get_run(given.mlflow_run)
    called = run.info.run_name.partition(" · ")[0]
    told = {
        DECISION: name,
        "decision.reasons": said(renewed_summary(run.data.tags.get("decision.reasons", ""), given, name)),
        NOTE: described,
        "mlflow.runName": said(f"{called} · version {given.version} {verdict}", LONGEST_NAME),
    }
    _tag_run(registry, given.mlflow_run, told)


def _is_open(version: ModelVersion, given: Approval) -> bool:
    """Whether an answer was recorded that a kill kept from being told."""
    return given.state in ("approved", "refused") and version.tags.get(DECISION) == WAITING


def check_asked(stage: Stage, number: int | None) -> None:
    """Raises `ConfigError` when nobody asked about that version; None: when not just one waits."""
    _asked(Registry(stage.root, stage.params.promote.model_name), number)


def _asked(registry: Registry, number: int | None) -> tuple[ModelVersion, Approval]:
    """The version of that number and the request about it; without a number the only one that waits.

    Where none waits, it is the only one whose answer a kill kept from being told, or else the newest that waited.
    """
    every = sorted(registry.versions(), key=lambda one: one.number)
    requests = {one.number: (one, found) for one in every if (found := read(one)) is not None}
    asked = [one for one, (_, approval) in requests.items() if approval.state == "waiting"]
    waiting = [one for one in asked if waits(requests[one][0])]
    waiting = waiting or [one for one, found in requests.items() if _is_open(*found)] or asked[-1:]
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
