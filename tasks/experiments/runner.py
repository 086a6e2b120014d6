"""The runs of `orchestra learn`: data, rules and the base once, then every seed's arms."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from orchestra.config.schema import Params, load_params
from orchestra.errors import OrchestraError
from orchestra.evaluation.baselines.base import rivals
from orchestra.evaluation.claims.arms import BASE, OURS, RULED, SFT, Arm, trained_arms
from orchestra.evaluation.claims.claims import SeedResult
from orchestra.evaluation.claims.page import StageRun
from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.probes.trials import ProbeResults
from orchestra.evaluation.report import TRAINED
from orchestra.files.atomic import whole_folder
from orchestra.files.examples import read_examples
from orchestra.types import Example
from tasks.experiments import sealed
from tasks.experiments.joined import SeedFile, SeedSetting, completed, load, save, setting
from tasks.experiments.results import Measured, dollars, read_episodes, read_probes
from tasks.experiments.sealed import GENERATED, VALIDATED, SealedSet
from tasks.experiments.store import Keeper, Kept
from tasks.platform import dvc
from tasks.platform.stage import stage_fingerprint
from tasks.platform.tracking import Recorder, read_metrics

T = TypeVar("T")
MEASURING = ("evaluate", "probes")
"""Stages that measure policies instead of making anything."""

DATA = {GENERATED: "synthesize", VALIDATED: "validate"}
"""The stage that makes each folder of data."""


@dataclass
class Learning:
    """One run of the command."""

    root: Path
    params: Params
    """With every override, seeds aside."""
    keeper: Keeper
    recorder: Recorder
    probe_examples: int
    commit: str = ""
    """What is checked out."""
    join: Sequence[Path] = ()
    """Files of seeds that were measured elsewhere."""
    with_ablations: bool = False
    """Whether rewards that lack a part are arms too."""
    on: SealedSet | None = None
    """The sealed set that policies are measured on; None: the held-out examples."""
    jobs: int = 1
    """Seeds at a time."""
    parts: list[StageRun] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    simulated: bool = False
    data: dict[str, Path] = field(default_factory=dict)
    """Where the folders of `DATA` are: what is trained on."""
    measured: dict[str, Path] = field(default_factory=dict)
    """The same folders with the examples that policies are measured on."""
    count: int = 0
    """Examples that policies are measured on, at most."""
    frozen: str = ""
    """The commit whose hash is the test set's seed; empty for the other sets."""
    examples: dict[str, Example] = field(default_factory=dict)
    """Those that policies are measured on, by id, in order."""
    rules: dict[str, tuple[Outcome, ...]] = field(default_factory=dict)
    """Outcomes by rule."""

    def prepare(self) -> None:
        """Data and rules: neither depends on a training seed."""
        self.data, self.count = self._data(), self.params.evaluate.examples
        self.measured = self.data if self.on is None else self._sealed(self.on)
        heldout = read_examples(self.measured[VALIDATED] / "heldout.jsonl")[: self.count]
        self.examples = {example.id: example for example in heldout}
        rules = list(dict.fromkeys([*rivals(), *self.params.evaluate.baselines]))
        # Of an SFT model, rules need the tokenizer only, which is that of the base.
        base = self.params.model.folder(self.root)
        kept = self.stage(self.recorder, "rules", "evaluate", policies([], rules), {"models/sft": base})
        self.rules = self.read(kept).outcomes

    def _data(self) -> dict[str, Path]:
        """The repository's own, brought up to date by DVC; other data when an override asks for other data."""
        own = load_params(self.root / "params.yaml")
        if all(
            stage_fingerprint(self.root, name, own) == stage_fingerprint(self.root, name, self.params)
            for name in DATA.values()
        ):
            for name in DATA.values():
                outcome = dvc.repro(self.root, name, env={}, on_line=self.keeper.say)
                self.keeper.say(f"data · {name}: {outcome}")
            return {folder: self.root / folder for folder in DATA}
        found: dict[str, Path] = {}
        for folder, name in DATA.items():
            found[folder] = self.stage(self.recorder, "data", name, [], found).folder / folder
        return found

    def _sealed(self, name: SealedSet) -> dict[str, Path]:
        """The folders of a sealed set, made where they are not there yet."""
        seed, tuned_on = sealed.seed_of(name), list[Path]()
        if name == "test":
            self.frozen, frozen = sealed.frozen_commit(self.root, self.params)
            dev = self._fresh("dev", sealed.seed_of("dev"))
            tuned_on = [part[VALIDATED] / "heldout.jsonl" for part in (self.data, dev)]
            self.count, seed = frozen.examples, sealed.seed_of(self.frozen)
        fresh = self._fresh(name, seed)
        with whole_folder(self.keeper.store / f"data-{name}") as merged:
            left = sealed.merge(name, self.data, fresh, merged, tuned_on)
        tuning = ", and ask nothing that tuning reads" if tuned_on else ""
        self.keeper.say(f"data · {name}: {left} of {self.count} examples share nothing with training{tuning}")
        return {folder: self.keeper.store / f"data-{name}" / folder for folder in DATA}

    def _fresh(self, name: SealedSet, seed: int) -> dict[str, Path]:
        """The folders of a generation of its own, with `count` held-out examples."""
        changes, fresh = sealed.overrides(seed, self.count), dict[str, Path]()
        for folder, stage in DATA.items():
            fresh[folder] = self.stage(self.recorder, f"data · {name}", stage, changes, fresh).folder / folder
        return fresh

    def stage(
        self, recorder: Recorder, of: str, name: str, overrides: Sequence[str], links: Mapping[str, Path]
    ) -> Kept:
        """One stage's result; where it has to run, under an MLflow run of its own."""
        runs: list[str] = []

        def env() -> Mapping[str, str]:
            runs.append(recorder.child(name))
            return recorder.environment(runs[0])

        arguments = [str(self.probe_examples)] if name == "probes" else []
        inputs = {**self._inputs(name), **links}
        if name in MEASURING:
            overrides = [*overrides, f"evaluate.examples={self.count}"]
        error = "interrupted"
        try:
            kept = self.keeper.run(name, of, overrides=overrides, links=inputs, arguments=arguments, env=env)
            error = ""
        except OrchestraError as failure:
            error = str(failure)
            raise
        finally:
            for run in runs:
                recorder.finish(run, error)
        self.parts.append(StageRun(of=of, stage=name, minutes=kept.minutes, dollars=dollars(kept), reused=kept.reused))
        return kept

    def _inputs(self, name: str) -> Mapping[str, Path]:
        """The data that a stage reads, where `links` do not say otherwise; the stages that make data read none."""
        if name in DATA.values():
            return {}
        return self.measured if name in MEASURING else self.data

    def read_of(self, commit: str, command: str) -> sealed.ReadEntry:
        """The line that tells of this look at the test set."""
        count = len(self.examples)
        return sealed.ReadEntry(date=sealed.today(), commit=commit, frozen=self.frozen, examples=count, command=command)

    def read(self, kept: Kept) -> Measured:
        found = read_episodes(kept.folder, self.examples)
        self.simulated = self.simulated or found.simulated
        return found

    def columns(self, seeds: Sequence[int]) -> dict[str, list[SeedResult]]:
        """The results of every arm, by its name; a seed counts where all its arms reached the end."""
        base = self.root / (self.params.model.base or self.params.model.recipe)
        untrained = {
            arm.name: self._measured(self.recorder, arm.name, {"models/sft": base, "models/grpo": base}, arm)
            for arm in (BASE, RULED)
        }
        outcomes, _ = untrained[BASE.name]
        # Read now: a file that does not fit is found out before an hour of training.
        taken = list(seeds)
        joined = [load(file, self._setting(), taken) for file in self.join]
        found = self._seeds(seeds, outcomes)
        found += [completed(one, self.rules, {BASE.name: outcomes}) for one in joined]
        columns = {
            name: [self._result(0, 0.0, 0.0, {TRAINED: own}, probes)] for name, (own, probes) in untrained.items()
        }
        for by_arm in found:
            for name, result in (by_arm or {}).items():
                columns.setdefault(name, []).append(result)
        return columns

    def _seeds(self, seeds: Sequence[int], base: tuple[Outcome, ...]) -> list[dict[str, SeedResult] | None]:
        """The arms' results of each seed; None for one that failed. A thread each, since their stages are processes."""
        each = [dataclasses.replace(self, parts=[], failures=[]) for _ in seeds]
        with ThreadPoolExecutor(self.jobs) as pool:
            work = [
                pool.submit(one._survive, f"seed {seed}", partial(one._seed, seed, base))
                for one, seed in zip(each, seeds, strict=True)
            ]
            try:
                return [one.result() for one in work]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.keeper.stop()
                raise
            finally:
                for one in each:
                    self.parts += one.parts
                    self.failures += one.failures
                    self.simulated = self.simulated or one.simulated

    def _survive(self, of: str, work: Callable[[Recorder], T]) -> T | None:
        """`work` under an MLflow run of its own; what fails is said in a line, kept, and None."""
        recorder = dataclasses.replace(self.recorder, parent=self.recorder.child(of))
        error = "interrupted"
        try:
            result = work(recorder)
            error = ""
            return result
        except OrchestraError as failure:
            error = str(failure)
            self.failures.append(f"{of}: {error}")
            self.keeper.say(f"error: {of}: {error}")
            return None
        finally:
            recorder.finish(recorder.parent, error)

    def _seed(self, seed: int, base: tuple[Outcome, ...], recorder: Recorder) -> dict[str, SeedResult]:
        """sft, then GRPO with every arm's reward from that one model; each evaluated and probed."""
        seeds = seed_overrides(seed)
        sft = self.stage(recorder, f"seed {seed}", "sft", seeds, {})
        start, spent = {"models/sft": sft.folder / "models/sft"}, dollars(sft) or 0.0
        sft_alone = {**start, "models/grpo": start["models/sft"]}
        outcomes, probes = self._measured(recorder, f"seed {seed} · SFT", sft_alone, SFT)
        known = {BASE.name: base, SFT.name: outcomes}
        found = {SFT.name: self._result(seed, sft.minutes, spent, {TRAINED: outcomes}, probes)}
        for arm in trained_arms(self.params, self.with_ablations):
            of = f"seed {seed}{'' if arm == OURS else f' · {arm.name}'}"
            grpo = self.stage(recorder, of, "grpo", [*seeds, *assignments(arm.overrides or {})], start)
            models = {**start, "models/grpo": grpo.folder / "models/grpo"}
            outcomes, probes = self._measured(recorder, of, models, arm)
            minutes, money = sft.minutes + grpo.minutes, spent + (dollars(grpo) or 0.0)
            beside = known if arm == OURS else {}
            found[arm.name] = self._result(seed, minutes, money, {**beside, TRAINED: outcomes}, probes)
            known[arm.name] = outcomes
        file = save(self.keeper.store, SeedFile(setting=self._setting(), commit=self.commit, seed=seed, arms=found))
        self.keeper.say(f"seed {seed}: kept in {file.relative_to(self.root)}, for --join")
        ours = found[OURS.name]
        recorder.metrics(recorder.parent, {"minutes": ours.minutes, "dollars": ours.dollars})
        return found

    def _setting(self) -> SeedSetting:
        split = "heldout" if self.on is None else self.on
        examples, training = list(self.examples.values()), self.data[VALIDATED] / "train.jsonl"
        return setting(self.root, self.params, split, examples, training, self.probe_examples)

    def _measured(
        self, recorder: Recorder, of: str, models: Mapping[str, Path], arm: Arm
    ) -> tuple[tuple[Outcome, ...], ProbeResults]:
        """Outcomes and probes of what lies at models/grpo; MLflow gets its figures under the arm's own name."""
        changes = [*policies([TRAINED]), *assignments(arm.measured)]
        evaluated = self.stage(recorder, of, "evaluate", changes, models)
        probes = self.stage(recorder, of, "probes", changes, models)
        figures = read_metrics(evaluated.folder / "reports/evaluate.json")
        recorder.metrics(recorder.parent, {arm_metric(arm, key): value for key, value in figures.items()})
        return self.read(evaluated).outcomes[TRAINED], read_probes(probes.folder)

    def _result(
        self, seed: int, minutes: float, spent: float, own: Mapping[str, tuple[Outcome, ...]], probes: ProbeResults
    ) -> SeedResult:
        return SeedResult(seed=seed, minutes=minutes, dollars=spent, outcomes={**self.rules, **own}, probes=probes)


def assignments(changes: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def arm_metric(arm: Arm, key: str) -> str:
    """The name of a measure in MLflow: every arm stands as the trained policy in its own evaluation."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", arm.name).strip("_")
    return f"{name}.{key.removeprefix(f'{TRAINED}.')}"


def seed_overrides(seed: int) -> list[str]:
    """A training seed is SFT's and GRPO's together."""
    return [f"sft.seed={seed}", f"grpo.seed={seed}"]


def policies(models: Sequence[str], rules: Sequence[str] = ()) -> list[str]:
    """Let evaluate measure these and nothing else."""
    return [f"evaluate.policies=[{', '.join(models)}]", f"evaluate.baselines=[{', '.join(rules)}]"]
