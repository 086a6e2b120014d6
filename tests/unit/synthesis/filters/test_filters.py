"""Offline evolution and the filters: all that is kept replays to solved, is needed, is new, and can be solved."""

import asyncio
import random
from functools import lru_cache, partial
from pathlib import Path

import pytest

from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import Rollout, load_params
from orchestra.errors import DataError, ToolError
from orchestra.files.examples import in_range
from orchestra.rollout.parse import format_call
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.synthesis.assembly.example import ExampleBuilder
from orchestra.synthesis.domain_tasks.drafts import draft_of
from orchestra.synthesis.domain_tasks.evolve import KINDS, MAX_WORDS, _Pool, evolved
from orchestra.synthesis.domain_tasks.tasks import DomainTask, refuted
from orchestra.synthesis.draft import Refused
from orchestra.synthesis.filters.filters import Duplicates, Solver, kept, proven
from orchestra.synthesis.filters.solver import is_billed, stumbling
from orchestra.synthesis.writers.generator import OfflineGenerator
from orchestra.tools.experts.simulated import BookEntry
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, ToolCall
from orchestra.validation.replay import replay
from tests.support.worlds import ROOT, codec, kit, toolkit
from tests.support.worlds import example as question

LIMITS = Rollout(max_turns=6, max_turn_tokens=200, max_tokens=8000)
GENERATOR = OfflineGenerator(3)
TOO_LONG = "the instruction has fewer than 3 or more than 2,000 characters"


def test_a_solver_is_billed_where_it_asks_a_model_that_somebody_bills() -> None:
    shipped = load_params(ROOT / "params.yaml").world.model_copy(update={"domains": []})
    judge = JudgeSettings(model="judge-1", price="openai/gpt-5")
    real = {"catalogue": "data/catalogue/real.yaml", "price_date": "2026-08-06"}
    simulated, judged, asked = (
        Toolkit.of(shipped.model_copy(update=update), ROOT) for update in ({}, {"judge": judge}, real)
    )
    assert [is_billed("known", one) for one in (simulated, judged, asked)] == [False, True, True]
    assert is_billed("chat:gpt-5", simulated) and not any(is_billed("none", one) for one in (simulated, judged, asked))


def built(task: DomainTask, name: str, domain: str = "mock") -> Example:
    config = load_params(ROOT / "params.yaml").synthesize
    world, builder = kit(domain).domain(domain), ExampleBuilder(kit(domain).catalogue, config, "train")
    return builder.build(draft_of(world, task), name, random.Random(name), GENERATOR.origin.of(task), world.tools)


@lru_cache
def parents(domain: str = "mock", count: int = 12) -> tuple[Example, ...]:
    tasks = GENERATOR.tasks(kit(domain).domain(domain), "train", count)
    return tuple(built(task, f"p{n}", domain) for n, task in enumerate(tasks) if isinstance(task, DomainTask))


@lru_cache
def harder(domain: str = "mock", count: int = 40) -> tuple[Example, ...]:
    tasks = GENERATOR.evolved(
        kit(domain).domain(domain), "train", parents(domain, 12 if domain == "mock" else 80), count
    )
    return tuple(built(task, f"e{n}", domain) for n, task in enumerate(tasks) if isinstance(task, DomainTask))


@pytest.mark.parametrize("domain", ["mock", "ecommerce"])
def test_every_evolved_example_replays_to_solved_and_says_what_it_came_from(domain: str) -> None:
    known = {parent.id: parent for parent in parents(domain, 12 if domain == "mock" else 80)}
    with asyncio.Runner() as runner:
        for example in harder(domain):
            assert runner.run(replay(example, kit(domain))) is None, example.instruction
            assert proven(example, kit(domain)) is None
            assert example.provenance.parent is not None
            made_from = [known[name] for name in example.provenance.parent.split("+")]
            assert example.instruction not in {parent.instruction for parent in made_from}
            assert set(example.entities) == {entity for parent in made_from for entity in parent.entities}
            assert len(example.instruction.split()) > max(len(parent.instruction.split()) for parent in made_from)
    assert sum(example.user is not None for example in harder(domain)) >= 5


