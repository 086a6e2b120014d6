"""A candidate beside the champion in one gateway: who answers, who is withdrawn, what nobody gets."""

import asyncio
import math
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestra.config.deploy import Canary
from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation, ScriptedPolicy
from orchestra.serving.app import create_app
from orchestra.serving.backend import Backend
from orchestra.serving.episodes.admission import Places
from orchestra.serving.episodes.job import ANYBODY
from orchestra.serving.gateway import Gateway
from orchestra.serving.records.spans import Trace
from orchestra.serving.releases.state import SERVING, write
from orchestra.serving.releases.traffic import Traffic
from orchestra.serving.releases.trial import TRIAL, Mode, ReleaseTrial, conclude, end_trial, write_trial
from orchestra.serving.shared.checks import mark
from orchestra.serving.shared.samples import Finding, Sample
from orchestra.serving.wire.errors import StoreError
from orchestra.serving.wire.request import MODEL, ChatRequest
from tests.support.serving_world import backend, calculate
from tests.support.worlds import codec, episode

Ask = Callable[..., Awaitable[httpx.Response]]


class Down(ScriptedPolicy):
    """A model whose server is gone."""

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        raise ServiceError("gone", where="vLLM")


def candidate(folder: Path, *, down: bool = False) -> Backend:
    policy = Down("down", calculate, codec().turn) if down else None
    made = backend(folder, policy=policy)
    return replace(made, serving=made.serving.model_copy(update={"version": "8", "fingerprint": "f8"}))


def trial(serving: Any, mode: Mode = "canary", share: float = 0.5, **settings: Any) -> ReleaseTrial:
    return ReleaseTrial(id="t1", mode=mode, share=share, serving=serving, settings=Canary(**settings), secret="s")


def tried(folder: Path, made: Backend, mode: Mode = "canary", share: float = 0.5, **settings: Any) -> Gateway:
    """A gateway whose champion is version 7, with a trial of `made`."""
    gateway = Gateway(folder, backend=backend(folder))
    planned = trial(made.serving, mode, share, **settings)
    gateway.traffic = Traffic(folder, planned, made, gateway.store, gateway.telemetry)
    return gateway


def talk(gateway: Gateway, work: Callable[[Ask], Awaitable[None]]) -> None:
    async def go() -> None:
        transport = httpx.ASGITransport(app=create_app(gateway, load=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def ask(question: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
                asked = {"messages": [{"role": "user", "content": question}], **body}
                return await client.post("/v1/chat/completions", json=asked, headers=headers)

            await work(ask)

    asyncio.run(go())
    gateway.telemetry.close()


def request(text: str) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": text}]})


def backend_of(gateway: Gateway) -> Backend:
    assert gateway.backend is not None
    return gateway.backend


def version(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["orchestra"]["version"])


def test_a_canary_answers_its_share_and_a_conversation_stays_with_whom_it_began(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path))

    async def work(ask: Ask) -> None:
        found = [version(await ask(f"what is {number}+1?")) for number in range(40)]
        assert 10 <= found.count("8") <= 30 and set(found) == {"7", "8"}
        assert found == [version(await ask(f"what is {number}+1?")) for number in range(40)]

    talk(gateway, work)
    assert gateway.traffic is not None
    counted = gateway.telemetry.render().decode()
    assert 'orchestra_trial_requests_total{arm="candidate",failed="false"}' in counted


def test_who_answers_is_known_by_asking_only(tmp_path: Path) -> None:
    made = candidate(tmp_path)
    drawn = []
    for secret in ("", "s", None):
        gateway = tried(tmp_path, made)
        assert gateway.traffic is not None
        if secret is not None:
            gateway.traffic.trial = gateway.traffic.trial.model_copy(update={"secret": secret})
        else:
            gateway.traffic.trial = ReleaseTrial.model_validate(gateway.traffic.trial.model_dump(exclude={"secret"}))
        assert "secret" not in gateway.traffic.state()
        drawn.append([gateway.traffic.answers(request(f"question {number}"), "") for number in range(60)])
    assert len({tuple(one) for one in drawn}) == 3


@pytest.mark.parametrize("seed", range(3))
def test_a_caller_who_asks_the_candidate_alone_decides_nothing(tmp_path: Path, seed: int) -> None:
    """A tenth of the requests take twice as long, worded so that the candidate gets them: 19 of 20 such trials rolled
    a good candidate back where every answer counted."""
    gateway, rng = tried(tmp_path, made := candidate(tmp_path), share=0.1), random.Random(seed)
    traffic = gateway.traffic
    assert traffic is not None

    def answer(text: str, seconds: float) -> Backend:
        asked = request(text)
        answering = made if traffic.answers(asked, "") else backend_of(gateway)
        traffic.answered(answering, asked, seconds * math.exp(rng.gauss(0, 0.5)), episode())
        return answering

    async def go() -> None:
        known = [text for number in range(60) if answer(text := f"slow {number}", 2.0) is made]
        for number in range(2500):
            if rng.random() < 0.1:
                answer(rng.choice(known), 2.0)
            else:
                answer(f"question {number}", 1.0)
            if number % 50 == 0:
                await asyncio.sleep(0.001)

    asyncio.run(go())
    arms = traffic._samples.arms()
    assert arms["candidate"].requests >= 200 and not traffic.withdrawn
    assert conclude(arms, traffic.trial.settings, judged=False) is None
    gateway.telemetry.close()


def test_failures_of_the_engine_count_each_time(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path, down=True), share=1.0, failures_in_a_row=4)

    async def work(ask: Ask) -> None:
        for _ in range(4):
            assert (await ask("what is 1+1?")).status_code == 502
        assert gateway.traffic is not None
        async with asyncio.timeout(30):
            while not gateway.traffic.withdrawn:  # It is concluded in a thread.
                await asyncio.sleep(0.01)
        assert version(await ask("what is 1+1?")) == "7"

    talk(gateway, work)


def test_one_conversation_that_meets_a_bug_withdraws_nothing(tmp_path: Path) -> None:
    def decide(_: Conversation) -> str:
        raise ZeroDivisionError

    made = backend(tmp_path, decide)
    made = replace(made, serving=made.serving.model_copy(update={"version": "8", "fingerprint": "f8"}))
    gateway = tried(tmp_path, made, share=1.0, failures_in_a_row=4)

    async def work(ask: Ask) -> None:
        for _ in range(6):
            assert (await ask("what is 1+1?")).status_code == 500
        for number in range(2):
            assert (await ask(f"what is {number}+2?")).status_code == 500
        assert gateway.traffic is not None
        arm = gateway.traffic._samples.arms()["candidate"]
        assert (arm.requests, arm.failures) == (3, 3)

    talk(gateway, work)


def test_a_candidate_that_fails_is_withdrawn_and_the_champion_answers_all(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path, down=True), share=0.5, failures_in_a_row=4)

    async def work(ask: Ask) -> None:
        statuses = []
        for number in range(30):
            statuses.append((await ask(f"what is {number}+1?")).status_code)
            await asyncio.sleep(0.01)
        assert 4 <= statuses.count(502) <= 6 and set(statuses[-10:]) == {200}
        await gateway.look()

    talk(gateway, work)
    assert gateway.traffic is not None and gateway.traffic.withdrawn
    assert "orchestra_trial_rollbacks_total 1.0" in gateway.telemetry.render().decode()


