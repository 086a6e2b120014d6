"""`python -m flows.notify`: Prefect automations that notify a webhook of failed runs and of waiting versions."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from flows._workspace import settings
from flows.schedule import ENTRYPOINTS, connected, workspace_tag
from orchestra.cli.operations.runs import RUNBOOK
from orchestra.errors import ConfigError
from orchestra.system.runs import AWAITING, SHORT
from tasks.platform.commands import run_command

FAILURES = ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut")
WAITS = (f"prefect.flow-run.{AWAITING}", "prefect.flow-run.Suspended")
"""A person must approve a version; a suspended run has no process, and so no heartbeat."""
NAMED = ("Promoted", "Rejected", *SHORT, "Unchanged", "Nothing", "Tried", "RolledBack", "Waiting")
"""Names of our normal endings: Prefect names its events by them."""
ENDS = (
    *(FAILURES + WAITS),
    *("prefect.flow-run.Completed", "prefect.flow-run.Cancelled"),
    *(f"prefect.flow-run.{name}" for name in NAMED),
)
WAITING = "waiting"
HEARTBEAT = "prefect.flow-run.heartbeat"
QUIET = timedelta(hours=1)
"""A flow that fails again within this time is not told of again."""
SILENCE = timedelta(seconds=90)
"""Three heartbeats: a run that gave none for so long is crashed. Its machine may be gone with it."""
SUBJECT = "{{ flow.name }} {{ flow_run.name }}: {{ flow_run.state.name }}"
BODY = f"""cause: {{{{ flow_run.state.message }}}}
runbook: {RUNBOOK}
type: orchestra why {{{{ flow_run.name }}}}
then: orchestra rerun {{{{ flow_run.name }}}}"""
WAITING_SUBJECT = "{{ flow.name }} {{ flow_run.name }}: a version waits for a person's approval"
WAITING_BODY = """read: orchestra report
type: orchestra approve --by NAME --reason TEXT
or: orchestra refuse --by NAME --reason TEXT"""


def add(root: Path, url: str) -> list[str]:
    """Tell this address of each flow's failures, at most once an hour; returns a line for each automation.

    The address is kept as a secret of Prefect. The body is JSON with the one key `text`, which Slack, Mattermost and
    Rocket.Chat take. Raises `ConfigError` for what is no address.
    """
    from prefect.automations import Automation
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState, SendNotification
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.types import SecretDict

    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{url!r} is not a web address", where="notify", fix="give an address such as https://hooks.slack.com/…"
        )
    with connected(root):
        remove(root)
        block: Any = CustomWebhookNotificationBlock(
            name="orchestra",
            url="{{url}}",
            json_data={"text": "{{subject}}\n{{body}}"},
            secrets=SecretDict({"url": url}),
        )
        saved = block.save(_name(root, "webhook"), overwrite=True)

        def tell(name: str, description: str, flow: str, events: tuple[str, ...], subject: str, body: str) -> None:
            trigger = EventTrigger(
                expect=set(events),
                match_related={"prefect.resource.role": "flow", "prefect.resource.name": flow},
                posture=Posture.Reactive,
                threshold=1,
                within=QUIET,
            )
            send = SendNotification(block_document_id=saved, subject=subject, body=body)
            Automation(name=_name(root, name), description=description, trigger=trigger, actions=[send]).create()

        lines = []
        for flow in ENTRYPOINTS:
            tell(flow, f"{flow} failed", flow, FAILURES, SUBJECT, BODY)
            lines.append(f"{flow}: a failure is told, at most once in {QUIET}")
        tell(WAITING, "a version waits for approval", "retrain", WAITS, WAITING_SUBJECT, WAITING_BODY)
        lines.append("retrain: a version that waits for a person's approval is told")
        dead = EventTrigger(
            after={HEARTBEAT},
            expect={HEARTBEAT, *ENDS},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        )
        crash = ChangeFlowRunState(
            state=StateType.CRASHED, name="Crashed", message="no heartbeat: its process or machine is gone"
        )
        Automation(name=_name(root, "heartbeat"), description="no heartbeat", trigger=dead, actions=[crash]).create()
    return [*lines, f"a run without a heartbeat for {SILENCE} is crashed, and told"]


def remove(root: Path) -> int:
    """Delete this workspace's automations; returns how many there were."""
    from prefect.client.orchestration import get_client

    names = {_name(root, one) for one in (*ENTRYPOINTS, WAITING, "heartbeat")}
    with connected(root), get_client(sync_client=True) as client:
        found = [one for one in client.read_automations() if one.name in names]
        for one in found:
            client.delete_automation(one.id)
    return len(found)


def _name(root: Path, what: str) -> str:
    return f"{workspace_tag(root)}-{what}"


def main(arguments: list[str]) -> None:
    """Add or remove."""
    parser = argparse.ArgumentParser(prog="python -m flows.notify", description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--remove", action="store_true")
    told, root = parser.parse_args(arguments), Path.cwd()
    settings(root)
    print("\n".join(add(root, told.url)) if told.url else f"{remove(root)} automations removed")


if __name__ == "__main__":
    run_command(main)