def test_every_way_of_evolving_gives_some_and_the_same_for_a_seed() -> None:
    domain, rng = kit().domain("mock"), random.Random(0)
    pool = _Pool(parents())
    for kind in KINDS:
        tasks = [task for _ in range(60) if (task := pool.propose(kind, rng)) is not None]
        assert any(refuted(domain, task, MAX_WORDS) is None for task in tasks), kind
    again = [task.instruction for task in evolved(domain, parents(), 3, 40)]
    assert again == [example.instruction for example in harder()]
    assert again != [task.instruction for task in evolved(domain, parents(), 4, 40)]


def test_parents_that_give_no_more_say_so() -> None:
    with pytest.raises(DataError, match=r"only 0 evolved tasks found, 1 asked for"):
        next(evolved(kit().domain("mock"), [], 0, 1))
    with pytest.raises(DataError, match=r"only \d+ evolved tasks found, 999 asked for"):
        list(evolved(kit().domain("mock"), parents()[:2], 0, 999))


def test_a_condition_that_is_not_met_leaves_all_as_it_is() -> None:
    """Its change is offered and must not be called: doing it anyway is wrong."""
    changes = {tool.name for tool in kit().domain("mock").tools.values() if tool.writes}
    unmet = [
        example
        for example in harder(count=40)
        if not changes & {call.name for call in example.verifier.golden_calls}
        and "+" in str(example.provenance.parent)
        and ("leave all as it is" in example.instruction or "change nothing" in example.instruction)
    ]
    assert unmet
    known = {parent.id: parent for parent in parents()}
    for example in unmet:
        change = known[str(example.provenance.parent).split("+")[1]].verifier.golden_calls
        assert {call.name for call in change} <= {spec.name for spec in example.toolbox}
        overeager = ScriptedPolicy("eager", partial(eager, change), codec().turn)
        assert Solver(overeager, codec(), kit(), LIMITS, tries=1).measured([example])[0].difficulty == 0


def eager(change: tuple[ToolCall, ...], conversation: Conversation) -> str:
    """What it is asked, and then the change although its condition is not met."""
    calls, turn = (*conversation.example.verifier.golden_calls, *change), len(conversation.turns)
    return format_call(calls[turn]) if turn < len(calls) else str(conversation.example.verifier.answer)


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (
            {"golden_calls": (ToolCall(name="pay_fine", arguments={"reader": "Nobody"}),)},
            "refused: Nobody owes nothing",
        ),
        ({"golden_calls": ()}, "no action solves it too"),
        ({"communicate": ("zebra",)}, "no observation shows zebra"),
        ({"golden_calls": (ToolCall(name="no_tool"),)}, "no_tool is needed and not offered"),
    ],
)
def test_what_execution_does_not_prove_is_refused(update: dict[str, object], why: str) -> None:
    reasons = []
    for example in parents():
        verifier = example.verifier.model_copy(update=update)
        reasons.append(str(proven(example.model_copy(update={"verifier": verifier}), kit())))
    assert all(reason != "None" for reason in reasons)
    assert any(why in reason for reason in reasons), reasons


