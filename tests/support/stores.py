"""A server that speaks S3, for tests."""

import contextlib
import functools
from collections.abc import Iterator

import pytest

from orchestra.config.storage import Storage
from orchestra.system.artifacts import filesystem
from orchestra.system.processes import LOCALHOST

BUCKET = "team-models"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server with an empty bucket, which forgets everything at the end."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=LOCALHOST, port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        with _parsed_once():
            with pytest.MonkeyPatch.context() as patch:
                for name, value in KEYS.items():
                    patch.setenv(name, value)
                filesystem(Storage(url=f"s3://{BUCKET}/x", endpoint=endpoint)).mkdirs(BUCKET, exist_ok=True)
            yield endpoint
    finally:
        server.stop()


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
    """Every client would parse the description of S3 again, which takes longer than what most tests ask it."""
    import botocore.session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", functools.cache(botocore.session.create_loader))
        yield
