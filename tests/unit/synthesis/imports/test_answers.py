"""A published answer becomes what a rule can check, and passes its own check."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.rewards.answers import bare, normalise_text, same_number, same_text
from orchestra.synthesis.imports.answers import verifier_of

WRAPS = ("{}", "{}.", " {} ", r"\boxed{{{}}}", "${}$", r"$\boxed{{{}}}$.", r"\({}\)", r"$$\boxed{{{}}}$$", "**{}**")
DECIMALS = st.decimals(-(10**9), 10**9, places=3)


@given(st.integers(-(10**12), 10**12), st.sampled_from(WRAPS), st.booleans())
def test_a_number_is_numeric_however_it_is_written(number: int, wrap: str, commas: bool) -> None:
    verifier = verifier_of(wrap.format(f"{number:,}" if commas else number))
    assert verifier is not None and verifier.kind == "numeric" and verifier.answer == str(number)
    assert same_number(str(number), verifier.answer, verifier.tolerance)
    assert not same_number(str(number + 1), verifier.answer, verifier.tolerance)


@given(DECIMALS)
def test_decimals_are_right_to_half_a_unit_of_the_last(number: object) -> None:
    verifier = verifier_of(str(number))
    assert verifier is not None and verifier.answer is not None and verifier.kind == "numeric"
    assert same_number(f"{float(str(number)) + 0.0004:.4f}", verifier.answer, verifier.tolerance)
    assert not same_number(f"{float(str(number)) + 0.0012:.4f}", verifier.answer, verifier.tolerance)


@given(st.text(max_size=60))
def test_what_can_be_checked_passes_its_own_check(text: str) -> None:
    assert bare(bare(text)) == bare(text)
    verifier = verifier_of(text)
    if verifier is not None:
        assert verifier.answer is not None and verifier.answer.strip()
        right = same_number if verifier.kind == "numeric" else None
        assert right is None or right(verifier.answer, verifier.answer, verifier.tolerance)
        assert right is not None or normalise_text(verifier.answer) == normalise_text(f" {verifier.answer} ")


@pytest.mark.parametrize(
    ("published", "kind", "answer"),
    [(r"so that x = \boxed{4}", "numeric", "4"), ("Answer: 5", "numeric", "5"), ("**Answer:** Tesk", "exact", "Tesk")],
)
def test_a_reference_that_explains_itself_is_what_it_states(published: str, kind: str, answer: str) -> None:
    verifier = verifier_of(published)
    assert verifier is not None and (verifier.kind, verifier.answer) == (kind, answer)
    assert same_text(published, published) and same_text(answer, published)


@pytest.mark.parametrize("text", ["", " ", "...", "$$", "- -"])
def test_nothing_is_no_answer(text: str) -> None:
    assert verifier_of(text) is None and verifier_of(text, judged=True) is None


def test_a_long_answer_needs_a_judge() -> None:
    text = "Because the land is higher in the south than in the north."
    assert verifier_of(text) is None
    judged = verifier_of(text, judged=True)
    assert judged is not None and judged.kind == "judge"


@pytest.mark.parametrize("text", ["1,23", "12e5", "50%", "nan", "1/2", "١٢", "007", "02139"])
def test_what_no_rule_reads_as_a_number_is_compared_as_text(text: str) -> None:
    verifier = verifier_of(text)
    assert verifier is not None and verifier.kind == "exact"
