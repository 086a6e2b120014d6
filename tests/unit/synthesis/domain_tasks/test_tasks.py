"""Domain tasks: the same for a seed, split by entity, and proven by execution."""

import itertools
import re
import shutil
from pathlib import Path

import pytest

from orchestra.domains.compare import judge, run_calls
from orchestra.domains.engine import Domain, load_domain
from orchestra.errors import DataError
from orchestra.synthesis.domain_tasks.tasks import MAX_WORDS, DomainTask, domain_tasks, entity_split, verified
from orchestra.types import Split, ToolCall

DOMAINS = Path(__file__).parents[4] / "data" / "domains"
SHOP = load_domain(DOMAINS / "ecommerce")
TASKS: dict[Split, list[DomainTask]] = {
    "train": list(domain_tasks(SHOP, 0, 300, "train")),
    "heldout": list(domain_tasks(SHOP, 0, 150, "heldout")),
}
ALL = TASKS["train"] + TASKS["heldout"]


def solved(domain: Domain, task: DomainTask, calls: tuple[ToolCall, ...], answer: str | None) -> bool:
    session = domain.open()
    try:
        for call in calls:
            try:
                session.call(call.name, call.arguments)
            except ValueError:
                continue  # a refused call is part of an episode
        return judge(domain, session, task.golden_calls, task.communicate, answer).solved
    finally:
        session.close()


def test_the_same_seed_gives_the_same_tasks_lazily() -> None:
    again = list(itertools.islice(domain_tasks(SHOP, 0, 10**9, "train"), 40))
    assert again == TASKS["train"][:40]
    assert list(domain_tasks(SHOP, 1, 40, "train")) != again


def test_no_entity_is_on_both_sides() -> None:
    train, heldout = ({e for task in TASKS[split] for e in task.entities} for split in ("train", "heldout"))
    assert train and heldout and not train & heldout
    kinds = {entity.split(":")[0] for entity in train}
    assert {"ecommerce/customer", "ecommerce/product", "ecommerce/order"} <= kinds
    for split in ("train", "heldout"):
        for entity in (e for task in TASKS[split] for e in task.entities if re.search("customer:|product:|coupon:", e)):
            assert entity_split(entity) == split


def test_no_instruction_names_an_entity_of_the_other_side() -> None:
    """Customers, orders and products of held-out tasks are nowhere in the words or calls of training tasks."""
    heldout = {e.split(":")[1] for task in TASKS["heldout"] for e in task.entities}
    names = {name for name in heldout if not name.isdigit() or len(name) == 4}
    words = {word for task in TASKS["train"] for word in re.findall(r"\w+", task.instruction)}
    assert not names & words


def test_instructions_are_short_and_plain() -> None:
    assert len({task.instruction for task in ALL}) == len(ALL)
    for task in ALL:
        assert len(task.instruction.split()) <= MAX_WORDS
        assert re.fullmatch(r"[A-Za-z0-9 ,;?]+", task.instruction), task.instruction
        assert len(task.answer) <= 12 and 1 <= len(task.golden_calls) <= 3
        assert task.tools_needed == tuple(dict.fromkeys(call.name for call in task.golden_calls))
        assert all(len(call.arguments) <= 3 for call in task.golden_calls)
        assert all(type(value) in (str, int) for call in task.golden_calls for value in call.arguments.values())


def test_golden_calls_solve_every_task_and_nothing_solves_none() -> None:
    for task in ALL:
        assert solved(SHOP, task, task.golden_calls, f"It is {task.answer}.")
        assert not solved(SHOP, task, (), None)
        assert not solved(SHOP, task, (), task.answer)


def test_observations_stay_short() -> None:
    for task in ALL:
        session = SHOP.open()
        assert all(len(text) <= 100 for text in run_calls(session, task.golden_calls))
        session.close()


def test_both_categories_and_most_intents_appear() -> None:
    assert {task.category for task in ALL} == {"lookup", "change"}
    assert len({task.intent for task in ALL}) >= 30
    assert {task.category for task in domain_tasks(SHOP, 0, 20, "train", "lookup")} == {"lookup"}
    assert {len(task.golden_calls) for task in ALL} == {1, 2, 3}


def test_what_execution_refutes_is_dropped() -> None:
    task = TASKS["train"][0]
    unknown = ToolCall(name="get_customer", arguments={"customer": "Zzyzx"})
    change = next(t for t in ALL if t.category == "change" and len(t.golden_calls) == 1)
    lookup = next(t for t in ALL if t.category == "lookup")
    assert verified(SHOP, task)
    for bad in (
        {**vars(task), "golden_calls": (unknown,)},  # refused, and unknowable
        {**vars(task), "communicate": ("never said",)},
        {**vars(task), "instruction": "please do it"},  # the arguments cannot be known
        {**vars(change), "golden_calls": lookup.golden_calls, "instruction": lookup.instruction, "communicate": ()},
    ):
        assert not verified(SHOP, DomainTask(**bad))


def test_a_small_domain_says_when_it_has_no_more() -> None:
    mock = load_domain(DOMAINS / "mock")
    with pytest.raises(DataError, match=r"only \d+ different train tasks found, 5000 asked for"):
        list(domain_tasks(mock, 0, 5000, "train"))


def test_an_entity_that_would_leak_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DOMAINS / "ecommerce", tmp_path / "ecommerce"))
    file = folder / "intents.yaml"
    file.write_text(file.read_text().replace("product, coupon]", "product]"))
    with pytest.raises(DataError, match=r"ecommerce/coupon:\d+ would be in training and held out"):
        next(domain_tasks(load_domain(folder), 0, 1, "train"))
