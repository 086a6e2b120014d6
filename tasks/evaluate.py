"""evaluate: the trained model, the SFT model and the rules over the held-out examples; table, plots, episodes."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from orchestra.accounting.ledger import parts, phase
from orchestra.config.schema import Params
from orchestra.errors import ConfigError, DataError
from orchestra.evaluation import run as running
from orchestra.evaluation import safety
from orchestra.evaluation.baselines.base import STRONGEST, baseline_policy, needed
from orchestra.evaluation.baselines.knowledge import Knowledge, Lesson, needs_lesson, take_lessons, who_is_right
from orchestra.evaluation.report import EVALUATION, REFERENCE, SAFETY, TRAINED, Comparison, markdown, write_report
from orchestra.evaluation.run import Contender
from orchestra.evaluation.statistics import flat_metrics, summarise
from orchestra.files.checkpoint import hash_dir, hash_file, verify_manifest
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.policies.base import Policy
from orchestra.rollout.policies.chat import PREFIX, chat_policy
from orchestra.rollout.policies.named import POLICIES, PolicyWorld
from orchestra.rollout.render import Codec
from orchestra.serving.engines.checkpoints import Build, CheckpointServers, in_process
from orchestra.system.code_hash import code_hash
from orchestra.system.machine import torch_beside_gpu
from orchestra.tools.catalogue.catalogue import catalogue_files
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Episode, Example, Price
from tasks.platform.ledger import KeptReplies, open_budget, tell
from tasks.platform.stage import Stage, run


def main(stage: Stage) -> None:
    params, root = stage.params, stage.root
    examples = heldout(stage)
    budget = open_budget(stage)
    toolkit = Toolkit.from_params(params, root, budget=budget, cassette=KeptReplies(stage))
    check_names(params, root)
    folders = {name: root / "models" / name for name in params.evaluate.policies if is_checkpoint(name, root)}
    for folder in folders.values():
        verify_manifest(folder)
    with players(stage) as build:
        _measure(stage, examples, toolkit, folders, build)
    tell_failures(stage, toolkit)
    tell(stage, budget, toolkit.cassette)


def _measure(stage: Stage, examples: list[Example], toolkit: Toolkit, folders: dict[str, Path], build: Build) -> None:
    params, price = stage.params, toolkit.catalogue.policy_price
    contenders = [
        *(contender(name, stage.root, price, toolkit, build) for name in params.evaluate.policies),
        *rules(stage, examples, toolkit),
    ]
    file = stage.work_dir() / "episodes.jsonl"
    stage.say(f"{len(contenders)} policies over {len(examples)} held-out examples")
    found = running.evaluate(
        in_turn(contenders, build), examples, toolkit, params.rollout, file=file, on_progress=on_progress(stage)
    )
    episodes = {one.name: found[one.name] for one in contenders}
    settings = params.evaluate
    summaries = summarise(
        episodes, examples, reference=REFERENCE, strongest=STRONGEST, bootstrap=settings.bootstrap, seed=settings.seed
    )
    comparison = Comparison(
        simulated=any(summary.simulated for summary in summaries.values()),
        examples=len(examples),
        data_hash=data_hash(stage, examples),
        price_date=params.world.price_date,
        bootstrap=settings.bootstrap,
        seed=settings.seed,
        checkpoints={name: hash_dir(folder) for name, folder in folders.items()},
        policies=summaries,
    )
    tried = _safety(stage, contenders, episodes, examples, toolkit)
    with stage.write_dir(EVALUATION) as folder:
        shutil.copyfile(file, folder / "episodes.jsonl")
        if tried is not None:
            (folder / SAFETY).write_text(tried.model_dump_json(indent=1) + "\n", encoding="utf-8")
        write_report(comparison, folder)
        (folder / "ledger.json").write_text(json.dumps(spent(episodes), indent=2) + "\n", encoding="utf-8")
    metrics = flat_metrics(summaries)
    stage.write_json("reports/evaluate.json", metrics)
    stage.log_artifact(Path(EVALUATION))
    print(markdown(comparison), flush=True)


def tell_failures(stage: Stage, toolkit: Toolkit) -> None:
    """Why most episodes have no verdict, where any has none."""
    if (reason := toolkit.resources.failures.most_frequent) is not None:
        stage.say(f"some episodes have no verdict; most frequent reason: {reason}")


def in_turn(contenders: Sequence[Contender], build: Build) -> list[Contender]:
    """The contenders as they play: where each checkpoint has a server, the trained model is last, and the safety set
    goes on with its server. A start takes a minute or two on a GPU."""
    return sorted(contenders, key=lambda one: isinstance(build, CheckpointServers) and one.name == TRAINED)


def _safety(
    stage: Stage,
    contenders: Sequence[Contender],
    episodes: Mapping[str, Sequence[Episode]],
    examples: Sequence[Example],
    toolkit: Toolkit,
) -> safety.Safety | None:
    """The safety set of the trained model; None where it is off or nothing was trained."""
    file, ours = stage.params.evaluate.safety, [one for one in contenders if one.name == TRAINED]
    if file is None or not ours:
        return None
    cases = safety.read_cases(stage.root / file)
    with phase("safety"):
        tried = safety.check(ours[0], cases, episodes[TRAINED], examples, toolkit, stage.params.rollout)
    stage.say(f"safety set: {len(cases) - len(tried.failed)} of {len(cases)} cases held")
    return tried


def spent(episodes: Mapping[str, Sequence[Episode]]) -> dict[str, Any]:
    """What each policy spent, by component, in exact decimals: ledger.json."""
    ledgers = {
        name: parts((charge for episode in found for charge in episode.charges), lambda charge: charge.component)
        for name, found in episodes.items()
    }
    return {name: {part: told.as_json() for part, told in sorted(found.items())} for name, found in ledgers.items()}


def heldout(stage: Stage) -> list[Example]:
    """The held-out examples that are evaluated: the first of the validated file."""
    file = stage.root / "data/validated/heldout.jsonl"
    examples = read_jsonl(file, Example, fix="run the validate stage again")
    if not examples:
        raise DataError("no examples in it", where=str(file), fix="run the validate stage again")
    return examples[: stage.params.evaluate.examples]


def check_names(params: Params, root: Path) -> None:
    """Raises `ConfigError` for a policy or baseline in `evaluate` that does not exist, with those that do."""
    needed(params.evaluate.baselines)
    for name in params.evaluate.policies:
        if not is_checkpoint(name, root) and name not in POLICIES and not name.startswith(PREFIX):
            fix = f"one of: {', '.join([TRAINED, REFERENCE, *POLICIES])}; a folder in models; or {PREFIX} and an expert"
            raise ConfigError(f"no policy named {name}", where="evaluate.policies", fix=fix)


def is_checkpoint(name: str, root: Path) -> bool:
    """Whether a name in `evaluate.policies` is a folder in models, or one that the pipeline makes."""
    return name in (TRAINED, REFERENCE) or (root / "models" / name).is_dir()


@contextmanager
def players(stage: Stage, work: Path | None = None) -> Iterator[Build]:
    """How `evaluate.engine` plays checkpoints, in this process where a rule chooses (`by_rule`); a server ends with the
    block, and its log is in `work`."""
    settings, limits = stage.params.evaluate, stage.params.rollout

    def ruled(name: str, folder: Path) -> Policy:
        from orchestra.evaluation.baselines.by_rule import RuledPolicy
        from orchestra.serving.engines.finite import FinitePolicy

        return RuledPolicy(FinitePolicy(folder, name), Codec.load(folder), limits)

    if settings.engine == "in_process" or settings.by_rule:
        if idle := torch_beside_gpu():
            stage.say(idle)
        yield ruled if settings.by_rule else in_process
        return
    folder = work or stage.work_dir()
    servers = CheckpointServers(stage.root, folder, settings.server, max_len=limits.max_tokens, say=stage.say)
    with closing(servers):
        yield servers


def contender(
    name: str, root: Path, price: Price, toolkit: Toolkit | None = None, build: Build = in_process
) -> Contender:
    """A name in `evaluate.policies` as what is measured: a checkpoint's folder in models, a registered policy, or with
    a `toolkit` a prompted model of its catalogue, whose tokens have their own price."""
    if is_checkpoint(name, root):
        return checkpoint(name, root / "models" / name, price, build)
    codec = Codec.load(root / "models" / REFERENCE)
    if name.startswith(PREFIX) and toolkit is not None:
        policy = chat_policy(name, toolkit, codec.turn)
        return Contender(name, lambda: policy, codec, toolkit.catalogue.prices[name.removeprefix(PREFIX)])
    made = POLICIES.find(name)
    return Contender(name, lambda: made(PolicyWorld(root, codec)), codec, price)


def checkpoint(name: str, folder: Path, price: Price, build: Build = in_process) -> Contender:
    """A checkpoint folder as a greedy policy with its own tokenizer and template."""
    return Contender(name, lambda: build(name, folder), Codec.load(folder), price)


def rules(
    stage: Stage,
    examples: list[Example],
    toolkit: Toolkit,
    names: Sequence[str] = (),
    train: list[Example] | None = None,
) -> list[Contender]:
    """The rule baselines that params.yaml names, or those of `names`; their own tokens are free.

    `train` is what routers learn from (default: all that was validated).
    """
    names = names or stage.params.evaluate.baselines
    needs = needed(names)  # An unknown one is an error before anything is asked.
    with phase("knowledge"):
        right = asyncio.run(who_is_right(examples, toolkit)) if "right" in needs else {}
        lessons, share = _lessons(stage, toolkit, train) if "lessons" in needs else ([], 1.0)
    knowledge = Knowledge(toolkit.catalogue, right, lessons, share, stage.params.rollout.max_turns)
    codec = Codec.load(stage.root / "models" / REFERENCE)

    def ready(name: str) -> Contender:
        return Contender(name, lambda: baseline_policy(name, knowledge, codec.turn), codec, Price())

    return [ready(name) for name in names]


def _lessons(stage: Stage, toolkit: Toolkit, train: list[Example] | None) -> tuple[list[Lesson], float]:
    """How every expert fared on the training questions, and the share of training examples that these are."""
    if train is None:
        train = read_jsonl(stage.root / "data/validated/train.jsonl", Example, fix="run the validate stage again")
    lessons = asyncio.run(take_lessons(train, toolkit, stage.params.evaluate.lessons))
    return lessons, sum(map(needs_lesson, train)) / max(1, len(train))


def data_hash(stage: Stage, examples: list[Example]) -> str:
    """Hash of all but the policy that decides a score: examples, answers, corpus, prices, domains, judge, code."""
    root, world = stage.root, stage.params.world
    catalogue = [str(file.relative_to(root)) for file in catalogue_files(root / world.catalogue)]
    files = {
        name: hash_file(root / name)
        for name in ("data/generated/answers.jsonl", "data/generated/corpus.jsonl", *catalogue, world.prices)
    }
    files |= {f"data/domains/{name}": hash_dir(root / "data/domains" / name) for name in world.domains}
    if world.judge is not None:
        files["judge"] = world.judge.model_dump_json()
    files["code"] = code_hash("score")
    return running.data_hash(examples, files, stage.params.rollout)


def on_progress(stage: Stage) -> running.OnProgress:
    meters = {}

    def said(name: str, done: int, total: int) -> None:
        if name not in meters:
            meters[name] = stage.progress(total, name)
        meters[name](done)

    return said


if __name__ == "__main__":
    run("evaluate", main)