def test_questions_pass_the_same_filters(tmp_path: Path) -> None:
    """A question by its golden calls, a topic question by what a simulated expert of its toolbox knows."""
    tools = toolkit(tmp_path)
    call = [{"name": "calculator", "arguments": {"expression": "37*24"}}]
    topic = question(instruction="who wrote Opal?", answer="Tesk", category=Category.TOPIC)
    assert proven(question(golden_calls=call), tools) is None and proven(topic, tools) is None
    for example, why in (
        (question(golden_calls=call, answer="889"), "the answer is not in the last observation"),
        (question(), "it has no known solution"),
        (question(golden_calls=call, kind="judge"), "only a judge can check its answer, and none is configured"),
        (topic.model_copy(update={"instruction": "who wrote Opal" + 2000 * "?"}), TOO_LONG),
        (topic.model_copy(update={"instruction": "who wrote Agate?"}), "no simulated expert has heard of the question"),
        (topic.model_copy(update={"toolbox": topic.toolbox[:2]}), "a topic question without an expert"),
    ):
        assert proven(example, tools) == why
    tools.book.add(BookEntry(question=topic.instruction, topic="music", answer="Burr", wrong=()))
    assert proven(topic, tools) == "no expert of the toolbox knows the answer"


def test_a_user_is_there_only_where_it_must_be_asked() -> None:
    example = next(one for one in harder() if one.user is not None)
    assert example.user is not None
    assert "nothing tells" in str(proven(example.model_copy(update={"user": None}), kit()))
    told = f"{example.instruction} it is {' '.join(example.user.facts.values())}"
    assert proven(example.model_copy(update={"instruction": told}), kit()) == "the user need not be asked"


def test_what_was_asked_before_is_refused_in_whatever_order_and_case() -> None:
    first, duplicates = parents()[0], Duplicates()

    def why(instruction: str, example: Example = first) -> str | None:
        return duplicates.why(example.model_copy(update={"instruction": instruction}))

    assert why("what is the fine of Ovel?") is None
    assert why("  What is THE fine of Ovel  ") == "asked before"
    assert why("of Ovel what is the fine?") == "asked before in another order"
    other = next(one for one in parents() if one.verifier.golden_calls != first.verifier.golden_calls)
    assert why("of what fine is the Ovel?", other) is None  # the same words, another solution
    assert why("how large is the fine of Ovel?") is None


def test_the_filters_keep_what_is_solvable_with_its_difficulty_and_give_reasons_for_the_rest() -> None:
    policy = stumbling(codec().turn, seed=1, mistake=0.25)
    solver = Solver(policy, codec(), kit(), LIMITS)
    stream = [*parents(), parents()[0], *harder()]
    rows = list(kept([Refused("r", "", "by somebody else"), *stream], kit(), solver))
    made = [row for row in rows if isinstance(row, Example)]
    reasons = [row.reason for row in rows if isinstance(row, Refused)]
    assert len(rows) == len(stream) + 1 and reasons[:2] == ["by somebody else", "asked before"]
    assert all(one.difficulty is not None and 0 < one.difficulty <= 1 for one in made)
    by_steps: dict[bool, list[float]] = {True: [], False: []}
    for one in made:
        by_steps[len(one.verifier.golden_calls) > 2].append(one.difficulty or 0)
    assert sum(by_steps[True]) / len(by_steps[True]) < sum(by_steps[False]) / len(by_steps[False])
    learning = in_range(made, (0.25, 0.75))
    assert learning and {one.difficulty for one in learning} <= {n / 8 for n in range(2, 7)}
    assert list(kept(stream[:5], kit(), solver)) == made[:5]
    never = Solver(stumbling(codec().turn, 1, mistake=1.0), codec(), kit(), LIMITS)
    lost = list(kept(parents(), kit(), never))
    assert {isinstance(row, Refused) and row.reason for row in lost} == {"none of 8 tries of stumbling solved it"}


def test_a_try_that_tools_failed_does_not_count(tmp_path: Path) -> None:
    class Broken:
        async def reply(self, *_: object) -> tuple[str, None]:
            raise ToolError("gone")

    example = next(one for one in harder() if one.user is not None)
    solver = Solver(stumbling(codec().turn, 1, mistake=0.0), codec(), kit(), LIMITS, user=Broken())
    (row,) = kept([example], kit(), solver)
    assert isinstance(row, Refused) and row.reason == "no try could be judged" and row.row == example.id
    assert in_range([example], (0.5, 0.6)) == [example]
