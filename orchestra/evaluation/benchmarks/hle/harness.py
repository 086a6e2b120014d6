"""HLE by inspect_evals itself, with the tested model behind our gateway as an OpenAI model: its code decides."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import cost_of
from orchestra.config.judge import JudgeSettings
from orchestra.errors import ConfigError, ServiceError
from orchestra.evaluation.benchmarks.base import Attempt, Step
from orchestra.evaluation.benchmarks.endpoint import check_release
from orchestra.evaluation.benchmarks.hle import inspect_worker
from orchestra.evaluation.benchmarks.models import GATEWAY_MODEL, REFERENCES, ModelSettings
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.evaluation.benchmarks.tau2.gateway import STATE, hosted
from orchestra.system.environment import foreign, required
from orchestra.text import one_line
from orchestra.tools.chat.reply import tokens_of
from orchestra.tools.experts.judging import URL
from orchestra.types import Judged, Price, Usage

PYTHON = ".venv-inspect/bin/python"
SCORER = "inspect_evals {inspect_evals}, run_configs/original.yaml, run by inspect_ai {inspect_ai}"
SCORES = {"C": True, "I": False}


@dataclass(frozen=True)
class Harnessed:
    """What inspect made of a model."""

    attempts: list[Attempt]
    figures: dict[str, float]
    """The package's own, by its names."""
    scorer: str
    """Which code decided, with its versions."""


def harnessed(evaluation: Evaluation) -> Harnessed:
    """Every question once, scored by inspect_evals. Its logs are in work/benchmarks; nothing of it is resumed.

    Raises `OrchestraError` of one line for what it cannot do, and `ServiceError` when it fails.
    """
    _check(evaluation)
    model, judge = evaluation.model, evaluation.spec.protocol.judge
    price = model.listed_price
    assert judge is not None
    python = evaluation.root / PYTHON
    if not python.is_file():
        raise ConfigError("the environment of inspect is missing", where=str(python), fix="make setup-inspect")
    with ExitStack() as stack:
        found = model.endpoint
        if found is None:
            budget = Budget(evaluation.folder / "inspect-ledger.jsonl", None, "benchmark")
            url, name = stack.enter_context(hosted(model, budget, evaluation.folder / STATE)), GATEWAY_MODEL
        else:
            url, name = found["url"], found["model"] or GATEWAY_MODEL
        asked: dict[str, Any] = {
            "files": [str(file) for file in evaluation.files],
            "url": url,
            "model": name,
            "judge_url": required(URL, tool=f"judge {judge.model}"),
            "limit": evaluation.limit,
            "log_dir": str(evaluation.folder / "inspect"),
            "concurrency": evaluation.concurrency,
        }
        *samples, last = _run(python, asked)
    _answered(samples, last, asked)
    for sample in samples:
        check_release(sample["orchestra"], model.release.version)
    attempts = [attempt_of(sample, judge, model.price_of(judge.price), price) for sample in samples]
    return Harnessed(attempts, last["figures"], SCORER.format(**last["versions"]))


def _check(evaluation: Evaluation) -> None:
    if evaluation.benchmark != "hle":
        raise ConfigError("inspect runs hle only", where="--harness", fix="leave it out: our runner decides")
    if evaluation.cap_usd is not None:
        raise ConfigError(
            "inspect books nothing, so no cap can hold", where="--cap-usd", fix="leave it or --harness out"
        )
    if evaluation.judge is not None or evaluation.trials != 1 or evaluation.only:
        what = "inspect keeps the official judge, one trial and every subject"
        raise ConfigError(what, where="--harness", fix="leave out --judge, --trials and --only")
    if evaluation.model.question_usd is not None or evaluation.model.deadline_s != ModelSettings.deadline_s:
        what = "inspect limits no question's dollars or seconds"
        raise ConfigError(what, where="--harness", fix="leave out --question-usd and --deadline")
    if evaluation.model.model in REFERENCES:
        raise ConfigError("hle has no such agent", where="--model", fix="name a model")


def _answered(samples: Sequence[Mapping[str, Any]], last: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises `ServiceError` when inspect gave up, and when no question came through: no model was measured then."""
    failures = [one_line(sample["error"])[:300] for sample in samples if sample["error"]]
    if last["status"] != "success":
        why = one_line(last.get("error") or (failures or ["it does not say why"])[-1])[:300]
        raise ServiceError(f"inspect ended with {last['status']}: {why}", where=asked["log_dir"], fix="see its log")
    if samples and len(failures) == len(samples):
        fix = f"see that it and the judge at {asked['judge_url']} answer"
        raise ServiceError(
            f"none of {len(samples)} questions came through: {failures[-1]}", where=asked["url"], fix=fix
        )


def _run(python: Path, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The worker's lines."""
    worker = str(Path(inspect_worker.__file__))
    done = subprocess.run([str(python), worker], input=json.dumps(asked), capture_output=True, text=True, env=foreign())
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or not lines:
        last = one_line((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        raise ServiceError(f"inspect failed: {last[:300]}", where=worker, fix="make setup-inspect, then run it again")
    return lines


def attempt_of(sample: Mapping[str, Any], judge: JudgeSettings, judge_price: Price, price: Price | None) -> Attempt:
    """A sample as an attempt: the score is inspect's, and one without a score is no wrong answer."""
    told, solved, answer = sample["orchestra"], SCORES.get(sample["score"]), sample["answer"]
    names = [str(call.get("name")) for call in told.get("tool_calls") or []]
    failure = ""
    if solved is None:
        failure = one_line(sample["error"] or "the judge's reply cannot be read")[:500]
    spent = Decimal(str(told.get("cost_usd") or 0)) if price is None else cost_of(price, tokens_of(sample) or Usage())
    return Attempt(
        item=sample["id"],
        trial=0,
        group=sample["group"],
        answer=answer,
        stop=str(told.get("stop") or "answered"),
        solved=solved,
        why="" if solved is None else "right" if solved else "wrong answer",
        failure=failure,
        cost_usd=spent,
        latency_s=round(float(told.get("latency_s") or sample["seconds"]), 6),
        calls={name: names.count(name) for name in sorted(set(names))},
        simulated=bool(told.get("simulated")),
        steps=(Step(text=answer or ""),),
        judged=_judged(sample, solved, judge, judge_price),
    )


def _judged(sample: Mapping[str, Any], solved: bool | None, judge: JudgeSettings, price: Price) -> Judged | None:
    if solved is None or not sample["reply"]:
        return None
    return Judged(
        judge=judge.model,
        rubric=judge.rubric,
        prompt=sample["prompt"],
        reply=sample["reply"],
        cost_usd=cost_of(price, tokens_of({"usage": sample["judge_usage"]}) or Usage()),
        solved=solved,
        extracted=sample["extracted"],
        confidence=sample["confidence"],
    )
