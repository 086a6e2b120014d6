"""A set of examples made in shards: each by itself, in any order and by any process; then put together in theirs.

A shard is a folder that exists whole or not at all, so a killed run goes on with the shards it lacks. What a shard
holds depends on the parameters and its place alone, so the set is the same whichever process makes them.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, Literal, Self

from pydantic import BaseModel, JsonValue, ValidationError

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Params, World
from orchestra.errors import ConfigError, DataError
from orchestra.files import atomic
from orchestra.files.jsonl import write_jsonl
from orchestra.synthesis.dataset import extra
from orchestra.synthesis.dataset.generate import card, generate
from orchestra.synthesis.filters.filters import Solver
from orchestra.synthesis.filters.solver import solver_named
from orchestra.synthesis.partition import Shard
from orchestra.system.code_hash import code_hash
from orchestra.tools.catalogue.catalogue import catalogue_files
from orchestra.tools.toolkit import Toolkit
from orchestra.types import SPLITS, Category, Record

SHARD_SIZE = 5_120
"""Examples of one shard, at most: what a process holds in memory at a time. The shipped set is one shard."""
MOST_SHARDS = 400
"""The made-up names that a shard owns are a part of all there are: with more shards they would run out."""
FILES = (*(f"{split}.jsonl" for split in SPLITS), "corpus.jsonl", "answers.jsonl")
CARD, MANIFEST = "card.json", "manifest.json"
BLOCK = 1 << 20


class ShardEntry(Record):
    """What a shard is, in its own folder; with those of the others it is the manifest."""

    index: int
    lines: dict[str, int]
    """By file."""
    sha256: dict[str, str]
    """By file, hex."""
    card: dict[str, JsonValue]


def sized(params: Params, examples: int) -> Params:
    """The parameters with that many examples, training and held-out together in the same proportion."""
    config = params.synthesize
    heldout = max(round(examples * config.heldout_examples / (config.train_examples + config.heldout_examples)), 1)
    if examples <= heldout:
        raise ConfigError(f"{examples} examples make no two splits", where="--examples", fix="ask for more")
    sizes = {"train_examples": examples - heldout, "heldout_examples": heldout}
    return params.model_copy(update={"synthesize": config.model_copy(update=sizes)})


def plan(train: int, heldout: int, shard_size: int = SHARD_SIZE) -> tuple[Shard, ...]:
    """Shards of equal size (to within one example of each split), as few as can be."""
    count = -(-(train + heldout) // shard_size)
    if count > MOST_SHARDS:
        raise ConfigError(
            f"{train + heldout} examples are more than one set can hold", where="synthesize",
            fix=f"ask for at most {MOST_SHARDS * shard_size}",
        )  # fmt: skip

    def part(total: int, index: int) -> range:
        return range(total * index // count, total * (index + 1) // count)

    return tuple(Shard(index, count, part(train, index), part(heldout, index)) for index in range(count))


@dataclass(frozen=True)
class Synthesis:
    """One set in the making. It can be sent to any process that sees the same folders."""

    params: Params
    root: Path
    """Holds the catalogue and the domains."""
    work: Path
    """Where the shards are until the set is whole."""
    shard_size: int = SHARD_SIZE

    @classmethod
    def open(cls, params: Params, root: Path, out: Path, shard_size: int = SHARD_SIZE) -> Self:
        """The set that is to be written to `out`, with the shards that an earlier run left beside it.

        Shards of other parameters, domains or code are removed. Raises `ConfigError` when `out` holds other things.
        """
        toolkit = _toolkit(params.world.model_dump_json(), root)
        if params.synthesize.mix.get(Category.TOPIC) and not toolkit.catalogue.all_simulated:
            what = "topic questions are about invented facts, which only simulated experts know"
            fix = "set synthesize.mix.topic to 0, and import questions (docs/how-to/train-the-real-model.md)"
            raise ConfigError(what, where="synthesize.mix", fix=fix)
        if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / CARD).is_file())):
            raise ConfigError("holds something else", where=str(out), fix="name an empty or a new folder")
        shards = out.resolve().with_name(f".{out.resolve().name}.shards")
        work = shards / dataset_fingerprint(params, root, shard_size)
        for leftover in [*shards.glob("*"), *work.glob(".*.partial")]:
            if leftover != work:
                shutil.rmtree(leftover)
        work.mkdir(parents=True, exist_ok=True)
        return cls(params, root, work, shard_size)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All of them, in order."""
        return plan(self.params.synthesize.train_examples, self.params.synthesize.heldout_examples, self.shard_size)

    def state(self, shard: Shard) -> Literal["whole", "missing", "damaged"]:
        """Whether it was made, and is as it was made: every file is read."""
        folder = self._folder(shard)
        if not folder.is_dir():
            return "missing"
        try:
            entry = ShardEntry.model_validate_json((folder / MANIFEST).read_bytes())
            sound = all(_sha256(folder / name) == entry.sha256[name] for name in FILES)
        except (OSError, KeyError, ValidationError):
            sound = False
        return "whole" if sound else "damaged"

    def make(self, shard: Shard, on_progress: Callable[[int], None] | None = None) -> None:
        """Make one shard, whole or not at all; raises `DataError` when that many examples cannot be made."""
        toolkit = _toolkit(self.params.world.model_dump_json(), self.root)
        made = generate(rooted(self.params, self.root), toolkit, on_progress, shard, self._solver)
        records: list[Sequence[BaseModel]] = [made.examples[split] for split in SPLITS]
        records += [made.documents, made.answers]
        with atomic.whole_folder(self._folder(shard)) as folder:
            lines = {name: write_jsonl(folder / name, each) for name, each in zip(FILES, records, strict=True)}
            sha256 = {name: _sha256(folder / name) for name in FILES}
            entry = ShardEntry(index=shard.index, lines=lines, sha256=sha256, card=card(made, self.params))
            (folder / MANIFEST).write_text(entry.model_dump_json(), encoding="utf-8")

    def assemble(self, folder: Path, say: Callable[[str], None] = print, run: Budget | None = None) -> dict[str, Any]:
        """Write the whole set into `folder`, in the order of the shards and with what `synthesize.extra` names; returns
        its card.

        Memory does not grow with the number of generated examples. Raises `DataError` when a shard changed since it was
        made, and where `extra.add` does, which books in the `run`.
        """
        for name in FILES:
            with (folder / name).open("wb") as out:
                for shard in self.shards:
                    if _sha256(self._folder(shard) / name, out) != self._entry(shard).sha256[name]:
                        where = str(self._folder(shard) / name)
                        raise DataError("is damaged", where=where, fix="run the same command again: it is made again")
        summary = merged([self._entry(shard).card for shard in self.shards])
        for of, domains in summary.get("used_up", {}).items():
            for name, count in domains.items():
                say(f"domain {name} has only {count} different {of} tasks: the other domains fill in")
        if self.params.synthesize.extra:
            counts = {split: sum(self._entry(s).lines[f"{split}.jsonl"] for s in self.shards) for split in SPLITS}
            summary["extra"] = extra.add(self.params, self.root, folder, counts, say, run)
        (folder / CARD).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            for shard in self.shards:
                file.write(self._entry(shard).model_dump_json(exclude={"card"}) + "\n")
        return summary

    def clear(self) -> None:
        """Remove the shards: the set is whole."""
        shutil.rmtree(self.work.parent)

    def _solver(self, toolkit: Toolkit) -> Solver | None:
        return solver_named(self.params.synthesize.solver, self.params, toolkit, self.root)

    def _folder(self, shard: Shard) -> Path:
        return self.work / str(shard.index)

    def _entry(self, shard: Shard) -> ShardEntry:
        return ShardEntry.model_validate_json((self._folder(shard) / MANIFEST).read_bytes())