def test_a_version_is_asked_for_by_its_name_and_such_requests_are_not_counted(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path), share=0.0)

    async def work(ask: Ask) -> None:
        assert version(await ask("what is 1+1?", model="8")) == "8"
        assert version(await ask("what is 1+1?", model="7")) == "7"
        assert (await ask("what is 1+1?", model="9")).status_code == 404
        assert gateway.traffic is not None
        assert gateway.traffic._samples.arms()["candidate"].requests == 0
        gateway.traffic._samples.find(Finding(verdict="worse", why="the release saw it"))
        await gateway.look()
        assert (await ask("what is 1+1?", model="8")).status_code == 404

    talk(gateway, work)


def test_the_version_that_serves_can_be_tried_with_other_parameters(tmp_path: Path) -> None:
    """Then the candidate has a name of its own, and the version's is the champion's."""
    made = candidate(tmp_path)
    made = replace(made, serving=made.serving.model_copy(update={"version": "7"}))
    gateway = tried(tmp_path, made, share=0.0)
    assert gateway.traffic is not None
    gateway.traffic.trial = gateway.traffic.trial.model_copy(update={"name": "7@f8"})

    def answering(model: str) -> Backend:
        asked = request("what is 1+1?").model_copy(update={"model": model})
        return gateway.route(backend_of(gateway), asked, ANYBODY)

    assert answering("7@f8") is made and answering("7") is answering(MODEL) is backend_of(gateway)
    gateway.telemetry.close()


def test_a_store_that_fails_costs_a_sample_and_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = tried(tmp_path, candidate(tmp_path), share=0.0)
    assert gateway.traffic is not None

    def full(sample: Sample) -> None:
        raise StoreError("database or disk is full", where="the store")

    gateway.traffic._samples.add = full  # type: ignore[method-assign]

    async def work(ask: Ask) -> None:
        assert version(await ask("what is 1+1?")) == "7"

    talk(gateway, work)
    assert "a request of the trial was not counted: the store: database or disk is full" in caplog.text


def test_seconds_are_compared_without_the_wait_for_a_place(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path), share=0.0)
    gateway.places = Places(1, 8, 60.0)
    assert gateway.traffic is not None

    def slow(conversation: Conversation) -> str:
        time.sleep(0.05)
        return calculate(conversation)

    gateway.backend = backend(tmp_path, slow)

    async def work(ask: Ask) -> None:
        replies = await asyncio.gather(*(ask(f"what is {number}+1?") for number in range(6)))
        waited = max(reply.json()["orchestra"]["wall_s"] for reply in replies)
        assert gateway.traffic is not None
        took = math.exp(gateway.traffic._samples.arms()["champion"].log_seconds.mean)
        assert waited > 0.4 and took < 0.5 * waited

    talk(gateway, work)


