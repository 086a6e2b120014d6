"""The parts of synthesis: names, sums, worlds, questions, preferences, files."""

import random
import re
from collections import Counter
from itertools import islice, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from orchestra.errors import DataError
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import write_jsonl
from orchestra.synthesis.names import LONG, SHORT, Names
from orchestra.synthesis.preferences.sentences import WORDS, preference, sayable
from orchestra.synthesis.questions.arithmetic import WORDS as SPELT_NUMBERS
from orchestra.synthesis.questions.arithmetic import arithmetic
from orchestra.synthesis.questions.everyday import direct, known, side
from orchestra.synthesis.questions.facts import FactWorld, fact, two_hop
from orchestra.synthesis.questions.topic_words import FORMS, THINGS
from orchestra.synthesis.questions.topics import RECORDED, topic_questions
from orchestra.tools.arithmetic.sentences import spelt
from orchestra.tools.calculator import evaluate, printed
from orchestra.tools.search.corpus import SearchIndex
from orchestra.types import Split
from tests.support.worlds import ROOT, catalogue, example

seeds = st.integers(0, 10**6)


@given(seeds)
def test_names_are_words_never_given_twice(seed: int) -> None:
    names = Names(random.Random(seed))
    given_names = [names.new() for _ in range(200)]
    assert len(set(given_names)) == 200 and all(name.isalpha() and name.istitle() for name in given_names)
    assert max(map(len, given_names)) <= 10


def test_there_are_two_million_names_of_few_tokens() -> None:
    heads = LONG[0]
    assert not any(a != b and a.startswith(b) for a in heads for b in heads)
    endings = {"".join(parts) for syllables in (SHORT, LONG) for parts in product(*syllables[1:])}
    assert len(heads) * len(endings) > 2_000_000
    tokenizer = Tokenizer.from_file(str(ROOT / "models/recipes/embedded/tokenizer.json"))
    names = Names(random.Random(0))
    tokens = [len(tokenizer.encode(names.new()).ids) for _ in range(10_000)]
    assert sum(tokens) / len(tokens) < 3.6


def test_long_names_follow_when_the_short_ones_are_used_up() -> None:
    short = {"".join(parts) for parts in product(*SHORT)}
    names = Names(random.Random(0), taken=short)
    made = [names.new() for _ in range(100)]
    assert not short & set(made) and max(map(len, made)) <= 10


@given(seeds)
def test_sums_are_right_and_never_repeated(seed: int) -> None:
    drafts = list(islice(arithmetic(random.Random(seed), set()), 50))
    for draft in drafts:
        expression = draft.entities[0].removeprefix("sum:")
        asked_for = str(draft.golden_calls[0].arguments.get("expression", draft.instruction))
        assert printed(evaluate(asked_for)) == printed(evaluate(expression)) == draft.answer
        assert draft.answer not in draft.wrong and len(set(draft.wrong)) == 3
        asked = draft.instruction.lower().replace(",", "")
        words = set(re.findall("[a-z]+", spelt(f"{asked} {asked_for}".lower()))) & {"one", *SPELT_NUMBERS.values()}
        assert words or any(word in asked for word in re.findall(r"\d+", expression))
    assert len({draft.entities for draft in drafts}) == 50


@given(seeds)
def test_worlds_answer_their_questions(seed: int) -> None:
    rng = random.Random(seed)
    world = FactWorld.make(Names(rng), rng)
    for draft in [*fact(world, rng), *two_hop(world, rng)]:
        known = draft.instruction
        for call in draft.golden_calls:
            subject, relation = str(call.arguments["query"]).split()
            assert subject in known, "a query may only use what is known by then"
            known = world.facts[subject, relation]
        assert known == draft.answer not in draft.instruction


@given(seeds)
def test_topic_questions_have_one_right_and_three_wrong_answers(seed: int) -> None:
    rng = random.Random(seed)
    for draft in islice(topic_questions(Names(rng), rng, catalogue().topics), 20):
        assert draft.topic in catalogue().topics and draft.entities[0] in draft.instruction
        assert len({draft.answer, *draft.wrong}) == 4 and len(draft.instruction) < 170


def test_most_topic_questions_do_not_name_their_topic() -> None:
    rng = random.Random(1)
    drafts = list(islice(topic_questions(Names(rng), rng, catalogue().topics), 1000))
    named = sum(str(draft.topic) in draft.instruction.split() for draft in drafts)
    assert 20 < named < 200
    assert set(THINGS) == set(catalogue().topics) and len(set(FORMS)) >= 15
    called = [thing.called for things in THINGS.values() for thing in things]
    assert len(set(called)) == len(called), "what it is called tells its subject"


