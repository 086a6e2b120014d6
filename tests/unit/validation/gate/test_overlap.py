"""Overlap with protected texts: the hashed index says what comparing words one by one would say."""

import string

from hypothesis import given
from hypothesis import strategies as st

from orchestra.validation.gate.overlap import LONGEST, SHORTEST, Overlap, words

WORDS = st.lists(st.sampled_from("abc"), max_size=20)
"""Of so few words that texts often overlap."""
LONG = [f"w{number}" for number in range(30)]


def overlaps(row: str, *texts: str) -> bool:
    return Overlap.build({"protected": texts}).found([words(row)]) == ["protected"]


def shared(row: list[str], text: list[str]) -> bool:
    """The rule, word by word."""

    def within(part: list[str], whole: list[str]) -> bool:
        return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))

    if len(row) < SHORTEST or len(text) < SHORTEST:
        return bool(row) and row == text
    if len(row) < LONGEST and within(row, text):
        return True
    if len(text) < LONGEST:
        return within(text, row)
    return any(within(row[i : i + LONGEST], text) for i in range(len(row) - LONGEST + 1))


@given(WORDS, st.lists(WORDS, max_size=4))
def test_the_index_follows_the_rule(row: list[str], texts: list[list[str]]) -> None:
    assert overlaps(" ".join(row), *map(" ".join, texts)) == any(shared(row, text) for text in texts)


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=2), st.lists(WORDS, max_size=2))
def test_rows_together_are_told_what_each_is_told_alone(
    rows: list[list[str]], one: list[list[str]], other: list[list[str]]
) -> None:
    index = Overlap.build({"one": map(" ".join, one), "other": map(" ".join, other)})
    together = index.found(rows)
    assert together == [name for row in rows for name in index.found([row])]
    sets = {"one": one, "other": other}
    for row, name in zip(rows, together, strict=True):
        assert any(shared(row, text) for text in sets[name]) if name else not any(shared(row, t) for t in one + other)


def test_thirteen_words_in_a_row_are_an_overlap_and_twelve_are_not() -> None:
    text = " ".join(LONG)
    assert overlaps(" ".join(["x"] * 5 + LONG[10:23] + ["y"] * 5), text)
    assert not overlaps(" ".join(["x"] * 5 + LONG[10:22] + ["y"] * 5), text)
    assert not overlaps(" ".join(reversed(LONG)), text)


def test_a_short_question_is_found_inside_a_long_row_and_a_very_short_one_only_alone() -> None:
    assert overlaps("quick one: " + " ".join(LONG[:8]) + " thanks", " ".join(LONG[:8]))
    assert not overlaps("quick one: who leads Fenra?", "Who leads Fenra?")
    assert overlaps("who leads FENRA", "Who leads Fenra?")
    assert not overlaps("", "") and not overlaps("?", "!")


@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert words(" ".join(words(text))) == words(text)


@given(st.lists(st.text(string.ascii_letters + string.digits, min_size=1, max_size=6)), st.data())
def test_case_spaces_and_punctuation_do_not_matter(told: list[str], data: st.DataObject) -> None:
    gaps = st.text(string.whitespace + ".,;:!?()[]{}'\"-_*$\\", min_size=1, max_size=3)
    text = "".join(data.draw(st.sampled_from([str.upper, str.lower]))(word) + data.draw(gaps) for word in told)
    assert words(text) == [word.lower() for word in told]


def test_other_scripts_have_words_too() -> None:
    assert words("光の速さは?") == list("光の速さは") and words("Größe ﬁn") == ["grösse", "fin"]
    question = "水の沸点は標準気圧で摂氏何度ですか"
    assert overlaps(f"次の問いに答えよ。{question}", question)


def test_the_index_is_small_and_holds_no_text() -> None:
    index = Overlap.build({"x": (" ".join(f"{number} {word}" for word in range(50)) for number in range(100))})
    held = [*index.alone.values(), *index.within.values()]
    assert index.texts == {"x": 100}
    assert 0 < sum(grams.hashes.nbytes + grams.owners.nbytes for grams in held) <= 54 * 100 * 100


def test_a_word_keeps_its_combining_marks() -> None:
    assert words("दिन दान") == ["दिन", "दान"]
    assert words("Cafe\u0301 ❤\ufe0f 日本") == ["café", "日", "本"]
