"""E-mail as a notification of Prefect's: Apprise sends it, the password is read where Prefect's server runs.

Prefect's own `EmailServerCredentials` cannot stand in an automation (it is no notification), and it keeps the password
in Prefect's database.
"""

import asyncio
import ipaddress
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.logging import LogEavesdropper

from orchestra.errors import ConfigError
from orchestra.text import one_line

PASSWORD = "ORCHESTRA_SMTP_PASSWORD"
"""Read at each message, from the environment of Prefect's server; it is kept nowhere."""
SCHEME = "mailto:"
PLAIN = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
"""Neither spaces nor characters that break or steer a line: each part ends in a command to the mail server."""
HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|[0-9a-f:.]{2,45}")
PORTS = {"smtp": 587, "smtps": 465}
Security = Literal["starttls", "ssl", "insecure"]


class EmailNotification(NotificationBlock):
    """A mail server, the sender and those who are told."""

    _block_type_name = "Orchestra E-Mail"
    _block_type_slug = "orchestra-email"

    server: str
    port: int
    security: Security
    user: str | None
    """None: the server wants no login."""
    sender: str
    recipients: list[str]

    async def notify(self, body: str, subject: str | None = None) -> None:
        """Send it as plain text; a failure raises `NotificationError` under `raise_on_failure`, as Prefect's do."""
        with _wordy("apprise"), LogEavesdropper("apprise", level=logging.DEBUG) as heard:
            said = "" if self._password_known() else f"{PASSWORD} is not set where Prefect's server runs"
            sent = not said and await asyncio.to_thread(self._send, body, one_line(subject or ""))
        if not sent and self._raise_on_failure:
            raise NotificationError(log=said or heard.text())

    def _password_known(self) -> bool:
        return self.user is None or bool(os.environ.get(PASSWORD))

    def _send(self, body: str, subject: str) -> bool:
        from apprise import AppriseAsset, NotifyFormat
        from apprise.plugins.email import NotifyEmail

        asset = AppriseAsset(app_id="orchestra", app_desc="orchestra", app_url="")
        login: dict[str, Any] = {}
        if self.user is not None:
            # Apprise takes both as parts of an address, and decodes them.
            login = {"user": quote(self.user, safe=""), "password": quote(os.environ[PASSWORD], safe="")}
        made: Any = NotifyEmail  # Apprise has no types
        mail = made(
            smtp_host=self.server,
            port=self.port,
            secure=self.security != "insecure",
            secure_mode=self.security,
            from_addr=self.sender,
            targets=self.recipients,
            asset=asset,
            format=NotifyFormat.TEXT.value,
            **login,
        )
        return bool(mail.notify(body=body, title=subject))


def email(address: str, smtp: str | None, sender: str | None) -> EmailNotification:
    """What `mailto:…`, `smtp://USER@HOST:PORT` and the sender's address say; raises `ConfigError`.

    smtp:// wants STARTTLS, but of a server on this machine; smtps:// is encrypted from the start.
    """
    recipients = [_checked(one) for one in unquote(address.removeprefix(SCHEME)).split(",")]
    fix = "--smtp smtps://robot@mail.example.org"
    if smtp is None:
        raise ConfigError("no mail server was named", where="notify", fix=fix)
    parts = _split(smtp, fix)
    assert parts.hostname is not None
    user = unquote(parts.username) if parts.username else None
    if sender is None and (user is None or "@" not in user):
        raise ConfigError("who sends was not named", where="notify", fix="--sender robot@example.org")
    security: Security = "ssl" if parts.scheme == "smtps" else "insecure" if _local(parts.hostname) else "starttls"
    return EmailNotification(
        server=parts.hostname,
        port=parts.port or PORTS[parts.scheme],
        security=security,
        user=user,
        sender=_checked(sender or user or ""),
        recipients=recipients,
    )


def _split(smtp: str, fix: str) -> SplitResult:
    """The parts of a mail server's address."""
    try:
        parts = urlsplit(smtp)
        right = (
            # `urlsplit` drops line breaks without a word, and no part may hold one, be it written as %0A.
            PLAIN.fullmatch(unquote(smtp))
            and HOST.fullmatch(parts.hostname or "")
            and parts.scheme in PORTS
            and parts.port != 0
            and parts.path in ("", "/")
        )
    except ValueError:  # A port that is none.
        right = False
    if not right:
        raise ConfigError("--smtp is no address of a mail server", where="notify", fix=fix)
    if parts.password is not None:
        what = "a password in an address ends in the shell's history and in lists of processes"
        raise ConfigError(what, where="notify", fix=f"export {PASSWORD}=…; {fix}")
    return parts


@contextmanager
def _wordy(name: str) -> Iterator[None]:
    """Debug messages for a while: the server's own words are one. `setLevel` forgets which levels were off before, and
    Prefect's eavesdropper does not."""
    logger = logging.getLogger(name)
    kept = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(kept)


def _checked(address: str) -> str:
    """One address of a person, without a name; raises `ConfigError`."""
    from apprise.utils import parse

    utilities: Any = parse  # Apprise has no types
    found = utilities.is_email(address.strip())
    if not found or found["full_email"] != address.strip() or not PLAIN.fullmatch(address.strip()):
        raise ConfigError(f"{address!r} is no e-mail address", where="notify", fix="mailto:oncall@example.org")
    return address.strip()


def _local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
