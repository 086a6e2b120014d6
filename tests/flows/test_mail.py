"""E-mail as a notification: what is sent, what a wrong server, password or certificate gives, and on a real Prefect."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from prefect.blocks.abstract import NotificationError
from prefect.server.utilities.user_templates import render_user_template_sync

from flows import notify
from flows.server.mail import PASSWORD, EmailNotification, email
from orchestra.errors import ConfigError
from orchestra.system.processes import LOCALHOST, free_port, services, stop_services
from orchestra.system.servers import prefect_login
from tests.flows.workspace import Workspace, free_ports
from tests.support.mailbox import certificate, mailbox
from tests.support.waiting import soon

ROBOT = "robot@example.org"
SECRET = "p%41ss/w@rd:x"
"""With what would be decoded, or taken for a part of an address."""


def block(port: int, **changes: object) -> EmailNotification:
    told: dict[str, object] = {
        "server": LOCALHOST,
        "port": port,
        "security": "insecure",
        "user": None,
        "sender": ROBOT,
        "recipients": ["oncall@example.org", "second@example.org"],
    }
    return EmailNotification.model_validate(told | changes)


def send(
    one: EmailNotification, body: str = "cause: naïve — <b>full</b>\ntype: orchestra why a", subject: str = "s"
) -> None:
    with one.raise_on_failure():
        asyncio.run(one.notify(body, subject))


def test_everyone_gets_the_text_as_it_is() -> None:
    with mailbox() as box:
        send(block(box.port), subject="retrain a: Failed\nBcc: stranger@example.org")
    assert sorted(box.receivers) == [["oncall@example.org"], ["second@example.org"]]
    mail = box.mails[0]
    assert mail["Subject"] == "retrain a: Failed Bcc: stranger@example.org" and mail["Bcc"] is None
    assert ROBOT in mail["From"] and mail.get_content_type() == "text/plain"
    assert box.texts[0].splitlines()[:2] == ["cause: naïve — <b>full</b>", "type: orchestra why a"]


def test_the_password_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with mailbox(login=(ROBOT, SECRET)) as box:
        one = block(box.port, user=ROBOT)
        monkeypatch.delenv(PASSWORD, raising=False)
        with pytest.raises(NotificationError) as unset:
            send(one)
        assert PASSWORD in unset.value.log and box.logins == []
        monkeypatch.setenv(PASSWORD, "wrong-" + SECRET)
        with pytest.raises(NotificationError) as refused:
            send(one)
        assert "535" in refused.value.log and SECRET not in refused.value.log
        monkeypatch.setenv(PASSWORD, SECRET)
        send(one)
        assert box.logins[-1] == (ROBOT, SECRET) and len(box.mails) == 2
    assert SECRET not in one.model_dump_json() and "password" not in one.model_dump_json()


def test_nothing_is_said_before_the_certificate_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, tls = certificate(tmp_path, LOCALHOST)
    monkeypatch.setenv(PASSWORD, SECRET)
    with mailbox(login=(ROBOT, SECRET), tls=tls) as box:
        one = block(box.port, user=ROBOT, security="starttls")
        with pytest.raises(NotificationError) as stranger:
            send(one)
        assert "CERTIFICATE_VERIFY_FAILED" in stranger.value.log and box.logins == []
        monkeypatch.setenv("SSL_CERT_FILE", str(known))
        send(one)
        assert box.logins == [(ROBOT, SECRET)] and len(box.mails) == 2


def test_starttls_is_no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    with mailbox() as box, pytest.raises(NotificationError):
        send(block(box.port, user=ROBOT, security="starttls"))
    assert box.mails == [] and box.logins == []


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(NotificationError) as gone:
        send(block(free_port()))
    assert LOCALHOST in gone.value.log
    asyncio.run(block(free_port()).notify("told to nobody"))  # Without `raise_on_failure`, as Prefect's own.


@pytest.mark.parametrize(
    ("smtp", "port", "security"),
    [
        ("smtps://robot%40example.org@mail.example.org", 465, "ssl"),
        ("smtp://robot@example.org@mail.example.org", 587, "starttls"),
        ("smtp://robot@example.org@mail.example.org:2525", 2525, "starttls"),
        ("smtp://robot@example.org@localhost:25", 25, "insecure"),
        ("smtp://robot@example.org@127.0.0.1:25", 25, "insecure"),
    ],
)
def test_what_an_address_says(smtp: str, port: int, security: str) -> None:
    one = email("mailto:oncall@example.org,second@example.org", smtp, None)
    assert (one.port, one.security, one.user, one.sender) == (port, security, ROBOT, ROBOT)
    assert one.recipients == ["oncall@example.org", "second@example.org"]


@pytest.mark.parametrize(
    ("address", "smtp", "what"),
    [
        ("mailto:oncall", "smtps://r@example.org@mail.example.org", "'oncall' is no e-mail address"),
        ("mailto:", "smtps://r@example.org@mail.example.org", "'' is no e-mail address"),
        ("mailto:a@example.org", None, "no mail server"),
        ("mailto:a@example.org", "mail.example.org", "no address of a mail server"),
        ("mailto:a@example.org", "smtp://mail.example.org:port", "no address of a mail server"),
        ("mailto:a@example.org", "smtps://robot@mail.example.org", "who sends"),
        ("mailto:a@example.org", "smtps://robot:hidden@mail.example.org", "a password in an address"),
    ],
)
def test_what_is_no_address(address: str, smtp: str | None, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        email(address, smtp, None)
    assert "hidden" not in str(refused.value)


SAID = "<!channel> <https:" + "//evil.example/fix|click> `code` ![x](https:" + "//evil.example/p.png)\n@here & R&D"


@pytest.mark.parametrize("body", [notify.BODY, notify.TAKEN_BODY])
def test_what_others_said_is_text_in_a_chat_and_readable_in_a_mail(body: str) -> None:
    """Rendered as Prefect's server does."""
    state = SimpleNamespace(name="Failed", message=SAID)
    told = {"flow": SimpleNamespace(name="retrain"), "flow_run": SimpleNamespace(name="calm-ox", state=state)}
    mailed = render_user_template_sync(body, told)
    assert mailed.startswith(f"cause: {SAID}\n")
    posted = render_user_template_sync(notify._marked(body), told)
    cause, rest = posted.split("\n", 1)
    assert rest == mailed.removeprefix(f"cause: {SAID}\n")
    assert cause.startswith("cause: `&lt;!channel&gt; &lt;https:") and cause.endswith(" @here &amp; R&amp;D`")
    assert "<" not in cause and ">" not in cause and cause.count("`") == 2 and "'code'" in cause
    state.message = None
    assert render_user_template_sync(notify._marked(body), told).startswith("cause: `None`\n")


