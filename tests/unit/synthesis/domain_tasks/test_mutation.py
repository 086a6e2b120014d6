"""The verdicts of all domains are worth something: golden calls solve, none or mutated ones do not."""

from collections import Counter
from pathlib import Path

import pytest

from orchestra.domains import compare
from orchestra.domains.engine import Domain, load_domain
from orchestra.synthesis.domain_tasks.mutation import Values, Worth, mutants, worth
from orchestra.synthesis.domain_tasks.tasks import DomainTask, domain_tasks
from orchestra.types import Split, ToolCall
from tests.support.worlds import PUBLISHED

DOMAINS = Path(__file__).parents[4] / "data" / "domains"
SIDES: tuple[Split, Split] = ("train", "heldout")


def sample(domain: Domain, count: int) -> list[DomainTask]:
    return [task for side in SIDES for task in domain_tasks(domain, 0, count, side)]


def test_golden_calls_solve_and_nothing_or_a_mutation_does_not() -> None:
    """The issue's bars, over all eleven domains and in each."""
    total = Worth()
    for name in ("mock", *PUBLISHED):
        domain = load_domain(DOMAINS / name)
        one = worth(domain, sample(domain, 3 if name == "mock" else 12))
        assert (one.replayed, one.idle) == (one.tasks, 0), name
        assert one.missed.total() <= 0.05 * one.mutants.total(), (name, one)
        total.tasks += one.tasks
        total.mutants += one.mutants
        total.missed += one.missed
    assert total.tasks >= 240
    assert min(total.mutants[kind] for kind in ("drop", "swap", "change")) >= 200


def test_it_notices_a_judge_that_sees_no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = load_domain(DOMAINS / "ecommerce")
    tasks = sample(shop, 12)
    monkeypatch.setattr(compare, "_unseen", lambda session, golden: None)
    blind = worth(shop, tasks)
    assert blind.idle > 0 and blind.missed.total() > 0.1 * blind.mutants.total()


def test_the_mutations_are_what_they_say() -> None:
    mock = load_domain(DOMAINS / "mock")
    back, pay = (
        ToolCall(name="return_book", arguments={"book": 13}),
        ToolCall(name="pay_fine", arguments={"reader": "Brin"}),
    )
    task = DomainTask(
        "Brin brings book 13 and pays", "change", (back, pay), ("14",), "14", (), ("return_book", "pay_fine")
    )
    values: Values = {("return_book", "book"): [13, 11], ("pay_fine", "reader"): ["Brin"]}
    made = list(mutants(mock, task, values))
    assert made == list(mutants(mock, task, values))
    assert Counter(kind for kind, _ in made) == {"drop": 2, "swap": 2, "change": 1, "order": 1}
    assert [calls for kind, calls in made if kind == "drop"] == [(pay,), (back,)]
    swapped = [calls for kind, calls in made if kind == "swap"]
    assert swapped[0][0] == ToolCall(name="get_book", arguments={"book": 13}) and swapped[0][1] == pay
    assert swapped[1][1].name in ("get_reader", "find_books") and swapped[1][1].arguments == pay.arguments
    assert [calls for kind, calls in made if kind == "change"] == [
        (ToolCall(name="return_book", arguments={"book": 11}), pay)
    ]
    assert [calls for kind, calls in made if kind == "order"] == [(pay, back)]
    found = worth(mock, [task])
    assert (found.tasks, found.replayed, found.idle, found.missed.total()) == (1, 1, 0, 0)
    assert found.mutants == {"drop": 2, "swap": 2, "order": 1}  # one task gives its arguments no other value