@pytest.mark.parametrize("mode", ["canary", "shadow"])
def test_the_workspaces_own_questions_decide_no_trial(tmp_path: Path, mode: Mode) -> None:
    gateway = tried(tmp_path, candidate(tmp_path), mode, share=1.0)

    async def work(ask: Ask) -> None:
        for number in range(3):
            question = f"what is {number}+1?"
            reply = await ask(question, headers=mark(tmp_path, question))
            # The monitor asks what serves, however much of the traffic goes to the candidate.
            assert reply.json()["orchestra"]["version"] == "7"
        await asyncio.sleep(0.05)
        assert gateway.traffic is not None
        assert [arm.requests for arm in gateway.traffic._samples.arms().values()] == [0, 0]

    talk(gateway, work)


def test_nobody_gets_the_answer_of_a_shadow(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path, down=True), mode="shadow", share=1.0)

    async def work(ask: Ask) -> None:
        for number in range(3):
            assert version(await ask(f"what is {number}+1?")) == "7"
            await asyncio.sleep(0.05)
        assert (await ask("what is 1+1?", model="8")).status_code == 404
        assert gateway.traffic is not None
        arms = gateway.traffic._samples.arms()
        assert (arms["candidate"].requests, arms["candidate"].failures) == (3, 3)
        assert (arms["champion"].requests, arms["champion"].failures) == (3, 0)

    talk(gateway, work)


def test_a_shadow_copies_its_share_of_the_requests(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path), mode="shadow", share=0.3)

    async def work(ask: Ask) -> None:
        for number in range(16):
            await ask(f"what is {number}+1?")
            await asyncio.sleep(0.02)

    talk(gateway, work)
    assert gateway.traffic is not None
    arms = gateway.traffic._samples.arms()
    assert 1 <= arms["candidate"].requests == arms["champion"].requests <= 10
    assert math.exp(arms["candidate"].log_seconds.mean) < 60  # Of the answer, not by the clock of the machine.


def test_a_shadow_keeps_to_its_dollars_and_leaves_traces_of_its_own(tmp_path: Path) -> None:
    gateway = tried(tmp_path, candidate(tmp_path), mode="shadow", share=1.0, shadow_usd=1e-3)

    async def work(ask: Ask) -> None:
        for number in range(12):
            assert version(await ask(f"what is {number}+1?")) == "7"
            await asyncio.sleep(0.02)

    talk(gateway, work)
    assert gateway.traffic is not None
    assert 1 <= gateway.traffic._samples.arms()["candidate"].requests < 12
    lines = [line for file in (tmp_path / ".state/traces").iterdir() for line in file.read_text().splitlines()]
    roles = [Trace.parse(line).record.get("role") for line in lines]
    assert roles.count(None) == 12 and "shadow" in roles


def test_a_gateway_begins_a_trial_and_its_candidate_becomes_the_champion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = backend(tmp_path), candidate(tmp_path)
    known = {one.serving.version: one for one in (first, second)}
    monkeypatch.setattr(Backend, "load", classmethod(lambda cls, root, serving: known.pop(serving.version)))
    gateway = Gateway(tmp_path)
    write(tmp_path, first.serving)

    async def work(ask: Ask) -> None:
        assert await gateway.load() is first
        write_trial(tmp_path, trial(second.serving, share=0.5))
        other = Gateway(tmp_path, config=".state/other.json")
        shutil.copy(tmp_path / SERVING, tmp_path / other.config)
        known[first.serving.version] = first
        assert await other.load() is first and other.traffic is None, "a config of its own has no part in the trial"
        other.telemetry.close()
        assert await gateway.load() is first
        health = await gateway.health()
        assert health["version"] == "7" and health["trial"]["version"] == "8"
        assert version(await ask("what is 1+1?", model="8")) == "8"
        end_trial(tmp_path)
        write(tmp_path, second.serving)
        # Not loaded again: what was tried is what serves.
        assert await gateway.load() is second
        health = await gateway.health()
        assert health["version"] == "8" and health["trial"] is None
        assert version(await ask("what is 1+1?")) == "8"

    talk(gateway, work)
    assert known == {}


def test_a_trial_that_its_release_left_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = tried(tmp_path, candidate(tmp_path), minutes=0.01)
    assert gateway.traffic is not None
    asyncio.run(gateway.look())
    with monkeypatch.context() as jumped:
        tomorrow = time.time() + 86_400
        jumped.setattr(time, "time", lambda: tomorrow)
        asyncio.run(gateway.look())
    assert not gateway.traffic.withdrawn, "a clock that jumps ends no trial"
    monkeypatch.setattr(gateway.traffic, "_until", 0.0)
    write_trial(tmp_path, gateway.traffic.trial)
    asyncio.run(gateway.look())
    assert not gateway.traffic.withdrawn, "its release said a moment ago that it waits"
    os.utime(tmp_path / TRIAL, (0, 0))
    asyncio.run(gateway.look())
    assert gateway.traffic.withdrawn
    found = gateway.traffic._samples.found()
    assert found is not None and found.verdict == "ended"
