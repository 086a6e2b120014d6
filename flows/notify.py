"""`python -m flows.notify`: Prefect automations that tell a webhook of failed runs: cause, runbook and command."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from flows._workspace import settings
from flows.schedule import ENTRYPOINTS, connected, workspace_tag
from orchestra.cli.operations.runs import RUNBOOK
from orchestra.errors import ConfigError
from tasks.platform.commands import run_command

FAILURES = ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut")
ENDS = (*FAILURES, "prefect.flow-run.Completed", "prefect.flow-run.Cancelled")
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
        raise ConfigError(f"{url!r} is no address of the web", where="notify", fix="https://hooks.slack.com/…")
    with connected(root):
        remove(root)
        block: Any = CustomWebhookNotificationBlock(
            name="orchestra",
            url="{{url}}",
            json_data={"text": "{{subject}}\n{{body}}"},
            secrets=SecretDict({"url": url}),
        )
        send = SendNotification(
            block_document_id=block.save(_name(root, "webhook"), overwrite=True), subject=SUBJECT, body=BODY
        )
        lines = []
        for flow in ENTRYPOINTS:
            trigger = EventTrigger(
                expect=set(FAILURES),
                match_related={"prefect.resource.role": "flow", "prefect.resource.name": flow},
                posture=Posture.Reactive,
                threshold=1,
                within=QUIET,
            )
            Automation(name=_name(root, flow), description=f"{flow} failed", trigger=trigger, actions=[send]).create()
            lines.append(f"{flow}: a failure is told, at most once in {QUIET}")
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

    names = {_name(root, one) for one in (*ENTRYPOINTS, "heartbeat")}
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
