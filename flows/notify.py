"""`python -m flows.notify`: Prefect automations that report failed runs, failed canaries and waiting versions."""

import argparse
import asyncio
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from flows._workspace import HEARTBEAT_S, settings
from flows.schedule import ENTRYPOINTS, connected, workspace_tag, workspace_tags
from orchestra.cli.operations.runs import RUNBOOK
from orchestra.errors import ConfigError, ServiceError
from orchestra.system.processes import running
from orchestra.system.runs import AWAITING, SHORT, SKIPPED, TAKEN_BACK
from orchestra.text import one_line
from tasks.platform.commands import run_command

FAILURES = ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut")
WAITS = (f"prefect.flow-run.{AWAITING}", "prefect.flow-run.Suspended")
"""A person must approve a version, or suspended the run; a suspended run has no process, and so no heartbeat."""
NAMED = ("Promoted", "Rejected", *SHORT, "Unchanged", "Nothing", "Tried", TAKEN_BACK, "Waiting", SKIPPED)
"""Names of our normal endings: Prefect names its events by them."""
ENDS = (
    *(FAILURES + WAITS),
    *("prefect.flow-run.Completed", "prefect.flow-run.Cancelled"),
    *(f"prefect.flow-run.{name}" for name in NAMED),
)
TAKEN = (f"prefect.flow-run.{TAKEN_BACK}",)
"""A canary took a version back, which these flows release."""
RELEASING = ["retrain", "answer", "release"]
WAITING, CANARY = "waiting", "canary"
HOOK, MAIL = "webhook", "mail"
HEARTBEAT = "prefect.flow-run.heartbeat"
QUIET = timedelta(hours=1)
"""A flow that fails again within this time is not told of again."""
SILENCE = timedelta(seconds=3 * HEARTBEAT_S)
"""Three heartbeats: a run that gave none for so long is crashed. Its machine may be gone with it."""
SUBJECT = "{{ flow.name }} {{ flow_run.name }}: {{ flow_run.state.name }}"
CAUSE = "{{ flow_run.state.message }}"
QUOTED = (
    "`{{ (flow_run.state.message | string).split() | join(' ') | replace('&', '&amp;') | replace('<', '&lt;')"
    """ | replace('>', '&gt;') | replace('`', "'") }}`"""
)
"""The same for a chat: what an expert or a file said in it is no mention, link or image there."""
BODY = f"""cause: {CAUSE}
runbook: {RUNBOOK}
type: orchestra why {{{{ flow_run.name }}}}
then: orchestra rerun {{{{ flow_run.name }}}}"""
FIRST_BODY = f"""Runs and canaries that fail, and versions that wait, are told to this address from now on.
runbook: {RUNBOOK}
end it: orchestra notify --remove"""
BY_HAND = "flow_run.state.name == 'Suspended' and not flow_run.state.state_details.run_input_keyset"
"""Suspended without a form to answer: a person did it in Prefect's UI."""
WAITING_SUBJECT = (
    "{{ flow.name }} {{ flow_run.name }}: "
    f"{{% if {BY_HAND} %}}suspended in Prefect{{% else %}}a version waits for a person's approval{{% endif %}}"
)
WAITING_BODY = f"""{{% if {BY_HAND} %}}resume it in Prefect's UI
or: orchestra rerun {{{{ flow_run.name }}}}{{% else %}}read: orchestra report
type: orchestra approve --by NAME --reason TEXT
or: orchestra refuse --by NAME --reason TEXT{{% endif %}}"""
TAKEN_SUBJECT = "{{ flow.name }} {{ flow_run.name }}: a version did not pass its canary and was taken back"
TAKEN_BODY = f"""cause: {CAUSE}
runbook: {RUNBOOK}, CandidateWorse
type: orchestra why {{{{ flow_run.name }}}}"""


def add(root: Path, urls: list[str], smtp: str | None = None, sender: str | None = None) -> list[str]:
    """Tell these addresses of each flow's failures, at most once an hour, and of versions that a canary took back or
    that wait; returns a line for each automation.

    A webhook's address is kept as a secret of Prefect. Its body is JSON with the one key `text`, which Slack,
    Mattermost and Rocket.Chat take. `mailto:` gets a first mail at once; its password is read where Prefect's server
    runs. Raises `ConfigError` for what is no address, and `ServiceError` where the first mail is not taken.
    """
    from prefect.automations import Automation
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState, SendNotification
    from prefect.events.schemas.automations import EventTrigger, Posture

    blocks = _blocks(urls, smtp, sender)
    with connected(root):
        _introduce(root, blocks)
        remove(root)
        saved = {kind: block.save(_name(root, kind), overwrite=True) for kind, block in blocks.items()}

        def tell(
            name: str, description: str, flow: str | list[str], events: tuple[str, ...], subject: str, body: str
        ) -> None:
            trigger = EventTrigger(
                expect=set(events),
                match_related={"prefect.resource.role": "flow", "prefect.resource.name": flow},
                posture=Posture.Reactive,
                threshold=1,
                within=QUIET,
            )
            send = [
                SendNotification(block_document_id=one, subject=subject, body=_marked(body) if HOOK in kind else body)
                for kind, one in saved.items()
            ]
            Automation(name=_name(root, name), description=description, trigger=trigger, actions=send).create()

        lines = []
        for flow in ENTRYPOINTS:
            tell(flow, f"{flow} failed", flow, FAILURES, SUBJECT, BODY)
            lines.append(f"{flow}: a failure is told, at most once in {QUIET}")
        tell(CANARY, "a canary took a version back", RELEASING, TAKEN, TAKEN_SUBJECT, TAKEN_BODY)
        lines.append(f"{', '.join(RELEASING)}: a version that its canary took back is told")
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


