"""What a request meets that waits: a release, a look at the server, a place, its own seconds, a caller that leaves."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra.config.deploy import GatewayLimits
from orchestra.rollout.policies.base import Conversation, Generation, ScriptedPolicy
from orchestra.serving.backend import Backend
from orchestra.serving.episodes.engine import ThreadedPolicy
from orchestra.serving.episodes.job import ANYBODY, Caller, Job
from orchestra.serving.gateway import Gateway
from orchestra.serving.releases.traffic import Traffic
from orchestra.serving.shared.samples import Finding
from orchestra.serving.wire.request import ChatRequest
from tests.support.serving_world import backend, calculate
from tests.support.worlds import codec
from tests.unit.serving.releases.test_traffic import trial
from tests.unit.serving.test_gateway import client

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "what is 2*3?"}]}


class Held(ScriptedPolicy):
    """Writes nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__("held", calculate, codec().turn)
        self.go = asyncio.Event()

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        await self.go.wait()
        return await super().generate(conversations, max_tokens)


def closing(tmp_path: Path, version: str = "7") -> Backend:
    """One that answers nothing after it was closed."""
    made = backend(tmp_path, policy=ThreadedPolicy(ScriptedPolicy("closing", calculate, codec().turn)))
    made.serving = made.serving.model_copy(update={"version": version, "fingerprint": f"f{version}"})
    return made


def test_a_release_waits_for_requests_that_are_being_made_ready(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, backend=closing(tmp_path))
    inside, hold, ready = asyncio.Event(), asyncio.Event(), gateway.ready

    async def slowly(backend: Backend, request: ChatRequest, caller: Caller = ANYBODY) -> Job:
        inside.set()
        await hold.wait()
        return await ready(backend, request, caller)

    async def go() -> None:
        gateway.ready = slowly  # type: ignore[method-assign]
        async with client(gateway) as http:
            asked = asyncio.ensure_future(http.post(PATH, json=BODY))
            await inside.wait()
            gateway._switch(closing(tmp_path, "8"))
            assert (await http.get("/health")).json()["draining"] == {"f7": 1}
            hold.set()
            assert (await asked).json()["orchestra"]["version"] == "7"
            assert (await http.get("/health")).json()["draining"] == {}

    asyncio.run(go())


def test_a_withdrawn_candidate_answers_what_waits_for_a_place(tmp_path: Path) -> None:
    held, candidate = Held(), closing(tmp_path, "8")
    gateway = Gateway(tmp_path, backend=backend(tmp_path, policy=held), limits=GatewayLimits(running=1))
    gateway.traffic = Traffic(
        tmp_path, trial(candidate.serving, share=0.5), candidate, gateway.store, gateway.telemetry
    )

    async def go() -> None:
        async with client(gateway) as http:
            first = asyncio.ensure_future(http.post(PATH, json={**BODY, "model": "7"}))
            while not gateway.places.running:
                await asyncio.sleep(0.01)
            second = asyncio.ensure_future(http.post(PATH, json={**BODY, "model": "8"}))
            while not gateway.places.waiting:
                await asyncio.sleep(0.01)
            assert gateway.traffic is not None
            gateway.traffic._samples.find(Finding(verdict="worse", why="seen elsewhere"))
            assert (await http.get("/health")).json()["draining"] == {"f8": 1}
            held.go.set()
            assert [(await one).json()["orchestra"]["version"] for one in (first, second)] == ["7", "8"]
            assert (await http.get("/health")).json()["draining"] == {}

    asyncio.run(go())


def test_a_look_that_began_before_a_release_says_nothing_of_it(tmp_path: Path) -> None:
    old, looking, end = backend(tmp_path), asyncio.Event(), asyncio.Event()

    async def hung() -> str:
        looking.set()
        await end.wait()
        return "vLLM at http://old does not answer"

    old.problem = hung  # type: ignore[method-assign]
    gateway = Gateway(tmp_path, backend=old)

    async def go() -> None:
        async with client(gateway) as http:
            look = asyncio.ensure_future(gateway.look())
            await asyncio.wait_for(looking.wait(), 30)
            gateway._switch(closing(tmp_path, "8"))
            end.set()
            assert await look is None
            assert (await http.post(PATH, json=BODY)).json()["orchestra"]["version"] == "8"

    asyncio.run(go())


def test_a_stream_without_a_place_is_refused_by_status(tmp_path: Path) -> None:
    held = Held()
    gateway = Gateway(tmp_path, backend=backend(tmp_path, policy=held), limits=GatewayLimits(running=1, waiting=0))

    async def go() -> None:
        async with client(gateway) as http:
            first = asyncio.ensure_future(http.post(PATH, json=BODY))
            while not gateway.places.running:
                await asyncio.sleep(0.01)
            for stream in (True, False):
                refused = await http.post(PATH, json={**BODY, "stream": stream})
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
                assert int(refused.headers["retry-after"]) > 0
            held.go.set()
            assert (await first).status_code == 200
            # The place of a stream is free again after its end.
            for _ in range(2):
                streamed = await http.post(PATH, json={**BODY, "stream": True})
                assert streamed.text.endswith("data: [DONE]\n\n") and gateway.places.running == 0
        assert gateway.backend is not None and gateway.backend.in_flight == 0

    asyncio.run(go())


def test_the_seconds_of_a_request_hold_while_it_waits_for_a_place(tmp_path: Path) -> None:
    """The other request never ends, and a place is waited for an hour."""
    limits = GatewayLimits(running=1, wait_s=3600)
    gateway = Gateway(tmp_path, backend=backend(tmp_path, policy=Held()), limits=limits)

    async def go() -> None:
        async with client(gateway) as http:
            first = asyncio.ensure_future(http.post(PATH, json=BODY))
            while not gateway.places.running:
                await asyncio.sleep(0.01)
            second = await asyncio.wait_for(http.post(PATH, json={**BODY, "max_seconds": 0.2}), 60)
            assert (second.status_code, second.json()["error"]["code"]) == (503, "busy")
            first.cancel()

    asyncio.run(go())


def test_a_stream_whose_caller_leaves_counts_as_left(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, backend=backend(tmp_path, policy=Held()))
    made = gateway.active
    request = ChatRequest.model_validate({**BODY, "stream": True})

    async def go() -> None:
        events = gateway.stream(made, await gateway.ready(made, request), 0.0)
        await anext(events)
        await events.aclose()

    asyncio.run(go())
    assert 'orchestra_requests_total{code="499"} 1.0' in gateway.telemetry.render().decode()
