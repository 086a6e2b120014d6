"""Sealed sets: examples that share nothing with training, drawn from seeds of their own.

`dev` has a fixed seed and is for tuning. The seed of `test` comes from the hash of the commit that froze the world, so
no run can have seen it before; it repeats no request that tuning reads. Both are the held-out part of a
generation of their own, laid beside the training data: routers still learn from the training examples, and experts and
search know what both sets ask.
"""

import datetime
import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from orchestra.config.schema import Params, load_params
from orchestra.errors import DataError
from orchestra.evaluation.probes.run import read_wording
from orchestra.files import atomic
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import copy_lines, read_jsonl, stream_lines, write_jsonl
from orchestra.system.code_hash import CODE
from orchestra.tools.experts.simulated import BookEntry, question_key
from orchestra.types import Record
from orchestra.validation.rows import marks
from tasks.platform.commands import run_command

SealedSet = Literal["dev", "test"]
GENERATED, VALIDATED = "data/generated", "data/validated"
ANSWERS, CORPUS = "answers.jsonl", "corpus.jsonl"
NAME = re.compile(r"\b[A-Z][a-z]{3,}\b")
"""A made-up name in a document."""
FROZEN, READS = "data/frozen.json", "data/test_reads.jsonl"
WORLD = (
    *CODE["synthesize"],
    "orchestra/evaluation",
    "orchestra/statistics",
    "data/catalogue",
    "data/domains",
)
"""The world and the yardsticks: what may not change between the freeze and a read of the test set."""
NO_YARDSTICK = ("orchestra/evaluation/benchmarks",)
"""Left out of `WORLD`: published benchmarks measure nothing of the sealed sets. A contract test follows the imports of
`orchestra learn` and of the stages, and finds none of these files."""
NO_MEASURE = frozenset({"policies", "engine", "server", "safety"})
"""Of the section `evaluate`: the policies are the command's own, the engine and its server decide how fast they play,
and no claim is about the safety set. `examples` stays: it decides the set `dev`, which the test set leaves out."""
TRAIN_EXAMPLES = 64
"""Training examples of a sealed generation, which are thrown away: enough to hold every category of the mix."""


class Frozen(Record):
    """The content of `FROZEN`."""

    world: str
    """`world_hash` when it was frozen."""
    examples: int
    """Examples of the test set, before those that training or tuning knows are left out."""


class ReadEntry(Record):
    """A line of `READS`: one measurement on the test set."""

    date: str
    commit: str
    """What was checked out; `+` after it: files differed."""
    frozen: str
    """The commit whose hash is the seed."""
    examples: int
    command: str


