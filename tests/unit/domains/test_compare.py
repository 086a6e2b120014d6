"""The verdict: contents, rows operated on, and what the answer mentions."""

import contextlib
import re
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from orchestra.domains.compare import judge, mentions, run_calls
from orchestra.domains.engine import load_domain
from orchestra.errors import CallError, DataError
from orchestra.types import ToolCall, Verdict

MOCK = load_domain(Path(__file__).parents[3] / "data" / "domains" / "mock")
GOLDEN = (ToolCall(name="return_book", arguments={"book": 13}), ToolCall(name="pay_fine", arguments={"reader": "Brin"}))
Request = tuple[str, dict[str, JsonValue]]
HOLDER: Request = ("get_book", {"book": 13})


def verdict(calls: tuple[ToolCall, ...], answer: str | None = "Brin paid 14.") -> Verdict:
    session = MOCK.open()
    for call in calls:
        session.call(call.name, call.arguments)
    return judge(MOCK, session, GOLDEN, ("14",), answer)


def test_the_golden_calls_solve_it() -> None:
    assert verdict(GOLDEN) == Verdict(solved=True, why="right")


def test_reads_besides_do_not_matter() -> None:
    assert verdict((ToolCall(name="get_book", arguments={"book": 13}), *GOLDEN)).solved


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ((), "books where book is 13: reader is Brin, should be none, due is 33, should be none"),
        (GOLDEN[:1], "readers where reader is 'Brin': fine is 14, should be 0"),
        (GOLDEN[::-1], "fine is 7, should be 0"),
        (
            (*GOLDEN, ToolCall(name="pay_fine", arguments={"reader": "Juno"})),
            "reader is 'Juno': fine is 0, should be 12",
        ),
    ],
)
def test_other_contents_do_not(calls: tuple[ToolCall, ...], why: str) -> None:
    found = verdict(calls)
    assert not found.solved and why in found.why


def test_without_answer_or_information_it_is_not_solved() -> None:
    assert verdict(GOLDEN, None).why == "no answer"
    assert verdict(GOLDEN, "done").why == "the answer does not mention 14"


def test_the_order_in_which_floats_were_added_does_not_decide(tmp_path: Path) -> None:
    table = "create table accounts (account text primary key, balance real not null);"
    add = "update accounts set balance = balance + :usd where account = :account"
    for name, text in {
        "schema.sql": table,
        "entries/accounts.csv": "account,balance\nAda,0.1\n",
        "policy.md": "Do as you are told.",
        "intents.yaml": "split_by: []\nintents: []\n",
        "tools.yaml": yaml.safe_dump(
            {
                "tools": [
                    {
                        "name": "deposit",
                        "description": "add dollars to an account",
                        "parameters": {"account": {"type": "string"}, "usd": {"type": "number"}},
                        "statements": [add],
                    }
                ]
            }
        ),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    bank = load_domain(tmp_path)

    def deposits(*amounts: float) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(name="deposit", arguments={"account": "Ada", "usd": usd}) for usd in amounts)

    def found(*amounts: float) -> Verdict:
        session = bank.open()
        run_calls(session, deposits(*amounts))
        return judge(bank, session, deposits(0.3, 0.5), (), "done")

    assert 0.1 + 0.3 + 0.5 != 0.1 + 0.5 + 0.3
    assert found(0.5, 0.3).solved
    assert found(0.5, 0.31).why == "accounts where account is 'Ada': balance is 0.91, should be 0.9"


def test_equal_contents_without_the_operation_are_not_enough() -> None:
    lend = (ToolCall(name="lend_book", arguments={"book": 12, "reader": "Ovel"}),)
    golden = (*lend, ToolCall(name="return_book", arguments={"book": 12}))
    assert judge(MOCK, MOCK.open(), golden, (), "done").why.endswith("not operated on")


def read(*calls: Request, golden: Request = HOLDER) -> Verdict:
    """The verdict on these calls, refused ones skipped, where the golden one is to read something."""
    session = MOCK.open()
    for name, arguments in calls:
        with contextlib.suppress(CallError):
            session.call(name, arguments)
    return judge(MOCK, session, (ToolCall(name=golden[0], arguments=golden[1]),), (), "Brin")


def test_what_was_to_be_read_must_be_read() -> None:
    assert read().why == "books where book is 13: row not read"
    assert read(("get_book", {"book": 11})).why == "books where book is 13: row not read"
    assert read(("find_books", {"reader": "Brin"})).why == "books where book is 13: due not read"
    assert read(("get_reader", {"reader": "Brin"})).why == "books where book is 13: row not read"


