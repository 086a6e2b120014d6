"""Model servers that others keep up: a gateway tells no version that they may not have."""

import asyncio
from pathlib import Path

import pytest

from orchestra.errors import ServiceError
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases.release import ReleaseCandidate
from orchestra.serving.releases.state import Serving, write
from tests.support.model_server import ModelServer
from tests.support.serving_world import checkpoint, params, workspace


def released(root: Path, made: ReleaseCandidate, *compared: str) -> None:
    """As a release writes it; its own server is another one."""
    serving = Serving(
        version=made.version,
        checkpoint=str(made.folder.relative_to(root)),
        checkpoint_hash=made.checkpoint_hash,
        engine="vllm",
        vllm_url="http://127.0.0.1:1",
        vllm_service="vllm-green",
        params=params().model_dump(mode="json", by_alias=True),
        fingerprint=f"f{made.version}",
        code="c",
        compared=compared,
    )
    write(root, serving)


def test_weights_that_nobody_compared_do_not_get_a_new_versions_name(tmp_path: Path) -> None:
    root = workspace(tmp_path)
    one, two = checkpoint(root, 1, "1"), checkpoint(root, 2, "2")

    async def go() -> None:
        with ModelServer(one.folder) as server:
            gateway = Gateway(root, vllm_urls=[server.url])
            released(root, one)
            assert (await gateway.load()).serving.version == "1"
            released(root, two)
            with pytest.raises(ServiceError, match=r"version 1 serves on — start them with its checkpoint"):
                await gateway.load()
            assert gateway.active.serving.version == "1" and await gateway.look() is None
            # A comparison of some other server proves nothing about this one.
            released(root, two, "http://127.0.0.1:2")
            with pytest.raises(ServiceError, match="no release compared them with version 2"):
                await gateway.load()
            released(root, two, server.url)
            now = (await gateway.load()).serving
            assert (now.version, now.model_servers) == ("2", [server.url])
            assert (await gateway.load()).serving is now, "the same again is not loaded again"

    asyncio.run(go())
