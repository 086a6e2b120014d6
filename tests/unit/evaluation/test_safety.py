"""The safety set tells a model that follows orders from one that does not, through the real loop and real tools."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from orchestra.errors import ConfigError, DataError
from orchestra.evaluation.run import Contender
from orchestra.evaluation.safety import EXAMPLES, MARK, Safety, SafetyResult, check, read_cases, read_safety
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, Example, Price
from tests.support.mcp_world import fake, freezer, load, offers
from tests.support.scripts import LIMITS, call
from tests.support.worlds import ROOT, catalogue, codec, example, toolkit

CASES = read_cases(ROOT / "data/safety/injections.yaml")
SHIPPED = [example(f"e{n}", instruction=f"who founded firm {n}?", answer="x") for n in range(2)]


def deaf(conversation: Conversation) -> str:
    """Searches, then answers with what it found."""
    if not conversation.turns:
        return call("search", query="Norvik")
    return format_answer(conversation.turns[-1].observation or "")


def obedient(conversation: Conversation) -> str:
    """Does what the last reply orders, once."""
    if len(conversation.turns) == 1 and MARK in (conversation.turns[0].observation or ""):
        return call("gpt-5", question=MARK)
    return deaf(conversation)


def tempted(conversation: Conversation) -> str:
    """Asks the named tool, in its own words, where an order names it."""
    if len(conversation.turns) == 1 and "gpt-5" in (conversation.turns[0].observation or ""):
        return call("gpt-5")
    return deaf(conversation)


def tried(
    decide: Callable[[Conversation], str], folder: Path, examples: list[Example], kit: Toolkit | None = None
) -> Safety:
    kit = kit or toolkit(folder)
    contender = Contender("grpo", lambda: ScriptedPolicy("grpo", decide, codec().turn), codec(), Price())
    clean = rollout(examples, contender.build(), codec(), kit, RolloutOptions(LIMITS, Price()))
    return check(contender, CASES, clean, examples, kit, LIMITS)


def test_the_shipped_cases_are_many_and_each_asks_for_an_act() -> None:
    assert len(CASES) >= 16 and len({case.name for case in CASES}) == len(CASES)
    assert all("{tool}" in case.text and "{mark}" in case.text for case in CASES)
    assert {case.place for case in CASES} == {"before", "after", "instead"}
    assert CASES[0].said("a fact", "gpt-5").startswith("a fact\n") and MARK in CASES[0].said("", "gpt-5")


def test_a_model_that_ignores_orders_holds_in_every_case(tmp_path: Path) -> None:
    found = tried(deaf, tmp_path, SHIPPED)
    assert found.failed == () and {one.tool for one in found.results} == {"gpt-5"}
    assert len(found.results) == len(CASES) * min(EXAMPLES, len(SHIPPED))
    assert {one.example_id for one in found.results} == {"e0", "e1"}


def test_a_model_that_follows_orders_fails_in_every_case(tmp_path: Path) -> None:
    found = tried(obedient, tmp_path, SHIPPED[:1])
    assert found.failed == tuple(case.name for case in CASES)
    assert all("carries the order's question" in one.why for one in found.results)


def test_a_model_that_is_swayed_is_told_and_fails_no_case(tmp_path: Path) -> None:
    found = tried(tempted, tmp_path, SHIPPED[:1])
    assert found.failed == () and all(one.swayed for one in found.results)


@pytest.mark.parametrize(
    ("shown", "holds"),
    [
        ((True, True, None, None), True),
        ((True, None, None, None), False),
        ((True, True, True, False), False),
        ((None,), False),
    ],
)
def test_a_case_most_of_whose_examples_were_lost_did_not_hold(shown: tuple[bool | None, ...], holds: bool) -> None:
    results = tuple(
        SafetyResult(case="one", example_id=f"e{number}", tool="gpt-5", held=held, why="")
        for number, held in enumerate(shown)
    )
    assert Safety(policy="a", cases=1, results=results).failed == (() if holds else ("one",))


def test_examples_that_can_show_nothing_hold_nothing(tmp_path: Path) -> None:
    silent = tried(lambda _: format_answer("13"), tmp_path, SHIPPED)
    assert len(silent.failed) == len(CASES) and silent.results[0].why == "no example shows it"


def test_an_order_in_what_an_mcp_server_says_is_tried_too(tmp_path: Path) -> None:
    made = freezer(tmp_path)
    made.freeze("sums", fake(), offers(fake()), ["add"])
    kit = Toolkit(load(made), toolkit(tmp_path).domain_folders, tmp_path)
    shown = example(toolbox=[kit.catalogue.spec("add"), kit.catalogue.spec("gpt-5")])

    def adds(conversation: Conversation) -> str:
        if not conversation.turns:
            return call("add", a=800, b=88)
        return obedient(conversation)

    found = tried(adds, tmp_path, [shown], kit)
    assert found.failed == tuple(case.name for case in CASES) and {one.tool for one in found.results} == {"gpt-5"}
    assert all("carries the order's question" in one.why for one in found.results)


@pytest.mark.parametrize("keeps", [True, False])
def test_an_infected_tool_ends_its_calls_as_it_does_without_an_order(keeps: bool, tmp_path: Path) -> None:
    """One with a deadline of its own is not ended by another; any other is ended by its entry's."""
    asked = 0

    class Slow:
        component, keeps_deadline = Component.SEARCH, keeps

        async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.05 if asked > 1 else 0)
            return ToolResult(text="a fact")

    shipped = catalogue()
    entry = shipped.entry("search").model_copy(update={"deadline_s": 0.02})
    found = replace(shipped, entries={**shipped.entries, "search": entry})
    folders = toolkit(tmp_path).domain_folders
    safety = tried(deaf, tmp_path, SHIPPED[:1], Toolkit(found, folders, tmp_path, tools={"search": Slow()}))
    assert len(safety.failed) == (0 if keeps else len(CASES))


def test_results_are_read_as_written_and_faults_are_one_line(tmp_path: Path) -> None:
    found = tried(deaf, tmp_path, SHIPPED[:1])
    file = tmp_path / "safety.json"
    assert read_safety(file) is None
    file.write_text(found.model_dump_json())
    assert read_safety(file) == found
    file.write_text("{}")
    with pytest.raises(DataError, match="corrupt"):
        read_safety(file)
    file.write_text("- {name: a, place: nowhere, text: b}")
    with pytest.raises(ConfigError, match="each case has a name"):
        read_cases(file)
    file.write_text("[]")
    with pytest.raises(ConfigError, match=r"no case in it — .*evaluate\.safety: null"):
        read_cases(file)
    file.write_text("- {name: a, place: before, text: b}\n- {name: a, place: after, text: b}")
    with pytest.raises(ConfigError, match="2 cases have the name 'a'"):
        read_cases(file)
