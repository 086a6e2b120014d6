"""Model servers that others keep up: a gateway tells no version that they may not have."""

import asyncio
import json
from pathlib import Path

import pytest

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.release import ReleaseCandidate
from orchestra.serving.releases.replicas import REFERENCES, asked_at, compare
from orchestra.serving.releases.state import SERVING, Serving, read, write
from orchestra.types import Episode
from tests.support.model_server import ModelServer
from tests.support.serving_world import SMOKE, backend, checkpoint, params, workspace
from tests.support.worlds import codec, example, toolkit

URL = "http://127.0.0.1:1"


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
            assert (
                said.endswith(" — start it with that version's checkpoint and type (--dtype float32)")
                and "\n" not in said
            )
            server.serve(two.folder)
            assert (await gateway.load()).serving.version == "2"
            # As after a release that failed: its own turns are there still.
            released(root, one)
            with pytest.raises(ServiceError, match="it does not serve version 1"):
                await Gateway(root, vllm_urls=[server.url]).load()

    asyncio.run(go())


NEAR = [[-0.46] * 32] * 8
"""Right weights in bfloat16, whose reference is -0.5 throughout."""


@pytest.mark.parametrize(
    ("ties", "logprobs"), [(2, NEAR), (0, [[-1.5, *NEAR[0][1:]], *NEAR[1:]])], ids=["near ties", "one token a nat away"]
)
def test_a_gateway_starts_with_what_a_release_let_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ties: int, logprobs: list[list[float]]
) -> None:
    ids = list(range(32))
    wanted = params(vllm={"dtype": "bfloat16"})
    examples = [example(f"e{number}", instruction=f"what is {number}?") for number in range(8)]
    canaries = [Generation(ids, [-0.5] * 32, "length") for _ in examples]
    proof = Proof(wanted, codec(), toolkit(tmp_path), examples, canaries, [])
    others = [[*ids[:10], 99, *ids[11:]] if row < ties else ids for row in range(8)]
    turns = {
        tuple(proof.codec.prompt(one)): Generation(theirs, probable, "length")
        for one, theirs, probable in zip(examples, others, logprobs, strict=True)
    }
    assert len(turns) == 8

    async def work(*_: object, **__: object) -> tuple[list[Generation], list[Episode]]:
        return list(turns.values()), []

    async def generate(_: VllmPolicy, asked: list[Conversation], tokens: int) -> list[Generation]:
        made = [turns[tuple(one.ids)] for one in asked]
        return [Generation(one.ids[:tokens], one.logprobs[:tokens], "length") for one in made]

    monkeypatch.setattr(Proof, "_work", work)
    monkeypatch.setattr("orchestra.serving.releases.vllm.generate", generate)
    monkeypatch.setattr("orchestra.serving.releases.replicas.model_servers", lambda _: [URL])
    serving = backend(tmp_path).serving.model_copy(
        update={"params": wanted.model_dump(mode="json", by_alias=True), "checkpoint_hash": "hash"}
    )
    assert compare(tmp_path, proof, serving, print) == (URL,)
    assert asyncio.run(asked_at(tmp_path, [URL], serving, None)).model_servers == [URL]
    turns |= {prompt: Generation([99], [-0.5], "stop") for prompt in turns}
    with pytest.raises(ServiceError, match=r"checkpoint and type \(--dtype bfloat16\)$"):
        asyncio.run(asked_at(tmp_path, [URL], serving, None))
    with pytest.raises(ServiceError, match=r"checkpoint and type \(--dtype bfloat16\), then release again$"):
        compare(tmp_path, proof, serving, print)


def test_turns_that_an_earlier_version_noted_are_passed_over(tmp_path: Path) -> None:
    serving = backend(tmp_path).serving
    (tmp_path / REFERENCES).mkdir(parents=True)
    turn = {"prompt": [1], "ids": [2] * 16, "logprobs": [-1.0] * 16}
    (tmp_path / REFERENCES / f"{serving.checkpoint_hash}.json").write_text(json.dumps({"turns": [turn] * 4}))
    assert asyncio.run(asked_at(tmp_path, [URL], serving, None)).model_servers == [URL]


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