def test_it_may_be_read_by_any_tool_twice_and_beside_more() -> None:
    one_title: Request = ("find_books", {"reader": "Brin"})
    assert read(("get_book", {"book": 13}), golden=one_title).solved
    assert read(("get_book", {"book": 11}), *[HOLDER] * 3, ("get_reader", {"reader": "Ovel"})).solved


def test_a_refused_call_has_read_nothing() -> None:
    fine: Request = ("get_reader", {"reader": "Juno"})
    assert "not read" in read(("lend_book", {"book": 12, "reader": "Juno"}), golden=fine).why
    assert "not read" in read(("get_book", {"book": 99})).why


def test_that_there_is_nothing_must_be_read_too() -> None:
    nothing: Request = ("find_books", {"reader": "Mirel"})
    assert read(golden=nothing).why == "books where reader is 'Mirel': row not read"
    assert not read(("find_books", {"reader": "Ovel"}), golden=nothing).solved
    assert read(nothing, golden=nothing).solved


def test_a_golden_call_that_is_refused_is_a_fault_of_the_example() -> None:
    bad = (ToolCall(name="pay_fine", arguments={"reader": "Ovel"}),)
    with pytest.raises(DataError, match="golden call pay_fine: refused: Ovel owes nothing"):
        judge(MOCK, MOCK.open(), bad, (), "done")


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("it is 41.", "41", True),
        ("$41, thanks", "41", True),
        ("141", "41", False),
        ("41.5", "41", False),
        ("4,141", "141", False),
        ("41,200", "41", False),
        ("-41", "41", False),
        ("\u221241", "41", False),
        (".41", "41", False),
        ("A-41", "41", True),
        ("10-41", "41", True),
        ("Done.41", "41", True),
        ("-41.0", "-41", True),
        ("\u221241", "-41", True),
        ("$1,234.50", "1234.5", True),
        ("1,234 in all", "1234", True),
        ("$0.50", "0.5", True),
        ("41.00", "41", True),
        ("41.05", "41", False),
        ("1,5", "15", False),
        ("leaves at 12:05", "5", False),
        ("at 10:00", "0", False),
        ("on 2025-11-03", "3", False),
        ("order W-0005 has 3 items", "5", False),
        ("BA-007", "7", False),
        ("The total is 4,100, as you asked.", "4100", True),
        ("$1,234, paid by card", "1234", True),
        ("-$25.50", "25.5", False),
        ("-$25.50", "25.50", False),
        ("-$25.50", "-25.5", True),
        ("($25.50)", "25.5", True),
        ("0.50", "0.5", True),
        ("it is 3", "03", False),
        ("03.0", "03", False),
        ("Shipped", "shipped", True),
        ("unshipped", "shipped", False),
        ("in  New   Tarn", "new tarn", True),
        ("4.5 stars", "4.5", True),
        ("14.5", "4.5", False),
        ("", "x", False),
    ],
)
def test_mentions_are_whole_words_and_numbers(answer: str, text: str, found: bool) -> None:
    assert mentions(answer, text) is found


@given(st.text("a41., \t$-", max_size=14), st.text("a41., ", max_size=2))
def test_mentions_mean_what_the_expression_says(answer: str, rest: str) -> None:
    text = f"a{rest}"
    body = r"\s+".join(re.escape(word) for word in text.split())
    said = re.search(rf"(?<!\w)(?<!\d[.,]){body}(?!\w)(?![.,]\d)", answer) is not None
    assert mentions(answer, text) is said


CENTS = st.integers(-200_000, 200_000)


@given(
    CENTS, CENTS, st.sampled_from(["", "$", "€"]), st.booleans(), st.booleans(), st.sampled_from(["", ".", ",", "!"])
)
def test_an_amount_is_mentioned_however_it_is_written(
    cents: int, other: int, currency: str, commas: bool, decimals: bool, end: str
) -> None:
    amount = Decimal(abs(cents)) / 100
    digits = f"{amount:,.2f}" if decimals else f"{amount.normalize():,f}"
    answer = f"It is {'-' if cents < 0 else ''}{currency}{digits if commas else digits.replace(',', '')}{end} as asked"
    for told in (cents, other):
        assert mentions(answer, f"{(Decimal(told) / 100).normalize():f}") is (told == cents)
