"""`orchestra webhook`: the receivers that MLflow's server notifies, with a signature, when a registry alias moves.

python -m tasks.records.webhooks NAME URL [--event EVENT] | NAME --test | NAME --remove
"""

import argparse
import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestra.errors import ConfigError, DataError, OrchestraError, ServiceError
from orchestra.system.environment import quiet
from orchestra.system.servers import ENCRYPTION_KEY, WEBHOOK_KEY, address
from orchestra.system.storage import MLFLOW, opened
from orchestra.text import one_line
from tasks.platform.commands import run_command
from tasks.platform.tracking import own_database, tracking_uri

SECRET = "ORCHESTRA_WEBHOOK_SECRET"
"""Shared with the receiver, which proves by it that MLflow sent a request."""
EVENTS = ("model_version_alias.created", "model_version_alias.deleted")
"""Told by default: an alias was set, also where it stood elsewhere before; an alias was removed."""
PAGE = "docs/how-to/webhooks.md"
REFUSALS = {
    "URL hostname": "an address whose host this machine can look up",
    "scheme": "https, or on a test machine MLFLOW_WEBHOOK_ALLOWED_SCHEMES=http,https where MLflow's server starts",
    "non-public": "a public address, or MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS=true where MLflow's server starts",
    "event": "an event of MLflow, such as model_version.created",
    "Webhook name": "letters, digits, dots, dashes and underscores",
}
"""What to do about MLflow's refusals, by words of theirs; a host is first, since it may have the others in it."""


class Webhooks:
    """The webhooks of the server that this workspace's registry is on."""

    def __init__(self, root: Path) -> None:
        """Raises `OrchestraError` where there is no server: only a server sends anything."""
        self.root = root
        self.url = server(root)
        quiet()
        from mlflow.tracking import MlflowClient

        self.client: Any = MlflowClient(tracking_uri=self.url, registry_uri=self.url)

    def all(self) -> list[Any]:
        """Every webhook, the oldest first; `DataError` where the server cannot read their secrets."""
        if names := unreadable(self.root):
            what = f"the secrets of {', '.join(names)} were kept with another key"
            fix = f"start MLflow's server with that key ({ENCRYPTION_KEY}), or orchestra webhook NAME --remove"
            raise DataError(what, where=self.url, fix=fix)
        found, token = list[Any](), None
        with self._named():
            while True:
                page = self.client.list_webhooks(page_token=token)
                found, token = [*found, *page], page.token
                if not token:
                    return found[::-1]

    def put(self, name: str, url: str, secret: str, events: tuple[str, ...]) -> str:
        """Register a webhook, or change the one of that name; a line about it."""
        before = self._find(name)
        told = {"url": url, "events": list(events), "secret": secret}
        with self._named():
            if before is None:
                self.client.create_webhook(name, **told)
            else:
                self.client.update_webhook(before.webhook_id, status="ACTIVE", **told)
        made = "registered" if before is None else "changed"
        return f"{name}: {made}; {shown(url)} is told of {', '.join(events)}, signed with {SECRET}"

    def test(self, name: str) -> str:
        """Let the server send an example now; raises `ServiceError` where the receiver does not take it."""
        webhook = self._known(name)
        with self._named():
            reply = self.client.test_webhook(webhook.webhook_id)
        if not reply.success:
            what = reply.error_message or f"the receiver answers {reply.response_status}"
            raise ServiceError(one_line(what), where=f"webhook {name}", fix=f"see the receiver's log, and {PAGE}")
        return f"{name}: the receiver answers {reply.response_status}"

    def remove(self, name: str) -> str:
        """Tell it no more."""
        if own_database(self.root):
            removed = _remove(self.root, name)
        else:
            webhook = self._find(name)
            removed = webhook is not None
            if webhook is not None:
                with self._named():
                    self.client.delete_webhook(webhook.webhook_id)
        if not removed:
            raise _unknown(name)
        return f"{name}: removed"

    def _find(self, name: str) -> Any:
        return next((webhook for webhook in self.all() if webhook.name == name), None)

    def _known(self, name: str) -> Any:
        found = self._find(name)
        if found is None:
            raise _unknown(name)
        return found

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """MLflow's errors as one line for a person."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            raise self._failure(one_line(str(error.message))) from error

    def _failure(self, said: str) -> OrchestraError:
        known = next((fix for word, fix in REFUSALS.items() if word in said), None)
        if "INVALID_PARAMETER_VALUE" in said or known is not None:
            return ConfigError(said.partition(": ")[2] or said, where="webhook", fix=known or f"see {PAGE}")
        return ServiceError(said, where=self.url, fix="see the log of MLflow's server")


def server(root: Path) -> str:
    """The address of the server that moves aliases and sends webhooks; raises `OrchestraError` where none does."""
    uri = tracking_uri(root)
    if uri.startswith(("http://", "https://")):
        return uri.rstrip("/")
    if not own_database(root):
        what = "MLflow's database is used without a server, and only a server sends webhooks"
        raise ConfigError(
            what, where="MLFLOW_TRACKING_URI", fix="start mlflow server over that database, and set its address"
        )
    found = address(root, "mlflow")
    if found is None:
        raise ServiceError("MLflow's server does not run, and only it sends webhooks", where=MLFLOW, fix="orchestra up")
    return found


def unreadable(root: Path) -> list[str]:
    """Webhooks of the workspace's own database whose secrets its key does not open."""
    from cryptography.fernet import Fernet, InvalidToken

    file = root / WEBHOOK_KEY
    if not own_database(root) or not file.is_file():
        return []
    cipher, names = Fernet(os.environ.get(ENCRYPTION_KEY) or file.read_text(encoding="utf-8")), []
    query = "SELECT name, secret FROM webhooks WHERE deleted_timestamp IS NULL AND secret IS NOT NULL ORDER BY name"
    with opened(root / MLFLOW, "ro") as database:
        for name, secret in database.execute(query):
            try:
                cipher.decrypt(secret.encode())
            except InvalidToken:
                names.append(str(name))
    return names


