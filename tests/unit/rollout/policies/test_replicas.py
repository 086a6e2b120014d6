"""Several servers of one model: who is asked, what happens when one fails, and that nothing told is told twice."""

import asyncio
from collections.abc import Sequence

import pytest

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation, KeepsNothing
from orchestra.rollout.policies.replicas import ReplicatedPolicy
from tests.support.worlds import example


class Server(KeepsNothing):
    """Says its number; can be down, before or after its first token."""

    def __init__(self, number: int) -> None:
        self.number, self.asked, self.down, self.breaks = number, 0, False, False
        self.running = self.most = 0

    @property
    def name(self) -> str:
        return "model"

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        self.asked += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.down:
            raise ServiceError("gone", where=f"server {self.number}")
        told = conversations[0].on_tokens
        if told is not None:
            told([self.number])
        if self.breaks:
            raise ServiceError("broke off", where=f"server {self.number}")
        return [Generation([self.number], [0.0], "stop")]

    async def aclose(self) -> None:
        self.asked = -1


def talk(number: int = 0) -> Conversation:
    return Conversation(example(f"e{number}"), [1, 2])


def answer(policy: ReplicatedPolicy, conversation: Conversation) -> int:
    (made,) = asyncio.run(policy.generate([conversation], [4]))
    return made.ids[0]


def test_conversations_spread_and_each_stays_where_it_began() -> None:
    servers = [Server(0), Server(1), Server(2)]
    policy, talks = ReplicatedPolicy(servers), [talk(number) for number in range(12)]

    async def turns() -> list[int]:
        made = await asyncio.gather(*(policy.generate([one], [4]) for one in talks))
        return [one[0].ids[0] for one in made]

    first = asyncio.run(turns())
    assert [server.most for server in servers] == [4, 4, 4]
    assert asyncio.run(turns()) == first == asyncio.run(turns())


def test_a_server_that_fails_loses_no_turn_and_is_asked_last() -> None:
    servers = [Server(0), Server(1)]
    policy, one = ReplicatedPolicy(servers), talk()
    assert answer(policy, one) == 0
    servers[0].down = True
    assert answer(policy, one) == 1
    asked = servers[0].asked
    assert [answer(policy, talk(number)) for number in range(5)] == [1] * 5 and servers[0].asked == asked


def test_without_any_server_the_failure_is_told() -> None:
    servers = [Server(0), Server(1)]
    servers[0].down = servers[1].down = True
    with pytest.raises(ServiceError, match="gone"):
        answer(ReplicatedPolicy(servers), talk())
    assert [server.asked for server in servers] == [1, 1]


def test_what_was_told_is_not_told_again_by_another_server() -> None:
    servers, heard = [Server(0), Server(1)], list[int]()
    servers[0].breaks = True
    listening = Conversation(example("e"), [1], on_tokens=heard.extend)
    with pytest.raises(ServiceError, match="broke off"):
        answer(ReplicatedPolicy(servers), listening)
    assert heard == [0] and servers[1].asked == 0


def test_closing_closes_every_server() -> None:
    servers = [Server(0), Server(1)]
    asyncio.run(ReplicatedPolicy(servers).aclose())
    assert [server.asked for server in servers] == [-1, -1]
