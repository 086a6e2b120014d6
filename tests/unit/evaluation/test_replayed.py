"""A whole evaluation from its cassette: with nobody to ask and no key, the same bytes, and nothing spent."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import by_component
from orchestra.config.schema import Rollout
from orchestra.errors import ConfigError
from orchestra.evaluation.run import Contender, evaluate
from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.types import Component, Episode, Price, StopReason
from tests.support.endpoint import Double, answer, serving
from tests.support.experts import KEY, expert, real
from tests.support.scripts import call
from tests.support.worlds import codec, example, toolkit

LIMITS = Rollout(max_turns=3, max_turn_tokens=200, max_tokens=4000)
ASKED = ["real", "coder", "python", "dead"]
EXPERTS = {
    "real": expert(),
    "coder": expert(role="code writer", hands_to="python"),
    "dead": expert(fallback="gone"),
    "gone": expert(),
}
REPLIES = [0]
SPENT: dict[Mode, Decimal] = {}
"""By the run's ledger."""


def solve(request: dict[str, Any]) -> tuple[int, Any, float]:
    """Another wording each time, as a model that samples; `gone` now and then, `dead` never."""
    REPLIES[0] += 1
    number = int(request["messages"][-1]["content"].removeprefix("what is ").partition("+")[0])
    if request["model"] == "dead" or (request["model"] == "gone" and number % 2):
        return 500, {}, 0
    if request["model"] == "coder":
        return 200, answer(f"```python\nprint({number} + 1)  # {REPLIES[0]}\n```"), 0
    return 200, answer(f"take {REPLIES[0]}: {number + 1}"), 0


def decide(conversation: Conversation) -> str:
    instruction = conversation.example.instruction
    if conversation.turns:
        return format_answer((conversation.turns[0].observation or "").split()[-1])
    tool = ASKED[int(instruction.removeprefix("what is ").partition("+")[0]) // 2 % len(ASKED)]
    return call(tool, code="import time; print(time.time())") if tool == "python" else call(tool)


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, mode: Mode, double: Double | None, count: int = 8
) -> tuple[bytes, list[Episode], Cassette]:
    cassette = Cassette(folder / "tape.jsonl", mode)
    limits = ProviderLimits(attempts=1, failures=100)
    budget = Budget(folder / f"{mode}.ledger.jsonl", Decimal("0.0005") if mode == "replay" else None)
    kit = real(monkeypatch, toolkit(folder), double, limits, cassette, budget, **EXPERTS)
    box = [kit.catalogue.spec(name) for name in ASKED]
    examples = [
        example(f"e{n}", instruction=f"what is {n}+1?", answer=str(n + 1), toolbox=box, kind="numeric")
        for n in range(count)
    ]
    policies = [
        Contender(name, lambda name=name: ScriptedPolicy(name, decide, codec().turn), codec(), Price())  # type: ignore[misc]
        for name in ("one", "two")
    ]
    file = folder / f"{mode}.jsonl"
    found = evaluate(policies, examples, kit, LIMITS, file=file)
    SPENT[mode] = budget.spent_usd
    return file.read_bytes(), [episode for episodes in found.values() for episode in episodes], cassette


def test_it_replays_to_the_same_bytes_without_an_endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(solve) as double:
        recorded, episodes, first = run(monkeypatch, tmp_path, "record", double)
        asked = len(double.asked)
    assert (first.replayed, first.asked) == (0, asked + 8), "each policy has four programs run"
    replayed, again, second = run(monkeypatch, tmp_path, "replay", None)
    assert replayed == recorded and again == episodes
    assert (second.replayed, second.asked) == (first.asked, 0)
    assert second.summary().endswith(f"{first.asked} calls replayed, nothing spent on them; 0 asked")

    assert SPENT["record"] > Decimal("0.0005"), "more than the cap of the replay, which spends nothing"
    assert SPENT["replay"] == 0
    parts = by_component(charge for episode in again for charge in episode.charges)
    assert parts[Component.EXPERT] > 0 and parts[Component.SANDBOX] > 0, "what it cost when it was recorded is reported"
    assert sum(episode.stop is StopReason.TOOL_FAILURE for episode in again) == 2, "failures are replayed, too"
    assert all(episode.latency_s > 0 for episode in again)
    text = (tmp_path / "tape.jsonl").read_text(encoding="utf-8")
    assert KEY not in text and "127.0.0.1" not in text

    (tmp_path / "replay.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"no recorded reply to request \w+ .*use mode auto"):
        run(monkeypatch, tmp_path, "replay", None, count=9)


def test_a_recording_that_was_killed_and_went_on_replays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the second process asks again, counting from the start, takes no other policy's place."""
    with serving(solve) as double:
        run(monkeypatch, tmp_path, "record", double)
        kept = (tmp_path / "record.jsonl").read_bytes().splitlines(keepends=True)[:11]
        (tmp_path / "record.jsonl").write_bytes(b"".join(kept))
        recorded, episodes, _ = run(monkeypatch, tmp_path, "record", double)
    replayed, again, _ = run(monkeypatch, tmp_path, "replay", None)
    assert replayed == recorded and again == episodes
