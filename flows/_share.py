"""The last task of a flow that changed something: a push to the store that machines share, where one is set."""

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NONE

from flows._runs import retryable
from orchestra.config.schema import load_params
from orchestra.system.runs import RunJournal
from orchestra.system.workspace import Screen

TIMEOUT_S = 6 * 3600


@task(
    cache_policy=NONE,
    retries=3,
    retry_delay_seconds=[10, 60, 300],
    retry_condition_fn=retryable,
    timeout_seconds=TIMEOUT_S,
)
def run_push(root: Path) -> str:
    """Outputs, checkpoints and the registry are in the store; what is there already is not sent again."""
    from tasks.records.shared import push

    return push(root, load_params(root / "params.yaml").storage)


def share(root: Path, journal: RunJournal) -> None:
    """Push, if params.yaml names a store."""
    if load_params(root / "params.yaml").storage.shared:
        with journal.stage("push") as note:
            told: Any = run_push.with_options(name="push")(root)
            note("pushed")
        Screen()(f"push: {told}")
