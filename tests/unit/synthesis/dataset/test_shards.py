"""Sets made in shards: the same whoever makes them, resumed after a kill, and nothing twice."""

import hashlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.schema import Params
from orchestra.errors import ConfigError, DataError
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import read_lines, write_jsonl
from orchestra.synthesis.dataset.generate import generate
from orchestra.synthesis.dataset.shards import FILES, MANIFEST, Synthesis, dataset_fingerprint, merged, plan, sized
from orchestra.synthesis.dataset.workers import finish, left, synthesize
from orchestra.synthesis.domain_tasks.tasks import domain_tasks
from orchestra.synthesis.names import LONG, SHORT, Names, numbered
from orchestra.synthesis.partition import SetPart
from orchestra.synthesis.questions.arithmetic import arithmetic
from orchestra.system.processes import alive, descendants
from orchestra.tools.experts.simulated import question_key
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category
from orchestra.validation.rows import PROBLEMS, Flattener
from orchestra.validation.survey import cut, survey
from tests.support.worlds import ROOT, synthesized

MIX = {
    Category.ARITHMETIC: 0.2,
    Category.FACT: 0.1,
    Category.TWO_HOP: 0.1,
    Category.TOPIC: 0.5,
    Category.LOOKUP: 0.05,
    Category.CHANGE: 0.05,
}
SHARD_SIZE = 25
RUN = """
import sys
from pathlib import Path
from tests.unit.synthesis.dataset.test_shards import SHARD_SIZE, ROOT, params
from orchestra.synthesis.dataset.workers import synthesize
if __name__ == "__main__":
    synthesize(params(), ROOT, Path(sys.argv[1]), workers=int(sys.argv[2]), shard_size=SHARD_SIZE)
"""


