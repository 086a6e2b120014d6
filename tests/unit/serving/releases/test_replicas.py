"""Model servers that others keep up: a gateway tells no version that they may not have."""

import asyncio
from pathlib import Path

import pytest

from orchestra.errors import ServiceError
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.release import ReleaseCandidate
from orchestra.serving.releases.replicas import REFERENCES, asked_at, compare
from orchestra.serving.releases.state import SERVING, Serving, read, write
from tests.support.model_server import ModelServer
from tests.support.serving_world import SMOKE, checkpoint, params, workspace


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


def noted(root: Path, made: ReleaseCandidate) -> None:
    """As a release notes the checkpoint, beside what serves."""
    serving = read(root / SERVING)
    assert serving is not None
    proof = Proof.prepare(root, made.folder, params(), SMOKE)
    compare(root, proof, serving.model_copy(update={"checkpoint_hash": made.checkpoint_hash}), print)


def test_a_gateway_that_starts_beside_servers_of_other_weights_refuses_in_one_line(tmp_path: Path) -> None:
    root = workspace(tmp_path)
    one, two = checkpoint(root, 1, "1"), checkpoint(root, 2, "2")
    released(root, one)
    noted(root, one)
    noted(root, two)
    released(root, two)

    async def go() -> None:
        with ModelServer(one.folder) as server, ModelServer(two.folder) as right:
            gateway = Gateway(root, vllm_urls=[right.url, server.url])
            await gateway.start()
            said = str(gateway.failure)
            assert said.startswith(f"model server {server.url}: it does not serve version 2: generation ")
            assert said.endswith(" — start it with that version's checkpoint") and "\n" not in said
            server.serve(two.folder)
            assert (await gateway.load()).serving.version == "2"
            # As after a release that failed: its own turns are there still.
            released(root, one)
            with pytest.raises(ServiceError, match="it does not serve version 1"):
                await Gateway(root, vllm_urls=[server.url]).load()

    asyncio.run(go())


def test_a_replica_that_does_not_answer_hinders_no_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = workspace(tmp_path)
    one, two, three = (checkpoint(root, seed, str(seed)) for seed in (1, 2, 3))
    released(root, one)
    for each in (one, two, three):
        noted(root, each)
        released(root, each)
    files = {file.stem for file in (root / REFERENCES).iterdir()}
    assert files == {two.checkpoint_hash, three.checkpoint_hash}, "what served before that is not gone back to"

    async def go() -> None:
        with ModelServer(three.folder) as server:
            serving = read(root / SERVING)
            assert serving is not None
            await asked_at(root, ["http://127.0.0.1:1", server.url], serving, None)
            assert "not compared with the checkpoint: vLLM at http://127.0.0.1:1: " in caplog.text

    asyncio.run(go())