def _marked(body: str) -> str:
    """The body for a webhook, where the text of others is between backticks."""
    return body.replace(CAUSE, QUOTED)


def _blocks(urls: list[str], smtp: str | None, sender: str | None) -> dict[str, Any]:
    """Prefect's notification for each address, by the name it is kept under."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.types import SecretDict

    from flows.server.mail import SCHEME, email

    found: dict[str, Any] = {}
    for place, url in enumerate(urls):
        if url.startswith(SCHEME):
            found[f"{MAIL}-{place}"] = email(url, smtp, sender)
        elif url.startswith(("http://", "https://")):
            found[f"{HOOK}-{place}"] = CustomWebhookNotificationBlock(
                name="orchestra",
                url="{{url}}",
                json_data={"text": "{{subject}}\n{{body}}"},
                secrets=SecretDict({"url": url}),
            )
        else:
            fix = "https://hooks.slack.com/… or mailto:oncall@example.org"
            raise ConfigError(f"{url!r} is no address of the web and none of e-mail", where="notify", fix=fix)
    if (smtp or sender) and not any(name.startswith(MAIL) for name in found):
        raise ConfigError("nobody is told by e-mail", where="notify", fix="mailto:oncall@example.org, or no --smtp")
    return found


def _introduce(root: Path, blocks: dict[str, Any]) -> None:
    """A first mail, so that a wrong password is found now and not at the first failure."""
    from prefect.blocks.abstract import NotificationError

    from flows.server.mail import PASSWORD, EmailNotification

    for block in blocks.values():
        if not isinstance(block, EmailNotification):
            continue
        _same_password(root, block.user)
        try:
            with block.raise_on_failure():
                asyncio.run(block.notify(FIRST_BODY, f"orchestra: failures of {root.name} are told here"))
        except NotificationError as error:
            where = f"{block.server}:{block.port} ({block.security})"
            fix = f"check --smtp, --sender and {PASSWORD}"
            raise ServiceError(one_line(error.log), where=where, fix=fix) from None


def _same_password(root: Path, user: str | None) -> None:
    """Prefect's server of this workspace was started with the password that is set here; raises `ConfigError`."""
    import psutil

    from flows.server.mail import PASSWORD

    if user is None:
        return
    if not (password := os.environ.get(PASSWORD)):
        fix = f"export {PASSWORD}=…; orchestra stop prefect; orchestra up"
        raise ConfigError(f"{PASSWORD} is not set, and {user} needs a password", where="notify", fix=fix)
    server = running(root, "prefect")
    if server is not None and psutil.Process(server.pid).environ().get(PASSWORD) != password:
        what = f"Prefect's server was started without this {PASSWORD}"
        raise ConfigError(what, where="notify", fix="orchestra stop prefect; orchestra up")


def remove(root: Path) -> int:
    """Delete this workspace's automations and addresses; returns how many automations there were."""
    from prefect.client.orchestration import get_client

    tags, kinds = "|".join(workspace_tags(root)), "|".join((*ENTRYPOINTS, CANARY, WAITING, "heartbeat"))
    with connected(root), get_client(sync_client=True) as client:
        found = [one for one in client.read_automations() if re.fullmatch(f"({tags})-({kinds})", one.name)]
        for one in found:
            client.delete_automation(one.id)
        for block in [one for one in _saved(client) if re.fullmatch(rf"({tags})-({HOOK}|{MAIL})-\d+", one.name or "")]:
            client.delete_block_document(block.id)
    return len(found)


def _saved(client: Any) -> Iterator[Any]:
    """Every block, of which Prefect tells 200 at a time."""
    offset = 0
    while page := client.read_block_documents(offset=offset, include_secrets=False):
        yield from page
        offset += len(page)


def _name(root: Path, what: str) -> str:
    return f"{workspace_tag(root)}-{what}"


def main(arguments: list[str]) -> None:
    """Add or remove."""
    parser = argparse.ArgumentParser(prog="python -m flows.notify", description=__doc__)
    parser.add_argument("urls", nargs="*")
    parser.add_argument("--smtp")
    parser.add_argument("--sender")
    parser.add_argument("--remove", action="store_true")
    told, root = parser.parse_args(arguments), Path.cwd()
    settings(root)
    if told.urls:
        print("\n".join(add(root, told.urls, told.smtp, told.sender)))
    else:
        print(f"{remove(root)} automations removed")


if __name__ == "__main__":
    run_command(main)
