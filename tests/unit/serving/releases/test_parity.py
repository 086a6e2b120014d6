"""The smoke set of a release where experts are real: each answers in other words every time."""

import asyncio
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.errors import CallError, ServiceError
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, Generation, ScriptedPolicy
from orchestra.serving.releases import parity as module
from orchestra.serving.releases.parity import PLAYER, Proof
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.failures import Failure
from orchestra.tools.replay.cassette import Cassette
from orchestra.types import Component, Episode, StopReason, ToolCall
from tests.support.endpoint import answer, serving
from tests.support.experts import expert, real
from tests.support.serving_world import params
from tests.support.worlds import codec, episode, example, toolkit


def repeat(conversation: Conversation) -> str:
    """Asks the expert, then says what it said."""
    if not conversation.turns:
        return format_call(ToolCall(name="oracle", arguments={}))
    return format_answer(conversation.turns[-1].observation or "")


@pytest.mark.parametrize("named", [False, True], ids=["no cassette", "a cassette of the user's"])
def test_a_server_is_replied_what_the_checkpoint_was(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = count()

    def script(_: dict[str, Any]) -> tuple[int, Any, float]:
        return 200, answer(f"Tesk, in the words of answer {next(said)}"), 0.0

    entries: dict[str, Entry] = {"oracle": expert()}
    player = ScriptedPolicy(PLAYER, repeat, codec().turn)
    monkeypatch.setattr(module, "VllmPolicy", lambda *given, **named: player)
    # A scripted policy has no log-probabilities to compare.
    monkeypatch.setattr("orchestra.serving.releases.vllm.disagreement", lambda *given: None)
    with serving(script) as double:
        cassette = Cassette(tmp_path / "own.jsonl") if named else None
        budget = Budget(tmp_path / "ledger.jsonl", None, "deploy")
        tools = real(monkeypatch, toolkit(tmp_path), double, None, cassette, budget, **entries)
        box = [tools.catalogue.spec("oracle")]
        examples = [example(f"e{n}", instruction=f"who wrote book {n}?", toolbox=box) for n in range(6)]
        proof = Proof(params(), codec(), tools, examples, [], [])
        _, proof.episodes = asyncio.run(proof._work(player, first=True))
        assert len({one.answer for one in proof.episodes}) == len(double.asked) == 6
        for _ in range(2):
            assert (
                proof.check(tmp_path, "http://127.0.0.1:1", "it") == "canary equal; 6 of 6 smoke examples as in process"
            )
        assert len(double.asked) == 6, "nobody is asked, or paid, again"
        assert list(budget.by_phase()) == [f"deploy/{PLAYER}"]
        assert budget.by_component()[Component.EXPERT].calls == 6


def test_a_server_meets_the_failures_that_the_checkpoint_met(tmp_path: Path) -> None:
    """Asked again, what failed might answer, and the episode would go on otherwise."""
    proof = Proof(params(), codec(), toolkit(tmp_path), [], [], [])
    proof._replies(first=True).slot({"asked": 1}).keep(Failure.of(CallError("no such city")))
    found = proof._replies(first=False).slot({"asked": 1}).found
    assert found is not None and found.failure is not None
    assert proof._replies(first=True).slot({"asked": 1}).found is None


def ended(answer: str | None, stop: StopReason = StopReason.ANSWERED) -> Episode:
    return episode(answer=answer).model_copy(update={"stop": stop, "answer": answer})


def checked(
    monkeypatch: pytest.MonkeyPatch, folder: Path, ours: list[Episode], theirs: list[Episode], canary: float = -1.0
) -> str:
    """What the proof of a checkpoint says of a server that played so, and whose canary has that log-probability."""
    proof = Proof(params(), codec(), toolkit(folder), [], [Generation([1], [-1.0], "stop")], ours)

    async def work(*_: object, **__: object) -> tuple[list[Generation], list[Episode]]:
        return [Generation([1], [canary], "stop")], theirs

    monkeypatch.setattr(proof, "_work", work)
    return proof.check(folder, "http://127.0.0.1:1", "it")


def test_a_server_is_refused_for_its_numbers_its_ends_and_what_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [ended(str(number)) for number in range(6)]
    other, cut = [ended("x"), ended("y")], ended("0", StopReason.TURN_LIMIT)
    check = partial(checked, monkeypatch, tmp_path, ours)
    assert check(list(ours)) == "canary equal; 6 of 6 smoke examples as in process"
    # One may fall the other way.
    assert (
        check([other[0], *ours[1:]]) == check([cut, *ours[1:]]) == "canary equal; 5 of 6 smoke examples as in process"
    )
    for theirs in ([*other, *ours[2:]], [cut, other[1], *ours[2:]]):
        with pytest.raises(ServiceError, match="2 of 6 smoke examples ended otherwise"):
            check(theirs)
    with pytest.raises(ServiceError, match=r"the canary failed: generation 0, token 0: log-probability -1\.5000"):
        check(list(ours), canary=-1.5)
    for stop in (StopReason.TOOL_FAILURE, StopReason.CANCELLED):
        with pytest.raises(ServiceError, match="1 of 6 smoke examples were lost to infrastructure"):
            check([*ours[:5], ended(None, stop)])
