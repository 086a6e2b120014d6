"""`orchestra learn`: trains with several seeds, measures the claims, writes docs/claims.md and the README.

Every stage runs through its own main, in a folder of its own (store.py): the pipeline's outputs stay as they are.
"""

import argparse
import contextlib
import datetime
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from orchestra.config.overrides import effective as overridden
from orchestra.config.schema import Params, parse_params
from orchestra.errors import EXIT_ERROR, ConfigError, OrchestraError
from orchestra.evaluation.claims.arms import OURS, ArmRow, side_by_side, trained_arms
from orchestra.evaluation.claims.claims import Claim, SeedResult, claims, details
from orchestra.evaluation.claims.page import PAGE, Facts, block, changed, page, refresh
from orchestra.files.yaml import parse_yaml
from orchestra.system.ending import bug, print_traceback
from orchestra.system.environment import cores, quiet
from orchestra.system.storage import check_storage, storage_named
from orchestra.system.workspace import Screen, locked
from orchestra.types import Category
from tasks.experiments.joined import read
from tasks.experiments.runner import Learning, assignments, seed_overrides
from tasks.experiments.sealed import SealedSet, log_read
from tasks.experiments.store import Keeper
from tasks.platform.named import check_named, check_reward
from tasks.platform.registry import git_commit
from tasks.platform.stage import Stage
from tasks.platform.tracking import Recorder

SEEDS = "0,1,2"
PROBE_EXAMPLES = 1_000
"""More than there are topic examples: all of them."""
README = "README.md"
SPLIT, MEASURED_ON = "dev", ("dev", "heldout", "test")
"""The examples that are measured on: a sealed set for tuning, the pipeline's held-out ones, the sealed test set."""


@dataclass(frozen=True)
class Options:
    seeds: tuple[int, ...]
    ablations: bool
    overrides: tuple[str, ...]
    examples: int | None
    probe_examples: int
    force: bool
    split: str = SPLIT
    join: tuple[Path, ...] = ()
    jobs: int = 1

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "Options":
        parser = argparse.ArgumentParser(prog="orchestra learn", description=__doc__)
        parser.add_argument("--seeds", default=SEEDS)
        parser.add_argument("--ablations", action="store_true")
        parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[])
        parser.add_argument("--examples", type=int)
        parser.add_argument("--probe-examples", type=int, default=PROBE_EXAMPLES)
        parser.add_argument("--force", action="store_true")
        parser.add_argument("--split", default=SPLIT)
        parser.add_argument("--join", metavar="FILE", action="append", type=Path, default=[])
        parser.add_argument("--jobs", type=int, default=1)
        found = parser.parse_args(arguments)
        seeds = tuple(dict.fromkeys(found.seeds.replace(" ", "").split(",")))
        if not all(seed.isdigit() for seed in seeds):
            raise ConfigError(f"{found.seeds!r} is not a list of seeds", where="--seeds", fix="write --seeds 0,1,2")
        for name, of in (("examples", "examples"), ("probe_examples", "examples"), ("jobs", "seeds at a time")):
            number = getattr(found, name)
            if number is not None and number < 1:
                raise ConfigError(
                    f"{number} is not a number of {of}",
                    where=f"--{name.replace('_', '-')}",
                    fix="give a number of at least 1",
                )
        if found.split not in MEASURED_ON:
            what, fix = f"no examples are called {found.split!r}", f"one of: {', '.join(MEASURED_ON)}"
            raise ConfigError(what, where="--split", fix=fix)
        if found.split == "test" and found.examples is not None:
            raise ConfigError("the test set is measured whole", where="--examples", fix="leave it out")
        return cls(
            tuple(map(int, seeds)),
            found.ablations,
            tuple(found.overrides),
            found.examples,
            found.probe_examples,
            found.force,
            found.split,
            tuple(found.join),
            found.jobs,
        )

    @property
    def all_overrides(self) -> list[str]:
        """Seeds aside."""
        return [*self.overrides, *([] if self.examples is None else [f"evaluate.examples={self.examples}"])]

    @property
    def command(self) -> str:
        """How to ask for the same again."""
        words = ["orchestra", "learn"]
        if self.seeds != tuple(map(int, SEEDS.split(","))):
            words += ["--seeds", ",".join(map(str, self.seeds))]
        words += ["--ablations"] if self.ablations else []
        words += [word for file in self.join for word in ("--join", str(file))]
        words += [] if self.split == SPLIT else ["--split", self.split]
        for override in self.overrides:
            words += ["--set", override]
        words += [] if self.examples is None else ["--examples", str(self.examples)]
        words += [] if self.probe_examples == PROBE_EXAMPLES else ["--probe-examples", str(self.probe_examples)]
        words += [] if self.jobs == 1 else ["--jobs", str(self.jobs)]
        return shlex.join(words)


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 for an error said in one line, a seed's among them; 1 for a bug; 130 when it was interrupted."""
    quiet()
    signal.signal(signal.SIGTERM, _interrupt)
    root, screen = Path.cwd(), Screen()
    try:
        options = Options.parse(sys.argv[1:] if arguments is None else arguments)
        check_storage(root)
        with storage_named(root), locked(root):
            return learn(root, options, screen)
    except OrchestraError as error:
        screen(f"error: {error}")
        return EXIT_ERROR
    except KeyboardInterrupt:
        screen("stopped; the same command continues from here")
        return 130
    except Exception as error:
        print_traceback()
        screen(f"error: learn: {bug(error)}")
        return 1