def test_hard_questions_are_as_frequent_as_the_catalogue_says_and_no_word_tells_them() -> None:
    rng = random.Random(2)
    drafts = list(islice(topic_questions(Names(rng), rng, catalogue().topics), 6000))
    share = catalogue().hard_share
    assert sum(draft.hard for draft in drafts) / len(drafts) == pytest.approx(share, abs=0.03)
    met: dict[str, list[bool]] = {}
    for draft in drafts:
        for word in set(draft.instruction.lower().split()):
            met.setdefault(word, []).append(draft.hard)
    often = [sum(hard) / len(hard) for hard in met.values() if len(hard) >= 100]
    assert min(often) > 0.1 and max(often) < 0.6


def test_a_record_answers_the_question_that_it_was_made_for() -> None:
    rng = random.Random(3)
    drafts = list(islice(topic_questions(Names(rng), rng, catalogue().topics), 1000))
    recorded = [draft for draft in drafts if draft.record is not None]
    assert len(recorded) / 1000 == pytest.approx(RECORDED, abs=0.05)
    index = SearchIndex.build([draft.record for draft in recorded if draft.record is not None])
    strangers = 0
    for draft in drafts:
        found = index.top(draft.query)
        if draft.record is None:
            strangers += found is not None
        else:
            assert found is not None and found.text.rstrip(".").split()[-1] == draft.answer
    assert strangers <= 20, "a record may mention another's name as its answer"


@given(seeds)
def test_everyday_questions_are_worded_apart_and_need_no_tool(seed: int) -> None:
    sides = {
        split: {draft.instruction: draft for draft in islice(direct(random.Random(seed), split), 400)}
        for split in ("train", "heldout")
    }
    assert not set(sides["train"]) & set(sides["heldout"])
    for draft in (*sides["train"].values(), *sides["heldout"].values()):
        assert draft.answer and not draft.golden_calls and not draft.tools_needed and draft.topic is None


def test_no_fact_is_unknown_to_training_and_a_quarter_of_the_wordings_are_held_out() -> None:
    sides = [[side(question) for question in questions] for questions, _ in known()]
    assert all("train" in found for found in sides)
    assert 0.15 < sum(found.count("heldout") for found in sides) / (2 * len(sides)) < 0.35


@pytest.mark.parametrize("kind", WORDS)
def test_preferences_are_worded_often_and_apart(kind: str) -> None:
    words = WORDS[kind]
    assert len(set(words["train"])) >= 8 and len(set(words["heldout"])) >= 4
    stems = [text.rstrip(".") for text in words["heldout"]]
    assert not [text for text in sayable(kind, "train") for stem in stems if stem in text]
    if kind in ("prefer", "avoid"):
        assert all("{x}" in text for split in words.values() for text in split)


@given(seeds, st.sampled_from(["train", "heldout"]), st.booleans())
def test_a_preference_weighs_within_bounds_and_names_offered_tools(
    seed: int, split: Split, experts_matter: bool
) -> None:
    experts = ["gpt-5", "qwen3-32b", "nemotron-49b"]
    wish = preference(random.Random(seed), split, experts, experts_matter=experts_matter)
    assert wish.words and "{" not in wish.words and set(wish.tools) <= set(experts)
    assert experts_matter or not wish.tools
    if wish.kind == "prefer":
        assert next(iter(wish.tools)) in wish.words
    if wish.kind == "avoid":
        (avoided,) = set(experts) - set(wish.tools)
        assert avoided in wish.words


def test_every_kind_of_preference_is_drawn() -> None:
    rng = random.Random(0)
    kinds = Counter(preference(rng, "train", ["gpt-5"], experts_matter=True).kind for _ in range(500))
    assert set(kinds) == set(WORDS) and min(kinds.values()) > 60


def test_examples_survive_the_disk_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    items = [example("a", instruction="two\u2028lines"), example("b")]
    assert write_jsonl(path, items) == 2
    assert read_examples(path) == items
    path.write_text(path.read_text(encoding="utf-8") + '{"id": "c"\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.jsonl:3: .*run the stage") as error:
        read_examples(path)
    assert "\n" not in str(error.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        read_examples(path)
    with pytest.raises(DataError, match="no such file"):
        read_examples(tmp_path / "none.jsonl")