def shown(url: str) -> str:
    """An address without what may be a secret of it: receivers such as Slack keep theirs in the path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{'' if parts.port is None else f':{parts.port}'}/…"


def _remove(root: Path, name: str) -> bool:
    """As MLflow marks it removed, which it cannot do where it cannot read the secret."""
    query = "UPDATE webhooks SET deleted_timestamp = ? WHERE name = ? AND deleted_timestamp IS NULL"
    with contextlib.closing(sqlite3.connect(root / MLFLOW, timeout=30)) as database, database:
        return database.execute(query, (int(time.time() * 1000), name)).rowcount > 0


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"no webhook named {name}", where="webhook", fix="orchestra webhook lists them")


def _secret() -> str:
    found = os.environ.get(SECRET, "")
    if not found:
        what = f"{SECRET} is not set, and an unsigned request proves nothing"
        raise ConfigError(what, where="webhook", fix=f"export {SECRET}=$(openssl rand -hex 32)")
    return found


def main(arguments: list[str]) -> None:
    """List, register, test or remove."""
    parser = argparse.ArgumentParser(prog="python -m tasks.records.webhooks", description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("url", nargs="?")
    parser.add_argument("--event", action="append")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--remove", action="store_true")
    told, root = parser.parse_args(arguments), Path.cwd()
    # MLflow would ask a server that fails for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    secret = _secret() if told.url else ""
    webhooks = Webhooks(root)
    if told.name is None:
        for one in webhooks.all():
            print(f"{one.name}: {shown(one.url)} · {', '.join(map(str, one.events))} · {one.status.value.lower()}")
    elif told.url:
        print(webhooks.put(told.name, told.url, secret, tuple(told.event or EVENTS)))
    else:
        print(webhooks.test(told.name) if told.test else webhooks.remove(told.name))


if __name__ == "__main__":
    run_command(main)
