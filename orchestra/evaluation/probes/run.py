"""Runs every probe of one policy; a killed run continues."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestra.config.schema import Rollout
from orchestra.errors import DataError
from orchestra.evaluation.baselines.base import STRONGEST, baseline_policy
from orchestra.evaluation.baselines.knowledge import Knowledge
from orchestra.evaluation.outcomes import outcome
from orchestra.evaluation.probes.base import PROBES, Variant, variants
from orchestra.evaluation.probes.trials import ProbeResults, Trial
from orchestra.evaluation.probes.wording import QUESTION
from orchestra.evaluation.run import Contender, OnProgress, evaluate
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, Price, Record


def run_probes(
    contender: Contender,
    examples: Sequence[Example],
    toolkit: Toolkit,
    limits: Rollout,
    *,
    price_spread: float,
    seed: int,
    count: int,
    file: Path,
    on_progress: OnProgress | None = None,
    wording: Mapping[str, Sequence[str]] | None = None,
) -> ProbeResults:
    """Every probe of one policy on the first `count` topic examples of `examples` (about 15 episodes each).

    `file` collects episodes as in `run.evaluate`, so a killed run continues; keep it in a folder of that checkpoint.
    `price_spread` is that of the profile's synthesize section, `wording` sentences by kind (`read_wording`). Raises
    `DataError` when there is no topic example.
    """
    chosen = [example for example in examples if example.category is Category.TOPIC and example.experts][:count]
    if not chosen:
        raise DataError("no topic example to probe with", where="run_probes", fix="raise evaluate.examples")
    made = variants(chosen, toolkit.catalogue, spread=price_spread, seed=seed, wording=wording)
    toolkit.book.know_also(_asked_otherwise(chosen, made))
    trials = _play(contender, made, toolkit, limits, file, on_progress)
    knowledge = Knowledge(toolkit.catalogue, max_turns=limits.max_turns)
    codec = contender.codec
    rival = Contender(STRONGEST, lambda: baseline_policy(STRONGEST, knowledge, codec.turn), codec, Price())
    shared = [variant for variant in made if variant.name == PROBES[variant.probe].rival_on]
    beside = file.with_name(f"{file.stem}_{STRONGEST}{file.suffix}")
    strongest = _play(rival, shared, toolkit, limits, beside, on_progress)
    return ProbeResults(trials=(*trials, *(trial.model_copy(update={"variant": "strongest"}) for trial in strongest)))


def _asked_otherwise(examples: Sequence[Example], made: Sequence[Variant]) -> Iterator[tuple[str, str]]:
    """A question and its other wording, for every variant that has one."""
    asked = {example.id: example.instruction for example in examples}
    for variant in made:
        if variant.example.instruction != asked[variant.of]:
            yield asked[variant.of], variant.example.instruction


class Sentence(Record):
    """A line of wishes.jsonl."""

    kind: str
    words: str


class Form(Record):
    """A line of questions.jsonl: `{a}`, `{t}` and `{x}` stand for what is asked, the kind of thing and its name."""

    template: str


def read_wording(folder: Path) -> dict[str, list[str]]:
    """Sentences by kind of preference, where `{x}` stands for an expert's name, and forms of questions under
    `QUESTION`. Raises `DataError`."""
    fix = "name a folder with wishes.jsonl and questions.jsonl in evaluate.wording"
    found: dict[str, list[str]] = {}
    for sentence in read_jsonl(folder / "wishes.jsonl", Sentence, fix=fix):
        found.setdefault(sentence.kind, []).append(sentence.words)
    found[QUESTION] = [form.template for form in read_jsonl(folder / "questions.jsonl", Form, fix=fix)]
    return found


def _play(
    contender: Contender,
    made: Sequence[Variant],
    toolkit: Toolkit,
    limits: Rollout,
    file: Path,
    on_progress: OnProgress | None,
) -> list[Trial]:
    played = evaluate([contender], [v.example for v in made], toolkit, limits, file=file, on_progress=on_progress)
    return [
        Trial(
            probe=variant.probe,
            variant=variant.name,
            example_id=variant.of,
            tool=variant.tool,
            outcome=outcome(episode, variant.example),
        )
        for variant, episode in zip(made, played[contender.name], strict=True)
    ]