def params(**changes: Any) -> Params:
    return synthesized(**{"mix": MIX, "train_examples": 160, "heldout_examples": 40, **changes})


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set, made by one process."""
    out = tmp_path_factory.mktemp("whole") / "set"
    synthesize(params(), ROOT, out, shard_size=SHARD_SIZE)
    return out


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    (tmp_path / "run.py").write_text(RUN, encoding="utf-8")
    return [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "set")]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@given(st.integers(2, 5_000), st.integers(1, 900), st.integers(100, 400))
def test_shards_hold_every_number_once_and_are_equal(train: int, heldout: int, size: int) -> None:
    shards = plan(train, heldout, size)
    for total, parts in ((train, [s.train for s in shards]), (heldout, [s.heldout for s in shards])):
        assert list(itertools.chain(*parts)) == list(range(total))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len(shards) == -(-(train + heldout) // size) and max(s.size for s in shards) <= size + 1


def test_more_shards_than_there_are_names_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than one set can hold"):
        plan(3_000_000, 1)


def test_a_set_of_one_shard_is_what_generate_makes(tmp_path: Path) -> None:
    chosen = params(train_examples=20, heldout_examples=5)
    synthesize(chosen, ROOT, tmp_path / "set")
    made = generate(chosen, Toolkit.from_params(chosen, ROOT))
    for split, examples in made.examples.items():
        write_jsonl(tmp_path / f"{split}.jsonl", examples)
    write_jsonl(tmp_path / "corpus.jsonl", made.documents)
    write_jsonl(tmp_path / "answers.jsonl", made.answers)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (tmp_path / "set" / name).read_bytes()
    assert not (tmp_path / ".set.shards").exists()


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_workers_makes_the_same_bytes(workers: int, whole: Path, script: list[str]) -> None:
    subprocess.run([*script, str(workers)], env=environment(), check=True, timeout=280)
    assert digests(Path(script[2])) == digests(whole)


def test_a_set_has_its_sizes_ids_and_a_card_of_all_shards(whole: Path) -> None:
    card = json.loads((whole / "card.json").read_text())
    assert card["counts"] == {"train": 160, "heldout": 40} and card["seed"] == params().synthesize.seed
    assert card["categories"]["train"]["topic"] == 80 and card["answers"] == len(read_lines(whole / "answers.jsonl"))
    for split, count in card["counts"].items():
        assert [e.id for e in read_examples(whole / f"{split}.jsonl")] == [f"{split}-{i:06d}" for i in range(count)]
    documents = [json.loads(line)["id"] for line in read_lines(whole / "corpus.jsonl")]
    assert len(set(documents)) == len(documents) == card["documents"]
    entries = [json.loads(line) for line in read_lines(whole / MANIFEST)]
    assert [entry["index"] for entry in entries] == list(range(8))
    assert sum(entry["lines"]["train.jsonl"] for entry in entries) == 160


def test_across_shards_nothing_is_asked_twice_or_in_both_splits(whole: Path) -> None:
    train, heldout = read_examples(whole / "train.jsonl"), read_examples(whole / "heldout.jsonl")
    questions = [question_key(example.instruction) for example in train + heldout]
    assert len(set(questions)) == len(questions) == 200
    assert not {e for x in train for e in x.entities} & {e for x in heldout for e in x.entities}


def test_every_example_is_solved_with_the_corpus_and_answers_of_all_shards(whole: Path) -> None:
    pieces = cut({split: whole / f"{split}.jsonl" for split in ("train", "heldout")}, fix="")
    rows = survey(pieces, Flattener(Toolkit.from_params(params(), ROOT, whole))).table.to_pylist()
    assert len(rows) == 200 and [row for row in rows if any(row[name] for name in PROBLEMS)] == []


def test_a_killed_run_goes_on_with_what_it_lacks(whole: Path, script: list[str]) -> None:
    out = Path(script[2])
    process = subprocess.Popen([*script, "2"], env=environment(), stdout=subprocess.DEVNULL)
    made: dict[Path, int] = {}
    deadline = time.monotonic() + 200
    while len(made) < 2 and time.monotonic() < deadline:
        made = {file: file.stat().st_mtime_ns for file in out.parent.glob(f".set.shards/*/[!.]*/{MANIFEST}")}
        time.sleep(0.005)
    workers = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 2 <= len(made) < 8 and workers and not out.exists()
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))

    synthesis = Synthesis.open(params(), ROOT, out, SHARD_SIZE)
    todo, done = left(synthesis, print)
    assert 0 < len(todo) <= 8 - len(made) and done == sum(s.size for s in synthesis.shards if s not in todo)
    assert {file: file.stat().st_mtime_ns for file in made} == made
    subprocess.run([*script, "1"], env=environment(), check=True, timeout=280)
    assert digests(out) == digests(whole)


@pytest.fixture
def begun(tmp_path: Path) -> Synthesis:
    """A small set of two shards, both made and not yet put together."""
    synthesis = Synthesis.open(params(train_examples=20, heldout_examples=6), ROOT, tmp_path / "set", 13)
    for shard in synthesis.shards:
        synthesis.make(shard)
    return synthesis


def test_a_damaged_shard_is_found_out_and_made_anew(begun: Synthesis, tmp_path: Path) -> None:
    first, second = begun.shards
    file = begun.work / "1" / "train.jsonl"
    sound = file.read_bytes()
    file.write_bytes(sound.replace(b'"train-', b'"tra1n-', 1))
    assert (begun.state(first), begun.state(second)) == ("whole", "damaged")
    (tmp_path / "half").mkdir()
    with pytest.raises(DataError, match=r"1/train.jsonl: is damaged"):
        begun.assemble(tmp_path / "half")
    said: list[str] = []
    synthesize(begun.params, ROOT, tmp_path / "set", say=said.append, shard_size=13)
    assert said == ["shard 1 is damaged: it is made again", "1 of 2 shards are there already"]
    assert sound in (tmp_path / "set" / "train.jsonl").read_bytes()


def test_a_shard_without_its_last_file_or_under_another_name_is_not_whole(begun: Synthesis) -> None:
    first, second = begun.shards
    (begun.work / "0" / MANIFEST).unlink()
    (begun.work / "1").rename(begun.work / ".1.x.partial")
    assert (begun.state(first), begun.state(second)) == ("damaged", "missing")
    Synthesis.open(begun.params, ROOT, begun.work.parents[1] / "set", 13)
    assert not (begun.work / ".1.x.partial").exists()


def test_evolved_examples_are_the_same_in_whatever_order_shards_are_made(tmp_path: Path) -> None:
    """A shard's evolved examples come from its own, so who made the others does not matter."""
    mix = {Category.TOPIC: 0.2, Category.LOOKUP: 0.4, Category.CHANGE: 0.4}
    chosen = params(mix=mix, train_examples=40, heldout_examples=10, evolved_share=0.4)
    world = chosen.world.model_copy(update={"domains": ["ecommerce"]})
    chosen = chosen.model_copy(update={"world": world})
    synthesize(chosen, ROOT, tmp_path / "one", shard_size=SHARD_SIZE)
    other = Synthesis.open(chosen, ROOT, tmp_path / "other", SHARD_SIZE)
    for shard in reversed(other.shards):
        other.make(shard)
    finish(other, tmp_path / "other")
    assert digests(tmp_path / "one") == digests(tmp_path / "other")
    card = json.loads((tmp_path / "one/card.json").read_text())
    train = read_examples(tmp_path / "one/train.jsonl")
    harder = [example for example in train if example.provenance.parent]
    assert card["evolved"]["train"] == len(harder) == 12 and card["with_a_user"]["train"] > 0
    assert card["categories"]["train"] == {"change": 16, "lookup": 16, "topic": 8}
    assert [example.id for example in train] == [f"train-{number:06d}" for number in range(40)]
    assert len({example.asked for example in train}) == 40