def learn(root: Path, options: Options, screen: Screen) -> int:
    """The whole command, under the workspace's lock."""
    params = effective(root, options.all_overrides)
    # Found out now, not after an hour.
    check_named(params, root)
    check_arms(root, params, options)
    for file in options.join:
        read(file)
    refresh((root / README).read_text(encoding="utf-8"), "")
    commit, load = git_commit(root), os.getloadavg()[0]
    recorder = Recorder.open(root, f"learn-{uuid4()}", "learn")
    keeper = Keeper(root, screen, options.all_overrides, options.force, options.jobs)
    learning = Learning(
        root, params, keeper, recorder, options.probe_examples, commit, options.join, options.ablations,
        sealed_set(options.split), options.jobs,
    )  # fmt: skip
    error = "interrupted"
    try:
        learning.prepare()
        if learning.frozen:
            log_read(root, learning.read_of(commit, options.command))
        columns = learning.columns(options.seeds)
        results = columns.get(OURS.name, [])
        if not results:
            raise ConfigError("every seed failed", where="learn", fix=learning.failures[0])
        settings = params.evaluate
        rows = side_by_side(columns, learning.examples, bootstrap=settings.bootstrap, seed=settings.seed)
        facts = gather(learning, options, results, commit, load)
        write(learning, facts, results, rows)
        error = "; ".join(learning.failures)
    except OrchestraError as failure:
        error = str(failure)
        raise
    finally:
        recorder.finish(recorder.parent, error)
    return EXIT_ERROR if learning.failures else 0


def check_arms(root: Path, params: Params, options: Options) -> None:
    """Try the settings and the reward of every arm; raises `ConfigError` with the first arm that a training refuses."""
    for arm in trained_arms(params, options.ablations):
        try:
            check_reward(effective(root, [*options.all_overrides, *assignments(arm.overrides or {})]))
        except OrchestraError as error:
            raise ConfigError(error.what, where=f"the arm {arm.name!r}, {error.where}", fix=error.fix) from None


def sealed_set(split: str) -> SealedSet | None:
    """None for the pipeline's own held-out examples."""
    return "dev" if split == "dev" else "test" if split == "test" else None


def effective(root: Path, overrides: Sequence[str]) -> Params:
    """params.yaml with the overrides, which are checked; the file itself stays as it is."""
    return overridden(root / "params.yaml", [*overrides, *seed_overrides(0)])


def gather(learning: Learning, options: Options, results: Sequence[SeedResult], commit: str, load: float) -> Facts:
    params = learning.params
    topics = sum(example.category is Category.TOPIC for example in learning.examples.values())
    return Facts(
        split=options.split,
        date=datetime.date.today().isoformat(),
        command=options.command,
        commit=commit,
        cores=cores(),
        load=load,
        profile=params.profile,
        price_date=params.world.price_date,
        examples=len(learning.examples),
        probe_examples=min(options.probe_examples, topics),
        price_spread=params.synthesize.price_spread,
        bootstrap=params.evaluate.bootstrap,
        simulated=learning.simulated,
        seeds=tuple(result.seed for result in results),
        minutes={str(result.seed): result.minutes for result in results},
        changed=differences(learning.root, params),
        failures=tuple(learning.failures),
        parts=tuple(learning.parts),
    )


def differences(root: Path, params: Params) -> dict[str, str]:
    """Parameters that are not those committed; the training seeds, which the table names, are left out."""
    shown = subprocess.run(["git", "show", "HEAD:params.yaml"], cwd=root, capture_output=True, text=True, check=False)
    text = shown.stdout if shown.returncode == 0 else (root / "params.yaml").read_text(encoding="utf-8")
    default: dict[str, Any] = parse_yaml(text)
    # What the committed file is silent on has the schema's default; a commit from before a key was renamed has none.
    with contextlib.suppress(ConfigError):
        default = parse_params(default, where="HEAD:params.yaml").model_dump(mode="json", by_alias=True)
    found = changed(default, params.model_dump(mode="json", by_alias=True))
    return {key: how for key, how in found.items() if key not in ("sft.seed", "grpo.seed")}


def write(learning: Learning, facts: Facts, results: Sequence[SeedResult], rows: Sequence[ArmRow]) -> None:
    """docs/claims.md, the README's table, MLflow's metrics, and the lines a person reads last."""
    settings, recorder = learning.params.evaluate, learning.recorder
    found = claims(results, list(learning.examples.values()), bootstrap=settings.bootstrap, seed=settings.seed)
    stage = Stage("learn", learning.params, learning.root)
    text = page(facts, found, details(results), rows)
    stage.write_text(PAGE, text)
    stage.write_text(README, refresh((learning.root / README).read_text(encoding="utf-8"), block(facts, found, rows)))
    recorder.metrics(recorder.parent, claim_metrics(found))
    recorder.metrics(recorder.parent, {f"minutes.seed_{seed}": minutes for seed, minutes in facts.minutes.items()})
    recorder.metrics(recorder.parent, {"dollars": facts.dollars})
    recorder.artifacts(recorder.parent, [learning.root / PAGE, learning.root / "params.yaml"])
    learning.keeper.say(text)
    learning.keeper.say(f"wrote {PAGE} and the table in {README}")


def claim_metrics(found: Sequence[Claim]) -> dict[str, float]:
    """Value, bounds and verdict of every claim under names that MLflow allows; what was not measured is left out."""
    metrics: dict[str, float] = {}
    for claim in found:
        name = f"claim.{re.sub(r'[^A-Za-z0-9]+', '_', claim.name).strip('_').lower()}"
        metrics[f"{name}.holds"] = float(claim.holds)
        for suffix, number in (("", claim.value), (".low", claim.low), (".high", claim.high)):
            if number is not None:
                metrics[f"{name}{suffix}"] = number
    return metrics


def _interrupt(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
