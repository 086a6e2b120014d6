"""What the registry's aliases name, read in milliseconds, and moved through MLflow's server, which tells webhooks.

MLflow's own client takes seconds to import.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from orchestra.errors import ServiceError
from orchestra.system.servers import address
from orchestra.system.storage import opened
from tasks.platform.tracking import connect, own_database, tracking_uri

TIMEOUT_S = 1.0
MOVE_TIMEOUT_S = 30.0
"""A move waits for the database; nobody reads a screen meanwhile."""
LISTENERS = (
    "SELECT DISTINCT name FROM webhooks JOIN webhook_events USING (webhook_id) WHERE deleted_timestamp IS NULL "
    "AND status = 'ACTIVE' AND entity = 'model_version_alias' AND action = 'created' ORDER BY name"
)


def aliases(root: Path, model_name: str) -> dict[str, int]:
    """Version by alias of the registered model; empty when nothing is registered.

    Reads the workspace's own database by SQL and a server by its REST interface; anything else through the client.
    Raises `ServiceError` when the registry does not answer.
    """
    uri = tracking_uri(root)
    if uri.startswith("sqlite:///"):
        return _of_database(Path(uri.removeprefix("sqlite:///")), model_name)
    if uri.startswith(("http://", "https://")):
        return _of_server(uri.rstrip("/"), model_name)
    models = connect(root).search_registered_models(f"name = '{model_name}'")
    return {alias: int(number) for alias, number in models[0].aliases.items()} if models else {}


def made_at(root: Path, model_name: str, number: int) -> float | None:
    """When a version was registered, seconds since 1970; None where that cannot be read in milliseconds."""
    uri = tracking_uri(root)
    if uri.startswith("sqlite:///"):
        query = "SELECT creation_time FROM model_versions WHERE name = ? AND version = ?"
        found = _asked(Path(uri.removeprefix("sqlite:///")), query, model_name, number)
        return float(found[0][0]) / 1000 if found else None
    if uri.startswith(("http://", "https://")):
        reply = _get(uri.rstrip("/"), "model-versions", name=model_name, version=str(number))
        return None if reply is None else int(reply["model_version"]["creation_timestamp"]) / 1000
    return None


def move(root: Path, model_name: str, alias: str, number: int) -> bool:
    """Let the workspace's own MLflow server point an alias at a version, so that it tells webhooks of it.

    False where no such server runs or it did not do it: then nothing tells of the move.
    """
    server = address(root, "mlflow") if own_database(root) else None
    if server is None:
        return False
    import httpx

    asked = {"name": model_name, "alias": alias, "version": str(number)}
    try:
        where = f"{server}/api/2.0/mlflow/registered-models/alias"
        reply = httpx.post(where, json=asked, timeout=MOVE_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return reply.status_code == 200


def listeners(root: Path) -> list[str]:
    """Webhooks in the workspace's own database that want to hear of moved aliases; none where it cannot be read now."""
    uri = tracking_uri(root)
    if not uri.startswith("sqlite:///"):
        return []
    with contextlib.suppress(ServiceError):
        return [str(name) for (name,) in _asked(Path(uri.removeprefix("sqlite:///")), LISTENERS)]
    return []


def _of_database(file: Path, model_name: str) -> dict[str, int]:
    query = "SELECT alias, version FROM registered_model_aliases WHERE name = ?"
    return {str(alias): int(number) for alias, number in _asked(file, query, model_name)}


def _asked(file: Path, query: str, *values: Any) -> list[Any]:
    """The rows; none where MLflow has not used the database yet."""
    if not file.is_file():
        return []
    try:
        with opened(file, "ro", TIMEOUT_S) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.Error as error:
        if "no such table" in str(error):
            return []
        raise ServiceError(str(error), where=str(file), fix="orchestra restore FILE") from None


def _of_server(uri: str, model_name: str) -> dict[str, int]:
    reply = _get(uri, "registered-models", name=model_name)
    return (
        {}
        if reply is None
        else {one["alias"]: int(one["version"]) for one in reply["registered_model"].get("aliases", [])}
    )


def _get(uri: str, what: str, **params: str) -> Any:
    """A thing of the registry; None where there is none."""
    import httpx

    try:
        address = f"{uri}/api/2.0/mlflow/{what}/get"
        reply = httpx.get(address, params=params, timeout=TIMEOUT_S, **_login())
    except httpx.HTTPError as error:
        raise ServiceError(f"MLflow does not answer: {error}", where=uri, fix="start it: orchestra up") from None
    if reply.status_code == 404:
        return None
    if reply.status_code != 200:
        raise ServiceError(f"MLflow answers {reply.status_code}", where=uri, fix="see the server's log")
    return reply.json()


def _login() -> dict[str, Any]:
    """What MLflow's own client would send, from the same variables."""
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"headers": {"Authorization": f"Bearer {token}"}}
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    return {"auth": (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))} if user else {}
