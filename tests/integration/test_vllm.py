"""A real vLLM server behind a real release: equal to transformers, blue/green under load, wrong weights, SIGTERM."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.client import AskResponse, ask
from orchestra.serving.releases import vllm
from orchestra.serving.releases.deployment import Deployment
from orchestra.serving.releases.parity import Proof
from orchestra.serving.releases.release import Release, ReleaseCandidate
from orchestra.system.processes import services, stop_services
from orchestra.types import Turn
from tests.support.serving_world import SMOKE, checkpoint, params
from tests.support.worlds import ROOT, codec, example

pytestmark = pytest.mark.skipif(
    vllm.interpreter(ROOT) is None, reason="no .venv-vllm: bash scripts/setup_vllm.sh builds it"
)


@pytest.fixture(scope="module")
def green(root: Path) -> ReleaseCandidate:
    return checkpoint(root, 1, "2")


@pytest.fixture(scope="module")
def deployed(root: Path, first: ReleaseCandidate) -> Deployment:
    (root / ".venv-vllm").symlink_to(ROOT / ".venv-vllm")
    return Release(root, params(engine="vllm"), first, SMOKE, print).run()


def server(root: Path) -> VllmPolicy:
    (url,) = [service.url for service in services(root) if service.name.startswith("vllm")]
    return VllmPolicy(url, vllm.SERVED_NAME, name="served", api_key=vllm.api_key(root))


def turns(policy: object, asked: list[Conversation], count: int) -> list[list[Generation]]:
    """Greedy turns with an observation after each: the prefix cache and the key-value cache must both be right."""
    from orchestra.rollout.policies.transformers import TransformersPolicy

    assert isinstance(policy, VllmPolicy | TransformersPolicy)
    policy.begin(asked)
    found = []
    for _ in range(count):
        made = asyncio.run(policy.generate(asked, [24] * len(asked)))
        found.append(made)
        for conversation, generation in zip(asked, made, strict=True):
            seen = tuple(codec().observation("888"))
            conversation.turns.append(Turn(ids=tuple(generation.ids), text="", observation_ids=seen))
    policy.end()
    return found


def conversations() -> list[Conversation]:
    questions = ["what is 37*24?", "who wrote Opal?", "why? " * 150]
    return [
        Conversation(e, codec().prompt(e)) for e in (example(f"e{i}", instruction=q) for i, q in enumerate(questions))
    ]


def test_vllm_gives_the_tokens_and_logprobs_of_transformers(
    root: Path, first: ReleaseCandidate, deployed: Deployment
) -> None:
    from orchestra.rollout.policies.transformers import TransformersPolicy

    assert deployed.engine == "vllm" and deployed.version == "1" and "3 of 3" in deployed.smoke
    reference = turns(TransformersPolicy(first.folder, name="reference"), conversations(), 3)
    served = turns(server(root), conversations(), 3)
    for ours, theirs in zip(reference, served, strict=True):
        assert [g.ids for g in ours] == [g.ids for g in theirs]
        assert [g.stop for g in ours] == [g.stop for g in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert any(generation.cached_tokens > 0 for generation in served[2])


def test_a_server_with_other_weights_is_found_out(root: Path, green: ReleaseCandidate, deployed: Deployment) -> None:
    proof = Proof.prepare(root, green.folder, params(), SMOKE)
    with pytest.raises(ServiceError, match="the canary failed"):
        proof.check(root, server(root).base_url, "it")


@pytest.mark.slow
def test_blue_green_loses_no_request(root: Path, green: ReleaseCandidate, deployed: Deployment) -> None:
    replies: list[AskResponse] = []
    failures: list[Exception] = []
    done = threading.Event()

    def user() -> None:
        while not done.is_set():
            try:
                replies.append(ask("what is 37*24?", root=root, max_turns=2))
            except Exception as error:
                failures.append(error)
            time.sleep(0.05)

    thread = threading.Thread(target=user)
    thread.start()
    try:
        made = Release(root, params(engine="vllm"), green, SMOKE, print).run()
        time.sleep(0.5)
    finally:
        done.set()
        thread.join()
    assert made.version == "2" and made.url == deployed.url
    assert not failures
    versions = [reply.version for reply in replies]
    assert versions[0] == "1" and versions[-1] == "2" and versions == sorted(versions)
    assert [service.name for service in services(root)] == ["gateway", "vllm-green"]


def test_a_stopped_server_leaves_no_request_hanging(root: Path, deployed: Deployment) -> None:
    policy = server(root)
    asked = conversations()
    outcome: list[object] = []

    def long() -> None:
        policy.begin(asked)
        try:
            outcome.append(asyncio.run(policy.generate(asked, [900] * 3)))
        except ServiceError as error:
            outcome.append(error)

    thread = threading.Thread(target=long)
    thread.start()
    time.sleep(0.3)
    began = time.monotonic()
    stop_services(root, "vllm-blue", "vllm-green", grace_s=35)
    thread.join(timeout=10)
    assert not thread.is_alive() and len(outcome) == 1
    assert time.monotonic() - began < 40
    # What comes now is a failure that names the server, not an empty answer.
    with pytest.raises(ServiceError, match="vLLM at"):
        ask("what is 37*24?", root=root)
