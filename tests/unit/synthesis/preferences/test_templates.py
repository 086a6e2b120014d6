"""Wishes by rule and by a model: what is said is what is weighed, in words that the other split never uses."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.schema import load_params
from orchestra.errors import DataError
from orchestra.files.jsonl import write_jsonl
from orchestra.synthesis.dataset.shards import dataset_fingerprint, rooted
from orchestra.synthesis.preferences.grammar import BODIES, OPENERS, composed, lesson, wishes
from orchestra.synthesis.preferences.sentences import OTHERS, PREFERRED, WORDS, preference, sayable, stated
from orchestra.synthesis.preferences.templates import SLOTS, PreferenceTemplate, draw, key, load
from orchestra.synthesis.writers.preferences import Proposed, collected, pattern
from orchestra.types import Preference, Provenance, ToolSpec
from tests.support.endpoint import serving
from tests.support.worlds import ROOT, catalogue
from tests.unit.synthesis.writers.test_tasks import writer

ORIGIN = Provenance(source="synthetic", licence="MIT", generator="test", seed=0)
CONFIG = load_params(ROOT / "params.yaml").synthesize
TOPICS = catalogue().topics
NAMES = ("gpt-5", "qwen3-32b", "qwen2.5-math-72b", "qwen2.5-math-7b")
"""6.2, 0.3 … cents; the last two are good at math, one of them at easy math only."""


def experts(factor: float = 1.0) -> list[ToolSpec]:
    return [catalogue().spec(name, price_factor=factor) for name in NAMES]


def wish(words: str, kind: Any, split: Any = "train") -> PreferenceTemplate:
    return PreferenceTemplate(split=split, kind=kind, words=words, provenance=ORIGIN)


def filled(words: str, kind: Any) -> Preference:
    made = wish(words, kind).fill(experts(), TOPICS, random.Random(0))
    assert made is not None
    return made


def test_the_grammar_words_the_splits_apart() -> None:
    made = wishes(300, 0)
    assert made == wishes(300, 0) != wishes(300, 1)
    said = {split: {key(one.words) for one in made if one.split == split} for split in OPENERS}
    assert len(said["train"]) == 240 and len(said["heldout"]) == 60 and not said["train"] & said["heldout"]
    for split, kinds in (("train", 48), ("heldout", 12)):
        assert [sum(one.kind == kind for one in made if one.split == split) for kind in BODIES] == [kinds] * 5
    fixed = {key(words) for kind in WORDS for split in WORDS[kind] for words in sayable(kind, split)}
    every = {
        split: {key(f"{o}{b}") for o in OPENERS[split] for kind in BODIES.values() for b in kind[split]}
        for split in OPENERS
    }
    assert not every["train"] & every["heldout"] and not (every["train"] | every["heldout"]) & fixed
    with pytest.raises(DataError, match=r"only \d+ preferences"):
        wishes(5_000, 0)


def test_the_base_hears_wishes_in_many_ways_and_no_held_out_one(tmp_path: Path) -> None:
    made = lesson(0)
    assert made == lesson(0) != lesson(1)
    write_jsonl(tmp_path / "wishes.jsonl", made)
    said: dict[str, set[str]]
    said = {kind: {key(one.words) for one in found} for kind, found in load(tmp_path / "wishes.jsonl")["train"].items()}
    held = [f" {key(words)} " for kind in WORDS for words in sayable(kind, "heldout")]
    for kind, fixed_ones in WORDS.items():
        assert {key(words) for words in fixed_ones["train"]} <= said[kind] and len(said[kind]) > 60
        assert not any(one in f" {words} " for words in said[kind] for one in held)
    for kind in SLOTS[""]:
        heard = [f" {key(words)} " for words in composed(kind)]
        assert len(heard) > 150 and not any(one in whole for one in heard for whole in held)
        assert {key(words) for words in composed(kind)} <= said[kind] and not any(" a a" in one for one in heard)
    each = [set(composed(kind)) for kind in SLOTS[""]]
    assert len(set.union(*each)) == sum(map(len, each))


def test_prices_seconds_and_subjects_decide_whom_a_wish_is_about() -> None:
    cost = {spec.name: 100 * float(spec.call_usd) for spec in experts()}
    dear = filled("nothing above {cents} cents a call.", "avoid")
    limit = float(dear.words.split()[2])
    assert dear.tools == {name: OTHERS for name in NAMES if cost[name] <= limit} and 0 < len(dear.tools) < 4
    slow = filled("no call over {seconds} seconds.", "avoid")
    limit = float(slow.words.split()[3])
    assert slow.tools == {spec.name: OTHERS for spec in experts() if spec.latency_s <= limit}
    good = filled("prefer specialists in {subject}.", "prefer")
    subject = good.words.split()[-1].rstrip(".")
    able = {spec.name for spec in experts() if subject in spec.description.split(f"easy {subject}")[0]}
    assert good.tools == dict.fromkeys(able, PREFERRED) and subject in TOPICS and able
    named = filled("start with {x}.", "prefer")
    (name,) = named.tools
    assert named == stated("prefer", "start with {x}.", list(NAMES), name)
    assert filled("watch the money.", "cheap") == stated("cheap", "watch the money.", list(NAMES))
    alike = [experts()[0].model_copy(update={"name": name}) for name in ("a", "b")]
    assert wish("nothing above {cents} cents.", "avoid").fill(alike, TOPICS, random.Random(0)) is None


@given(st.integers(0, 2**32), st.floats(0.1, 10), st.integers(1, 4))
def test_every_wish_weighs_offered_tools_only(seed: int, factor: float, count: int) -> None:
    rng, offered = random.Random(seed), experts(factor)[:count]
    for kind, bodies in BODIES.items():
        made = wish(rng.choice(bodies["train"]), kind).fill(offered, TOPICS, rng)
        if made is not None:
            assert "{" not in made.words and made.tools.keys() <= {spec.name for spec in offered}
            assert bool(made.tools) == (kind in ("prefer", "avoid") and (kind == "prefer" or count > 1))


def test_without_a_file_the_fixed_sentences_are_drawn_as_ever() -> None:
    one, two = random.Random(3), random.Random(3)
    for matter in (True, False) * 20:
        drawn = draw(CONFIG, TOPICS, one, "train", experts(), experts_matter=matter)
        assert drawn == preference(two, "train", list(NAMES), experts_matter=matter)


def test_a_file_is_drawn_from_where_it_fits(tmp_path: Path) -> None:
    file = tmp_path / "wishes.jsonl"
    write_jsonl(file, wishes(250, 0))
    config = CONFIG.model_copy(update={"preferences": str(file)})
    rng = random.Random(0)
    drawn = [draw(config, TOPICS, rng, "heldout", experts(), experts_matter=i % 2 == 0) for i in range(200)]
    assert {one.kind for one in drawn} == set(BODIES) and not any(one.tools for one in drawn[1::2])
    endings = tuple(body for kind in BODIES.values() for body in kind["heldout"] if "{" not in body)
    assert sum(one.words.endswith(endings) for one in drawn) > 100 and any("cents" in one.words for one in drawn)


def test_the_set_is_another_when_the_file_is(tmp_path: Path) -> None:
    params = load_params(ROOT / "params.yaml")
    assert rooted(params, tmp_path) is params
    named = params.synthesize.model_copy(update={"preferences": "wishes.jsonl"})
    params = params.model_copy(update={"synthesize": named})
    assert rooted(params, tmp_path).synthesize.preferences == str(tmp_path / "wishes.jsonl")
    marks = []
    for count in (10, 20):
        write_jsonl(tmp_path / "wishes.jsonl", wishes(count, 0))
        marks.append(dataset_fingerprint(params, tmp_path))
    assert marks[0] != marks[1]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([wish("watch it.", "cheap"), wish("Watch, it!", "fast", "heldout")], "as one of the other split"),
        ([wish("Keep the cost low", "cheap")], "as one of the other split"),
        ([wish("start with {x}.", "prefer"), wish("go.", "fast", "heldout")], "no preference of the split train"),
    ],
)
def test_a_file_that_mixes_the_splits_is_refused(rows: list[PreferenceTemplate], says: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "wishes.jsonl", rows)
    with pytest.raises(DataError, match=says):
        load(tmp_path / "wishes.jsonl")


@pytest.mark.parametrize(("words", "kind"), [("{x} {cents}", "avoid"), ("{x.__class__}", "avoid"), ("{x}", "cheap")])
def test_words_that_are_no_pattern_are_refused(words: str, kind: str) -> None:
    with pytest.raises(ValueError, match="slot"):
        wish(words, kind)


def proposed(words: str, kind: Any, *tools: str) -> Proposed:
    return Proposed(words=words, kind=kind, tools=tools)


def test_what_a_model_says_becomes_a_pattern() -> None:
    def found(*made: Any) -> str:
        return pattern(proposed(*made), experts(), TOPICS)

    assert found("Ask gpt-5 first.", "prefer", "gpt-5") == "Ask {x} first."
    assert found("At most 1 cent each.", "avoid", "gpt-5") == "At most {cents} cent each."
    assert found("The math people, please.", "prefer", "qwen2.5-math-72b") == "The {subject} people, please."
    assert found("Mind my budget.", "cheap") == "Mind my budget."


@pytest.mark.parametrize(
    "made",
    [
        proposed("Ask gpt-4 first.", "prefer", "gpt-4"),
        proposed("Ask gpt-5 or qwen3-32b.", "prefer", "gpt-5"),
        proposed("Ask somebody good.", "prefer", "gpt-5"),
        proposed("At most 1 cent each.", "avoid", "qwen3-32b"),
        proposed("At most 1 dollar each.", "avoid", "gpt-5"),
        proposed("Cheap, so gpt-5.", "cheap"),
        proposed("Mind my {budget}.", "cheap"),
    ],
    ids=lambda made: made.words,
)
def test_tools_that_do_not_follow_from_the_words_are_refused(made: Proposed) -> None:
    with pytest.raises(DataError, match=r"do not follow|is not among|braces"):
        pattern(made, experts(), TOPICS)


def play(read: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], Any]:
    """A model that words every wish as its kind needs, each time a little differently, and reads with `read`."""
    told: dict[str, dict[str, Any]] = {}

    def reply(request: dict[str, Any]) -> Any:
        asked = request["messages"][1]["content"]
        if request["response_format"]["json_schema"]["name"] == "Read":
            return read(next(one for words, one in told.items() if words in asked))
        kind = asked.split("of the kind\n`")[1].split("`")[0]
        tools = json.loads(asked.split("experts:\n")[1].split("\n")[0])
        tool = [tools[0]["name"]] if kind in ("prefer", "avoid") else []
        words = f"wish {len(told)}, for me: {kind} {tool[0] if tool else ''}".strip()
        told[words] = {"kind": kind, "tools": tool}
        return {**told[words], "words": words}

    return reply


def test_a_wish_is_kept_when_it_is_read_as_it_was_meant(tmp_path: Path) -> None:
    with serving(play(lambda meant: meant)) as double:
        made, lines = asyncio.run(collected(writer(tmp_path, double.url), catalogue(), 25, 0, "CC-BY-4.0", 3.0))
        calls = len(double.asked)
    assert len(made) == 25 and lines == [] and calls == 50
    assert [one.split for one in made].count("heldout") == 5
    assert {(one.split, one.kind) for one in made} == {(split, kind) for split in OPENERS for kind in BODIES}
    assert all(one.slot == ("x" if one.kind in ("prefer", "avoid") else "") for one in made)
    assert {one.provenance.generator for one in made} == {"model:m-1"} and len(made[0].provenance.prompts) == 5
    with serving(play(lambda meant: meant)) as double:
        again, _ = asyncio.run(collected(writer(tmp_path, double.url), catalogue(), 25, 0, "CC-BY-4.0", 3.0))
        assert again == made and double.asked == []


def test_a_wish_that_is_read_otherwise_is_dropped(tmp_path: Path) -> None:
    with serving(play(lambda meant: {**meant, "kind": "fast", "tools": []})) as double:
        made, lines = asyncio.run(collected(writer(tmp_path, double.url), catalogue(), 4, 0, "MIT", 3.0))
    assert [one.kind for one in made] == ["fast"]
    assert len(lines) == 3 and "was meant as cheap and is read as fast" in lines[0]


def test_words_that_were_used_are_refused(tmp_path: Path) -> None:
    with serving(lambda request: {"kind": "cheap", "words": "Keep the COST low!", "tools": []}) as double:
        made, lines = asyncio.run(collected(writer(tmp_path, double.url), catalogue(), 1, 0, "MIT", 3.0))
        calls = len(double.asked)
    assert made == [] and "said in these words before" in lines[0] and calls == 3


def test_a_cap_ends_it_early_and_keeps_what_was_made(tmp_path: Path) -> None:
    with serving(play(lambda meant: meant)) as double:
        paid = writer(tmp_path, double.url, cap="0.0125")
        made, lines = asyncio.run(collected(paid, catalogue(), 25, 0, "MIT", 3.0))
    assert 0 < len(made) < 25 and lines[-1].startswith("ended early")


def test_no_sentence_holds_a_name_of_ours() -> None:
    """A rename over the code must not reach what a model reads: sentences have no underscore."""
    said = [row.words for row in lesson(0)] + [row.words for row in wishes(400, 0)]
    assert [words for words in said if "_" in words] == []
