"""When an answer counts as right, and when that cannot be known."""

from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import DataError, JudgeError
from orchestra.rewards.answers import normalise_text, same_number, same_text
from orchestra.rewards.outcome import verify
from orchestra.tools.session import ToolSession
from orchestra.types import Verdict
from tests.support.worlds import example, toolkit


def verdict(tmp_path: Path, given_answer: str, **verifier: object) -> Verdict:
    item = example(**verifier)  # type: ignore[arg-type]
    session = ToolSession(toolkit(tmp_path), item)
    try:
        return verify(item, given_answer, session)
    finally:
        session.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Tesk", "tesk"),
        ("  the  Tesk. ", "Tesk"),
        ("«Tesk»!", "Tesk"),
        ("Café", "Cafe\u0301"),
        ("STRASSE", "straße"),
        ("and/or", "and/or"),
        ("-5", "-5"),
        ("C++", "c++"),
        ("A", "a"),
        ("(B)", "B"),
        ("[B]", "B"),
        ("\u22125 m", "-5 m"),
        ("x>5", "x > 5"),
        ("10^5", "10\u2075"),
        ("(0, 1)", "0, 1"),
        ("\u00bd", "1/2"),
        ("1 1/2 cups", "1\u00bd cups"),
        ("**Tesk**", "Tesk"),
        ("$\\boxed{Tesk}$.", "Tesk"),
        ("1990\u20131995", "1990-1995"),
        ("an owl and the cat", "Owl and cat!"),
        ("5 km.", "5 km"),
        ("x != 5", "x \u2260 5"),
        ("x <= 5", "x \u2264 5"),
        ("x == 5", "x = 5"),
        ("5*3", "5 * 3"),
        ("*Tesk*", "Tesk"),
        ("a $5 bill", "$5 bill"),
        ("a 7 percent rise", "7 percent rise"),
        ("an X", "X"),
        ("a tree", "Tree"),
        ("a very tall tree", "very tall tree"),
        ("C#.", "c#"),
        ("is it 5!?", "is it 5"),
        ("[2, 3, 5]", "2, 3, 5"),
        ("3 : 1", "3:1"),
        ("Note:Tesk", "Note: Tesk"),
        ("I'm 5!", "I'm 5"),
        ("O\u2019Brien", "O'Brien"),
        ("n!/(n-1)!", "n!/(n-1)!"),
    ],
)
def test_exact_ignores_case_spaces_articles_and_punctuation(tmp_path: Path, answer: str, expected: str) -> None:
    assert verdict(tmp_path, answer, answer=expected).solved


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("5", "-5"),
        ("Tesk or Burr", "Tesk"),
        ("3.14", "314"),
        ("C", "C++"),
        ("an", "A"),
        ("...", "A"),
        ("the", "a"),
        ("", "the"),
        ("東京", "京都"),
        ("x < 5", "x > 5"),
        ("x \u2265 3", "x \u2264 3"),
        ("vitamin", "Vitamin A"),
        ("B", "A \u222a B"),
        ("A \u2229 B", "A \u222a B"),
        ("5", "\u22125"),
        ("x = 2", "x = \u22122"),
        ("5 m", ".5 m"),
        ("C", "C#"),
        ("p", "\u00acp"),
        ("2", "\u221a2"),
        ("2", "\u00b12"),
        ("[0, 1]", "(0, 1)"),
        ("2 64", "2^64"),
        ("25", "2\u2075"),
        ("x != 5", "x = 5"),
        ("x >= 5", "x <= 5"),
        ("5 3", "5*3"),
        ("2, 3, 5", "[2, 3, 5]"),
        ("5", "5!"),
        ("n", "n!"),
        ("3 1", "3:1"),
        ("11/2", "1\u00bd"),
        ("\u0915\u093e", "\u0915\u0940"),
    ],
)
def test_exact_is_not_fooled(tmp_path: Path, answer: str, expected: str) -> None:
    assert verdict(tmp_path, answer, answer=expected) == Verdict(solved=False, why="wrong answer")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It is far north.\n\n**Answer: Tesk**", "Tesk"),
        ("**Final answer:** Tesk", "Tesk"),
        ("Exact Answer: Tesk\nConfidence: 90%", "Tesk"),
        ("Answer:\nTesk", "Tesk"),
        ("Answer: Burr\nNo, wait.\nanswer: Tesk.", "Tesk"),
        ("so that \\boxed{\\frac{1}{2}} remains", "\\frac{1}{2}"),
    ],
)
def test_a_reply_states_its_answer_after_the_explanation(tmp_path: Path, reply: str, answer: str) -> None:
    assert verdict(tmp_path, reply, answer=answer).solved


