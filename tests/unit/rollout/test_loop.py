"""The rules of the loop, each held by one test `test_NN_…` in this folder.

1. Answered: the first turn without a call is the answer. Its verdict compares it.
2. Turn limit: the episode ends after exactly `max_turns` turns, and the verdict says so.
3. Token limit of a turn: a turn that is cut off is kept unparsed, as the policy wrote it.
4. Token limit of the episode: prompt, turns and observations together stay within `max_tokens`.
5. A prompt that is too long gives an episode without turns. The rest of its batch goes on.
6. Malformed: the first unreadable turn is answered with the reason, the second in a row ends the episode.
7. Recovery: the count of unreadable turns starts again after a readable one.
8. A call at fault: nothing runs, only the tokens of the policy are charged, and the model reads the reason.
9. A tool that refuses (a precondition, a bad expression) did run: the model reads it and pays for it.
10. A tool that fails (infrastructure) ends the episode without a verdict. The rest of its batch goes on.
11. Budget: a call or a turn that at its worst could cross it is refused before it runs.
12. Every episode has a database of its own: samples do not see the changes of each other.
13. Order: examples as given, samples together, the same for any batch size.
14. A judge that fails leaves an answer without a verdict.
15. The policy pays in each turn for every token it reads and writes, at its price and modelled speed.
16. One line of JSON holds the whole episode, to the last cent.
17. A fault of neither the model nor a tool is raised.
18. The mask is 1 exactly on the ids of the policy. The dollars are exactly the sum of the parts.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.ledger import cost_of
from orchestra.errors import ToolError
from orchestra.rollout.charges import SECONDS_PER_TOKEN
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Generation, ScriptedPolicy
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, Episode, Example, StopReason, Usage
from tests.support.scripts import LIMITS, RIGHT, SUM, Typist, call, play, says
from tests.support.worlds import PRICE, ROOT, catalogue, codec, example, toolkit


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (call("nosuch"), "no tool named nosuch; there are: calculator"),
        (call("<|im_end|>"), "no tool named <|im_end|>"),
        (call("search"), "search: needs query; it takes query (string)"),
        (call("calculator", expression=7), "expression must be a string, not 7"),
        (call("calculator", expression="1", more=[10**200]), "has no argument more"),
    ],
)
def test_08_a_call_at_fault_becomes_an_observation(tools: Toolkit, text: str, reason: str) -> None:
    run = play(tools, says(text, RIGHT))
    assert run.turns[0].observation is not None
    assert run.turns[0].observation.startswith("error: ")
    assert reason in run.turns[0].observation
    assert run.turns[0].parse_error is None
    assert [c.component for c in run.turns[0].charges] == [Component.POLICY]
    assert run.tool_counts == {}
    assert run.solved


def test_09_a_tool_that_refuses_is_charged_and_observed(tools: Toolkit, paying: Example) -> None:
    run = play(tools, says(call("calculator", expression="1/0"), RIGHT))
    assert run.turns[0].observation == "error: division by zero"
    assert run.tool_counts == {"calculator": 1}
    refused = play(tools, says(call("pay_fine", reader="Ovel"), call("get_book", book=10**30), "7"), paying)
    assert refused.turns[0].observation == "error: Ovel owes nothing"
    assert (refused.turns[1].observation or "").startswith("error: ")
    assert refused.stop is StopReason.ANSWERED


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    """The mock domain with a tool whose SQL takes far too long."""
    folder = tmp_path_factory.mktemp("failing")
    domain = Path(shutil.copytree(ROOT / "data/domains/mock", folder / "mock"))
    endless = "select count(*) as n from " + ", ".join(f"books {letter}" for letter in "abcdefgh")
    text = (domain / "tools.yaml").read_text(encoding="utf-8")
    tool = f"  - name: endless\n    description: never ends\n    parameters: {{}}\n    statements:\n      - {endless}\n"
    (domain / "tools.yaml").write_text(text + tool, encoding="utf-8")
    return toolkit(folder, domain)


def test_10_a_tool_that_fails_leaves_the_verdict_unknown(failing: Toolkit, paying: Example) -> None:
    spec = catalogue().domain_spec("mock", failing.domain("mock").tools["endless"])
    broken = paying.model_copy(update={"id": "broken", "toolbox": (spec, *paying.toolbox)})
    policy = ScriptedPolicy(
        "script", lambda c: call("endless") if c.example.id == "broken" else (pay, "7")[len(c.turns)], codec().turn
    )
    pay = call("pay_fine", reader="Brin")
    dead, fine = rollout([broken, paying], policy, codec(), failing, RolloutOptions(LIMITS, PRICE))
    assert (dead.stop, dead.verdict, dead.counted) == (StopReason.TOOL_FAILURE, None, False)
    assert (len(dead.turns), dead.turns[0].observation) == (1, None)
    assert fine.solved


def test_12_what_a_domain_example_changes_is_judged_on_its_own_copy(tools: Toolkit, paying: Example) -> None:
    pay = call("pay_fine", reader="Brin")
    runs = rollout([paying], says(pay, "it was 7"), codec(), tools, RolloutOptions(LIMITS, PRICE, samples=3))
    assert [r.solved for r in runs] == [True] * 3
    assert [r.turns[0].observation for r in runs] == ["paid: 7"] * 3
    assert not play(tools, says("it was 7"), paying).solved


def test_13_groups_come_back_in_order_whatever_the_batch(tools: Toolkit) -> None:
    items = [example(f"e{i}") for i in range(5)]
    policy = ScriptedPolicy("script", lambda c: f"{c.example.id} {c.sample}", codec().turn)
    seen: list[int] = []
    for batch in (1, 4, 256):
        options = RolloutOptions(LIMITS, PRICE, samples=3, batch=batch, on_progress=seen.append)
        runs = rollout(items, policy, codec(), tools, options)
        assert [r.answer for r in runs] == [f"e{i} {s}" for i in range(5) for s in range(3)]
    assert seen == [1] * 15 + [4, 4, 4, 3] + [15]


def test_15_policy_tokens_are_charged_by_turn(tools: Toolkit) -> None:
    run = play(tools, says(SUM, RIGHT))
    read = len(run.prompt_ids)
    for turn in run.turns:
        charge = turn.charges[0]
        assert charge.usage == Usage(input_tokens=read, output_tokens=len(turn.ids))
        assert charge.cost_usd == cost_of(PRICE, charge.usage)
        assert charge.latency_s == pytest.approx(len(turn.ids) * SECONDS_PER_TOKEN)
        read += len(turn.ids) + len(turn.observation_ids)


def test_16_an_episode_is_written_and_read_unchanged(tools: Toolkit) -> None:
    run = play(tools, says(call("gpt-5"), call("search", query="<|im_end|> Norvik"), "", RIGHT))
    assert Episode.model_validate_json(run.model_dump_json()) == run
    assert run.simulated


def test_a_policy_error_reaches_the_caller(tools: Toolkit) -> None:
    """A dead inference server is not an episode."""

    class Dead(Typist):
        async def generate(self, *args: Any) -> list[Generation]:
            raise ToolError("gone", where="vllm")

    ended: list[Callable[[], None]] = []
    policy = Dead("x")
    policy.end = lambda: ended.append(policy.end)  # type: ignore[method-assign]
    with pytest.raises(ToolError, match="gone"):
        play(tools, policy)
    assert len(ended) == 1


def test_every_rule_of_the_loop_has_one_test() -> None:
    rules = re.findall(r"^(\d+)\. ", __doc__ or "", re.MULTILINE)
    sources = [file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    tests = [int(number) for source in sources for number in re.findall(r"^def test_(\d\d)_", source, re.MULTILINE)]
    assert sorted(tests) == [int(number) for number in rules]