def merged(cards: list[dict[str, Any]]) -> dict[str, Any]:
    """One card of several: counts are added up; what is no count is the same in all, and stays."""
    total: dict[str, Any] = _added(cards)
    return total | {"seed": cards[0]["seed"]}


def _added(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _added([value[key] for value in values if key in value]) for key in keys}
    return sum(values) if isinstance(first, int) and not isinstance(first, bool) else first


def dataset_fingerprint(params: Params, root: Path, shard_size: int = SHARD_SIZE) -> str:
    """16 hex digits over everything that decides what the set holds: parameters, world, extra examples and code.

    Raises `ConfigError` when an extra file is missing.
    """
    sections = [params.world.model_dump_json(), params.synthesize.model_dump_json(), shard_size]
    if params.synthesize.solver != "none":
        sections += [params.rollout.model_dump_json(), params.model.recipe]
    digest = hashlib.sha256(json.dumps(sections).encode())
    world = [*catalogue_files(root / params.world.catalogue), root / params.world.prices]
    if params.synthesize.preferences is not None:
        world.append(root / params.synthesize.preferences)
    for name in params.world.domains:
        world += sorted(file for file in (root / "data/domains" / name).rglob("*") if file.is_file())
    digest.update(code_hash("synthesize").encode())
    for file in [*world, *extra.files(params, root)]:
        digest.update(f"{file.name} {_sha256(file) if file.is_file() else None}\n".encode())
    return digest.hexdigest()[:16]


def rooted(params: Params, root: Path) -> Params:
    """The parameters with the file of preferences where any process finds it."""
    named = params.synthesize.preferences
    if named is None:
        return params
    config = params.synthesize.model_copy(update={"preferences": str(root / named)})
    return params.model_copy(update={"synthesize": config})


@lru_cache(maxsize=1)
def _toolkit(world: str, root: Path) -> Toolkit:
    """Kept, since one process makes many shards."""
    return Toolkit.of(World.model_validate_json(world), root)


def _sha256(file: Path, copy: IO[bytes] | None = None) -> str:
    """Of a file's bytes, which also go to `copy`."""
    digest = hashlib.sha256()
    for block in _blocks(file):
        digest.update(block)
        if copy is not None:
            copy.write(block)
    return digest.hexdigest()


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(BLOCK):
            yield block