@pytest.mark.parametrize(
    "reply", ["Answer: Tesk\nAnswer: Burr", "My answer: Tesk, I think", "Tesk is the answer: far north", "\\boxed{Tesk"]
)
def test_no_other_sentence_states_an_answer(tmp_path: Path, reply: str) -> None:
    assert not verdict(tmp_path, reply, answer="Tesk").solved


@pytest.mark.parametrize(
    "piece",
    [
        "Answer: ",
        "\\boxed{",
        "answer\n",
        "final\n",
        "\n",
        "$",
        "**",
        "[",
        "[ a ] ",
        "the ",
        ". ",
        "x! ",
        "#",
        "_ ",
        "answer" + " " * 190_000,
    ],
)
def test_a_long_reply_is_read_in_time(piece: str) -> None:
    long = piece * (200_000 // len(piece))
    began = process_time()
    assert not same_text(f"{long} x {']' * 50_000}", "y")
    assert process_time() - began < 20, "by the square of its length it takes minutes"


@given(st.text(max_size=30))
def test_normalise_is_idempotent(text: str) -> None:
    assert normalise_text(normalise_text(text)) == normalise_text(text)


@pytest.mark.parametrize(
    "answer",
    [
        "888",
        " 888 ",
        "888.",
        "888.0",
        "+888",
        "8.88e2",
        "$888$",
        "\\boxed{888}",
        "**888**",
        "**$888$**.",
        "$\\boxed{888}$",
        "Answer: $888",
        "`888`",
        "\\$888",
        "€888.00",
    ],
)
def test_numeric_accepts_a_number_however_written(answer: str) -> None:
    assert same_number(answer, "888", 0.0)


@pytest.mark.parametrize(
    "answer",
    [
        "887",
        "8 88",
        "about 888",
        "888 or 889",
        "nan",
        "inf",
        "",
        ",",
        "0x378",
        "1" * 5000,
        "0,888",
        "8,88",
        "8_88",
        "888%",
    ],
)
def test_numeric_refuses_the_rest(answer: str) -> None:
    assert not same_number(answer, "888", 0.0)


@pytest.mark.parametrize(
    ("answer", "expected", "solved"),
    [
        ("2 and 3 are 5.\nAnswer: 5", "5", True),
        ("1,234,567", "1234567", True),
        ("\u22125", "-5", True),
        ("-5", "\u22125", True),
        (".5", "0.5", True),
        ("1,5", "15", False),
        ("18446744073709551000", "18446744073709551616", False),
        ("15511210043330985984000001", "15511210043330985984000000", False),
    ],
)
def test_numbers_are_compared_exactly_and_commas_separate_thousands(answer: str, expected: str, solved: bool) -> None:
    assert same_number(answer, expected, 0.0) is solved


@given(st.floats(-1e6, 1e6), st.floats(0, 10), st.floats(-20, 20))
def test_numeric_tolerance_is_absolute(expected: float, tolerance: float, off: float) -> None:
    answer = repr(expected + off)
    solved = same_number(answer, repr(expected), tolerance)
    if abs(off) < tolerance - 1e-6:
        assert solved
    if abs(off) > tolerance + 1e-6:
        assert not solved


def test_an_unknowable_outcome_is_an_error_not_a_zero(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="no expected answer"):
        verdict(tmp_path, "x", answer=None)
    with pytest.raises(JudgeError, match="no judge"):
        verdict(tmp_path, "x", kind="judge")
    with pytest.raises(JudgeError, match="not a number"):
        verdict(tmp_path, "x", kind="numeric", answer="many")
    with pytest.raises(DataError, match="without a domain"):
        verdict(tmp_path, "x", kind="database")


def test_a_database_verdict_compares_contents_and_what_is_said(tmp_path: Path) -> None:
    golden = ({"name": "pay_fine", "arguments": {"reader": "Brin"}},)
    item = example(domain="mock", kind="database", answer=None, golden_calls=golden, communicate=("7",))
    session = ToolSession(toolkit(tmp_path), item)
    assert session.domain is not None
    assert not verify(item, "it was 7", session).solved
    session.domain.call("pay_fine", {"reader": "Brin"})
    assert verify(item, "it was 7", session).solved
    assert verify(item, "done", session).why == "the answer does not mention 7"
    session.close()