def test_other_parameters_start_anew(begun: Synthesis) -> None:
    other = Synthesis.open(params(seed=8), ROOT, begun.work.parents[1] / "set", 13)
    assert other.work != begun.work and not begun.work.exists()


def test_the_fingerprint_is_over_the_domains_too(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "data/domains/mock", tmp_path / "data/domains/mock")
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    before = dataset_fingerprint(params(), tmp_path)
    assert before == dataset_fingerprint(params(), ROOT)
    (tmp_path / "data/domains/mock/policy.md").write_text("Lend nothing.")
    assert dataset_fingerprint(params(), tmp_path) != before


def test_a_folder_of_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds something else"):
        synthesize(params(), ROOT, tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize(("examples", "train", "heldout"), [(2, 1, 1), (100, 80, 20), (100_001, 80_001, 20_000)])
def test_examples_are_shared_out_as_in_the_parameters(examples: int, train: int, heldout: int) -> None:
    made = sized(params(), examples).synthesize
    assert (made.train_examples, made.heldout_examples) == (train, heldout)


def test_cards_add_up() -> None:
    cards = [{"seed": 7, "simulated": True, "x": {"a": {"b": 1}}, "n": 2}, {"seed": 7, "x": {"a": {"c": 3}}, "n": 3}]
    cards[1]["simulated"] = True
    assert merged(cards) == {"seed": 7, "simulated": True, "x": {"a": {"b": 1, "c": 3}}, "n": 5}


@given(st.integers(2, 40), st.integers(0, 1_000))
def test_shares_never_give_the_same_name(count: int, seed: int) -> None:
    given_by = [Names(random.Random(seed), share=SetPart(index, count)) for index in range(2)]
    mine, others = ({names.new() for _ in range(60)} for names in given_by)
    assert len(mine) == len(others) == 60 and not mine & others


@pytest.mark.parametrize("syllables", [SHORT, LONG])
def test_every_number_has_a_name_of_its_own(syllables: tuple[tuple[str, ...], ...]) -> None:
    numbers = range(0, math.prod(map(len, syllables)), 37 if syllables is LONG else 1)
    assert len({numbered(number, syllables) for number in numbers}) == len(numbers)


def test_a_share_says_when_its_names_run_out() -> None:
    names = Names(random.Random(0), share=SetPart(0, 100_000))
    with pytest.raises(DataError, match="names ran out"):
        for _ in range(100):
            names.new()


def test_shares_never_ask_for_the_same_sum() -> None:
    streams = [arithmetic(random.Random(0), set(), SetPart(index, 3)) for index in range(3)]
    sums = [{draft.entities for draft in itertools.islice(stream, 300)} for stream in streams]
    assert all(len(each) == 300 for each in sums)
    assert not sums[0] & sums[1] and not sums[1] & sums[2] and not sums[0] & sums[2]


def test_it_is_said_once_for_all_shards_where_a_small_domain_has_no_more(tmp_path: Path) -> None:
    few = params(mix={Category.LOOKUP: 1.0}, train_examples=60, heldout_examples=2, evolved_share=0.0)
    both = few.model_copy(update={"world": few.world.model_copy(update={"domains": ["ecommerce", "mock"]})})
    said: list[str] = []
    card = synthesize(both, ROOT, tmp_path / "set", say=said.append, shard_size=31)
    mock = card["examples_by_domain"]["train"]["mock"]
    assert said == [f"domain mock has only {mock} different train lookup tasks: the other domains fill in"]
    assert card["used_up"] == {"train lookup": {"mock": mock}} and card["counts"]["train"] == 60


@lru_cache
def _mock() -> Any:
    return Toolkit.from_params(params(), ROOT).domain("mock")


def _until_they_run_out(share: SetPart) -> Iterator[str]:
    with pytest.raises(DataError, match="different train tasks found"):
        for task in domain_tasks(_mock(), 7, 100_000, "train", "lookup", share):
            yield question_key(task.instruction)


def test_shares_part_the_tasks_of_a_domain_among_them() -> None:
    parts = [list(_until_they_run_out(SetPart(index, 3))) for index in range(3)]
    every = list(itertools.chain(*parts))
    assert len(set(every)) == len(every) >= 14
    assert max(map(len, parts)) - min(map(len, parts)) <= 3
