"""Records every change of the serving version in MLflow: the person, the change and the reason."""

import contextlib
import getpass
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestra.text import in_markdown
from orchestra.types import Record
from tasks.platform.stage import Stage
from tasks.platform.tracking import LONGEST_NAME, NOTE, connect, experiment, log_all, said

EXPERIMENT = "orchestra-releases"
ACTOR = "ORCHESTRA_ACTOR"
NOTED = 2000
"""Characters of a reason or a finding in the description; a tag of its own holds more."""


class ReleaseRecord(Record):
    """One release, rollback, canary or shadow, whatever came of it."""

    kind: str
    """release, rollback, switch, canary, shadow."""
    before: str
    """The version that served; empty where nothing did."""
    wanted: str
    """The version that was to serve, or to be tried."""
    after: str
    """The version that serves now."""
    outcome: str
    why: str
    """What a person or a flow gave as the reason."""
    finding: str = ""
    """The verdict of a trial, or the error."""
    drained: str = ""
    """How the requests to what served before ended."""
    seconds: float = 0.0


def actor() -> str:
    """Who acts: $ORCHESTRA_ACTOR where a scheduler sets it, else the user and the machine."""
    try:
        return os.environ.get(ACTOR) or f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return f"uid {os.getuid()}@{socket.gethostname()}"


@contextlib.contextmanager
def unless_lost(stage: Stage) -> Iterator[None]:
    """The release is what counts: it stands, whether MLflow knows of it or not."""
    try:
        yield
    except Exception as error:
        stage.say(f"not recorded in MLflow: {type(error).__name__}: {error}")


def record(root: Path, made: ReleaseRecord, figures: Mapping[str, float], ledger: Path | None = None) -> str:
    """Write it as a run of its own, with the ledger where there is one; the run's id."""
    client: Any = connect(root)
    where = experiment(client, root, EXPERIMENT)
    tags = {f"release.{key}": said(str(value)) for key, value in made.model_dump(exclude={"seconds"}).items()}
    tags |= {"release.who": said(actor(), LONGEST_NAME), NOTE: note(made)}
    name = said(f"{made.kind} {made.before or 'nothing'} → {made.wanted}", LONGEST_NAME)
    run_id = str(client.create_run(where, tags=tags, run_name=name).info.run_id)
    log_all(client, run_id, metrics={**figures, "release.seconds": made.seconds})
    if ledger is not None and ledger.exists():
        client.log_artifact(run_id, str(ledger))
    failed = made.outcome in ("failed", "rolled_back")
    client.set_terminated(run_id, status="FAILED" if failed else "FINISHED")
    return run_id


def record_drain(root: Path, run_id: str, made: ReleaseRecord, figures: Mapping[str, float]) -> None:
    """Add to the run how the last requests to what served before ended, which is known long after."""
    client: Any = connect(root)
    log_all(client, run_id, metrics=figures)
    client.set_tag(run_id, "release.drained", said(made.drained))
    client.set_tag(run_id, NOTE, note(made))


def note(made: ReleaseRecord) -> str:
    """A sentence or two for people, in Markdown."""
    who, wanted, after = (in_markdown(said(one, LONGEST_NAME)) for one in (actor(), made.wanted, made.after))
    serves = f"version {after} serves" if made.after else "nothing serves"
    parts = [f"{who}: {made.kind} of version {wanted}, {made.outcome}; {serves}."]
    parts += [in_markdown(said(text, NOTED)) for text in (made.why, made.finding, made.drained) if text]
    return " ".join(parts)
