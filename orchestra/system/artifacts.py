"""The store of MLflow's artifacts on S3: how MLflow's client finds it, and whether it answers."""

import os
from functools import lru_cache
from typing import Any

from orchestra.config.storage import Storage
from orchestra.errors import ConfigError, OrchestraError, ServiceError
from orchestra.text import one_line

CONNECT_S, READ_S = 10, 60
LIBRARIES = {"aiobotocore", "boto3", "botocore", "fsspec", "s3fs", "s3transfer"}
"""Whose errors are always those of the store; aiohttp, below them, speaks to other servers too."""
FIX = "see storage in params.yaml, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; then the same command again"
_answered: set[tuple[str, str | None]] = set()
"""Places that this process asked once."""


def environment(storage: Storage) -> dict[str, str]:
    """What MLflow's client, and a server of it, need in order to reach that store; keys are the user's own.

    Without a limit on attempts it would ask an address that does not answer for five minutes.
    """
    if not storage.shared:
        return {}
    found = {"AWS_MAX_ATTEMPTS": os.environ.get("AWS_MAX_ATTEMPTS", "2")}
    return found | ({"MLFLOW_S3_ENDPOINT_URL": storage.endpoint} if storage.endpoint is not None else {})


def check_place(place: str, storage: Storage) -> None:
    """Raises `OrchestraError` of one line, within seconds, where artifacts cannot be kept at `place`.

    Each place is asked once in a process.
    """
    key = place, endpoint(storage)
    if place.startswith("s3://") and key not in _answered:
        ask_place(place, storage)
        _answered.add(key)


def ask_place(place: str, storage: Storage, *, seconds: int = 10) -> None:
    """The same, asked each time; `seconds` limit each of two attempts."""
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    try:
        _asking(endpoint(storage), seconds).call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except Exception as error:
        raise store_failure(error, place) or error from None


@lru_cache(maxsize=4)
def _asking(address: str | None, seconds: int) -> Any:
    """One client for all questions: each keeps connections."""
    return _filesystem(address, min(5, seconds), seconds, 1)


def endpoint(storage: Storage) -> str | None:
    """The address that is asked: that of params.yaml, else MLFLOW_S3_ENDPOINT_URL; None: Amazon's."""
    own = storage.endpoint if storage.shared else None
    return own or os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None


def filesystem(storage: Storage) -> Any:
    """The store's files, asked with limits of time."""
    return _filesystem(endpoint(storage), CONNECT_S, READ_S, 2)


def _filesystem(address: str | None, connect_s: int, read_s: int, attempts: int) -> Any:
    from s3fs import S3FileSystem

    config = {"connect_timeout": connect_s, "read_timeout": read_s, "retries": {"max_attempts": attempts}}
    found = S3FileSystem(endpoint_url=address, config_kwargs=config, skip_instance_cache=True, use_listings_cache=False)
    # Its own, around those of the client: five, each of which waits as long again.
    found.retries = attempts
    return found


def store_failure(error: BaseException, where: str) -> OrchestraError | None:
    """The one line for an error of the store or of a library that speaks to it; None for any other.

    s3fs turns most of what a store answers into errors of the system's kinds.
    """
    if isinstance(error, OrchestraError):
        return error
    if type(error).__module__.partition(".")[0] not in {*LIBRARIES, "aiohttp"} and not isinstance(error, OSError):
        return None
    what = one_line(str(error)) or type(error).__name__
    if type(error).__name__ == "NoCredentialsError":
        return ConfigError("no keys of the store are set", where=where, fix=FIX)
    return ServiceError(what, where=where, fix=FIX)