def world_hash(root: Path, params: Params) -> str:
    """16 hex digits over the code, the data and the parameters that make examples, experts' answers and yardsticks."""
    sections = [one.model_dump(mode="json") for one in (params.world, params.synthesize, params.rollout)]
    yardsticks = [params.evaluate.model_dump(mode="json", exclude=set(NO_MEASURE)), wording(root, params)]
    digest = hashlib.sha256(json.dumps([*sections, *yardsticks], sort_keys=True).encode())
    for part in WORLD:
        path = root / part
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(root)
            if not file.is_file() or "__pycache__" in file.parts or any(name.is_relative_to(o) for o in NO_YARDSTICK):
                continue
            digest.update(f"{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def wording(root: Path, params: Params) -> dict[str, list[str]] | None:
    """The sentences of the probes `wording` and `forms`; None where these are off. Raises `DataError`."""
    return read_wording(root / params.evaluate.wording) if params.evaluate.wording else None


def freeze(root: Path, params: Params, examples: int) -> str:
    """Write `FROZEN` for the world as it is; returns what to do next."""
    frozen = Frozen(world=world_hash(root, params), examples=examples)
    atomic.write_text(root / FROZEN, frozen.model_dump_json(indent=2) + "\n")
    return f"{FROZEN} is written: commit it, then train; the commit's hash is the seed of the test set"


def frozen_commit(root: Path, params: Params) -> tuple[str, Frozen]:
    """The commit that froze the world, and what it froze; raises `DataError` when the world is not that one."""
    file, fix = root / FROZEN, "orchestra learn --freeze, then commit the file"
    if not file.is_file():
        raise DataError("the world is not frozen", where=FROZEN, fix=fix)
    try:
        frozen = Frozen.model_validate_json(file.read_text(encoding="utf-8"))
    except ValidationError:
        raise DataError("is damaged", where=FROZEN, fix=fix) from None
    if _git(root, "status", "--porcelain", "--", FROZEN):
        raise DataError("is not committed", where=FROZEN, fix="commit it: the commit's hash is the test set's seed")
    if frozen.world != world_hash(root, params):
        what = "the world has changed since it was frozen"
        raise DataError(what, where=FROZEN, fix="take the change back, or freeze it again and train again")
    return _git(root, "log", "-1", "--format=%H", "--", FROZEN), frozen


def seed_of(text: str) -> int:
    """A seed of 31 bits from a commit's hash or the name of a set."""
    return int.from_bytes(hashlib.sha256(f"sealed:{text}".encode()).digest()[:4], "big") >> 1


def overrides(seed: int, examples: int) -> list[str]:
    """The parameters of a sealed generation: the world's own, with another seed and size."""
    return [
        f"synthesize.seed={seed}",
        f"synthesize.train_examples={TRAIN_EXAMPLES}",
        f"synthesize.heldout_examples={examples}",
        "synthesize.extra=[]",
    ]


def merge(
    name: str, ours: Mapping[str, Path], fresh: Mapping[str, Path], folder: Path, tuned_on: Sequence[Path] = ()
) -> int:
    """Lay the held-out part of `fresh` beside the training data of `ours`; returns how many examples are left.

    `ours` and `fresh` say where data/generated and data/validated are; `folder` will hold both. Left out is what
    training knows: an entity or a request of a training example, and an entity that the corpus of `ours` speaks of;
    and a request of the files `tuned_on`, which tuning reads. Entities of these recur: nobody trains on them.
    """
    generated, validated = folder / GENERATED, folder / VALIDATED
    for path in (generated, validated):
        path.mkdir(parents=True, exist_ok=True)
    known = {mark for example in read_examples(ours[VALIDATED] / "train.jsonl") for mark in marks(example)}
    known |= {mark for file in tuned_on for one in read_examples(file) for mark in marks(one) - set(one.entities)}
    known |= {word for _, line in stream_lines(ours[GENERATED] / CORPUS) for word in NAME.findall(line)}
    heldout = fresh[VALIDATED] / "heldout.jsonl"
    examples = read_examples(heldout)
    leaks = {number for number, example in enumerate(examples, start=1) if marks(example) & known}
    copy_lines(ours[VALIDATED] / "train.jsonl", validated / "train.jsonl", without=set())
    copy_lines(heldout, validated / "heldout.jsonl", without=leaks)
    answers = {
        question_key(entry.question): entry
        for part in (ours, fresh)
        for entry in read_jsonl(part[GENERATED] / ANSWERS, BookEntry)
    }
    write_jsonl(generated / ANSWERS, answers.values())
    documents = [json.loads(line) for _, line in stream_lines(ours[GENERATED] / CORPUS)]
    documents += [
        row | {"id": f"{name}-{row['id']}"}
        for row in (json.loads(line) for _, line in stream_lines(fresh[GENERATED] / CORPUS))
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in documents)
    (generated / CORPUS).write_text(lines, encoding="utf-8")
    return len(examples) - len(leaks)


def log_read(root: Path, read: ReadEntry) -> None:
    """Add a line to `READS`; it is part of the repository, so that everybody sees how often the test set was read."""
    atomic.append_text(root / READS, read.model_dump_json() + "\n")


def today() -> str:
    return datetime.date.today().isoformat()


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DataError("git does not answer here", where=str(root), fix="run it in a clone of the repository")
    return done.stdout.strip()


def main(arguments: list[str]) -> None:
    """`orchestra learn --freeze EXAMPLES`."""
    root = Path.cwd()
    print(freeze(root, load_params(root / "params.yaml"), int(arguments[0])))


if __name__ == "__main__":
    run_command(main)