@pytest.fixture
def served(plain: Workspace) -> Iterator[Workspace]:
    yield plain
    stop_services(plain.root)


def fail(root: Path, flow: str, message: str) -> None:
    """A run of a flow fails, as Prefect is told of it."""
    import httpx

    api = next(one.url for one in services(root) if one.name == "prefect") + "/api"
    user, _, password = prefect_login(root).partition(":")

    def post(path: str, body: dict[str, object]) -> dict[str, str]:
        reply = httpx.post(f"{api}/{path}", json=body, auth=(user, password), timeout=60, trust_env=False)
        reply.raise_for_status()
        found: dict[str, str] = reply.json()
        return found

    run = post("flow_runs/", {"flow_id": post("flows/", {"name": flow})["id"], "state": {"type": "RUNNING"}})
    post(f"flow_runs/{run['id']}/set_state", {"state": {"type": "FAILED", "message": message}, "force": True})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_failure_is_mailed_once_by_a_real_server(served: Workspace) -> None:
    workspace = Workspace(served.root, {PASSWORD: SECRET})
    with mailbox(login=(ROBOT, SECRET)) as box:
        smtp = f"smtp://{ROBOT}@{LOCALHOST}:{box.port}"
        told = ("notify", "mailto:oncall@example.org", "--smtp", smtp)
        served.orchestra("up", *free_ports())
        assert f"{PASSWORD} is not set" in served.orchestra(*told, code=2)[-1]
        assert "was started without this" in workspace.orchestra(*told, code=2)[-1]
        assert box.mails == []
        workspace.orchestra("stop")
        workspace.orchestra("up", *free_ports())
        assert "535" in workspace.orchestra(*told[:2], "--smtp", f"smtp://x{ROBOT}@{LOCALHOST}:{box.port}", code=2)[-1]
        lines = workspace.orchestra(*told)
        assert any(line.startswith("monitor: a failure is told") for line in lines)
        assert len(box.mails) == 1 and "are told here" in box.mails[0]["Subject"]

        fail(workspace.root, "monitor", "nothing was released")
        fail(workspace.root, "monitor", "nothing was released, again")
        assert soon(lambda: len(box.mails) > 1, 240), (workspace.root / ".state/logs/prefect.log").read_text()
        fail(workspace.root, "monitor", "nothing was released, once more")
        fail(workspace.root, "release", "the gate refused")
        assert soon(lambda: any("the gate refused" in text for text in box.texts), 240)
        time.sleep(5)
        assert len(box.mails) == 3
        assert box.mails[1]["Subject"].startswith("monitor ") and "cause: nothing was released" in box.texts[1]
        assert "runbook: " in box.texts[1] and "type: orchestra why " in box.texts[1]
        workspace.orchestra("notify", "--remove")
    state = workspace.root / ".state"
    workspace.orchestra("stop")
    kept = [file for file in state.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert kept == []


ODD = ["\n", "\r\n", " ", "\t", "\x00", "\x7f", "\x85", "\u2028", "\u202e", "\u200b"]


@pytest.mark.parametrize("seed", range(200))
def test_no_part_of_a_mail_server_s_address_breaks_a_line(seed: int) -> None:
    """As it is, or as %0A: in the user, the host, after the port, in the sender, among those who are told."""
    rng = random.Random(seed)
    odd = rng.choice(ODD)
    written = quote(odd) if seed % 2 else odd
    smtp, sender, told = "smtps://robot%40example.org@mail.example.org:465", "robot@example.org", "anna@example.org"
    match seed // 2 % 4:
        case 0:
            at = rng.randint(len("smtps://r"), len("smtps://robot"))
            smtp = smtp[:at] + written + smtp[at:]
        case 1:
            at = rng.randint(smtp.index("@") + 1, len(smtp))
            smtp = smtp[:at] + written + smtp[at:]
        case 2:
            sender = sender[:5] + odd + sender[5:]
        case _:
            told = told[:4] + odd + told[4:]
    with pytest.raises(ConfigError) as caught:
        email(f"mailto:{told}", smtp, sender)
    assert len(str(caught.value).splitlines()) == 1
