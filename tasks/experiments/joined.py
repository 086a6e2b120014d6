"""Seeds measured in another run or on another machine: each seed leaves a file, and `orchestra learn --join` takes it.

A file holds what the seed's arms reached, without the rules and the untrained base, which every run measures itself.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from orchestra.config.schema import Params
from orchestra.errors import DataError
from orchestra.evaluation.claims.arms import OURS
from orchestra.evaluation.claims.measures import SeedResult
from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.report import TRAINED
from orchestra.files import atomic
from orchestra.files.checkpoint import hash_dir, hash_file
from orchestra.system.code_hash import code_hash
from orchestra.text import digest
from orchestra.types import Example, Record
from tasks.experiments.sealed import world_hash

FOLDER = "seeds"
"""Of the files, in the store of `orchestra learn`."""


class SeedSetting(Record):
    """What two seeds must have in common to stand in one table."""

    split: str
    examples: str
    """Digest of the examples that were measured on, whole and in order."""
    training_data: str = ""
    """Digest of the training examples; empty in older files, which fit no run."""
    world: str = ""
    """Hash of the world and its yardsticks; empty in older files."""
    probe_examples: int
    recipe: str
    """Digest of the code and the parameters that train, and of the base."""


class SeedFile(Record):
    """One seed's arms."""

    setting: SeedSetting
    commit: str
    """What was checked out."""
    seed: int
    arms: dict[str, SeedResult]
    """By arm, ours last; `outcomes` holds the arm's own episodes alone."""


def setting(
    root: Path, params: Params, split: str, examples: Sequence[Example], training: Path, probe_examples: int
) -> SeedSetting:
    """That of a run on `examples`; `training` is the file of the training examples."""
    of = {name: getattr(params, name).model_dump(mode="json") for name in ("sft", "grpo", "model", "rollout")}
    for name in ("sft", "grpo"):
        of[name].pop("seed")
    base = root / (params.model.base or params.model.recipe)
    recipe = json.dumps([of, code_hash("sft"), code_hash("grpo"), hash_dir(base)], sort_keys=True)
    return SeedSetting(
        split=split,
        examples=digest("\n".join(example.model_dump_json() for example in examples)),
        training_data=hash_file(training)[:16],
        world=world_hash(root, params),
        probe_examples=probe_examples,
        recipe=digest(recipe),
    )


def save(store: Path, found: SeedFile) -> Path:
    """Write the file of a seed."""
    own = {
        name: result.model_copy(update={"outcomes": {TRAINED: result.outcomes[TRAINED]}})
        for name, result in found.arms.items()
    }
    text = found.model_copy(update={"arms": own}).model_dump_json()
    file = store / FOLDER / f"{found.setting.split}-{found.seed}.json.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(file, gzip.compress(text.encode(), mtime=0))
    return file


def read(file: Path) -> SeedFile:
    """The file of a seed; raises `DataError` where it is missing or damaged."""
    try:
        return SeedFile.model_validate_json(gzip.decompress(file.read_bytes()))
    except (OSError, EOFError, zlib.error, ValidationError):
        raise DataError(
            "is not the result of a seed", where=str(file), fix="name one that orchestra learn wrote"
        ) from None


def load(file: Path, wanted: SeedSetting, taken: Sequence[int]) -> SeedFile:
    """The file of a seed; raises `DataError` where it does not fit this run either."""
    found = read(file)
    if found.seed in taken:
        raise DataError(f"seed {found.seed} is there already", where=str(file), fix="leave it out of --seeds")
    own, theirs = wanted.model_dump(), found.setting.model_dump()
    differs = [name for name, value in own.items() if theirs[name] != value]
    if differs:
        what = f"was measured with another {', '.join(name.replace('_', ' ') for name in differs)}"
        raise DataError(what, where=str(file), fix=f"check out {found.commit[:12]}, or measure the seed again")
    if OURS.name not in found.arms:
        raise DataError("lacks the trained arm", where=str(file), fix="measure the seed again")
    return found


def completed(
    found: SeedFile, rules: Mapping[str, tuple[Outcome, ...]], base: Mapping[str, tuple[Outcome, ...]]
) -> dict[str, SeedResult]:
    """The arms' results as the run that measured them had them: beside the rules, and ours beside every arm."""
    known, arms = dict(base), dict[str, SeedResult]()
    for name, result in found.arms.items():
        own = result.outcomes[TRAINED]
        beside = known if name == OURS.name else {}
        arms[name] = result.model_copy(update={"outcomes": {**rules, **beside, TRAINED: own}})
        known[name] = own
    return arms
