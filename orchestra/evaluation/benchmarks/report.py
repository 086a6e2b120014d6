"""What an evaluation found: figures, failures, the protocol, and a table with every evaluation beside the others."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from orchestra.errors import DataError
from orchestra.evaluation.benchmarks.agreement import Agreement
from orchestra.evaluation.benchmarks.base import Attempt, Benchmark, Protocol, by_group
from orchestra.files import atomic
from orchestra.files.jsonl import write_jsonl
from orchestra.statistics.intervals import Interval, mean_interval
from orchestra.statistics.trials import PassRates, pass_rates
from orchestra.text import aligned
from orchestra.types import Record, add_up

REPORTS = "reports/benchmarks"
RESAMPLES, SEED = 1000, 0
"""Behind each interval."""
MOST_FAILED = 0.01
"""Share of the attempts that a whole result may lack a verdict on: HLE's judge, asked once, may be unreadable."""
PART = "accuracy/"
"""How the name of a subject's or a kind's accuracy begins."""
SUMMARY, ATTEMPTS, FAILURES, PROTOCOL = "summary.json", "attempts.jsonl", "failures.jsonl", "protocol.yaml"


class Summary(Record):
    """One model on one benchmark; what a page shows of it."""

    benchmark: str
    protocol_version: str
    split: str
    model: str
    identity: str
    """Digest of what decided the answers: checkpoint or model, world, limits, questions, judge."""
    variant: str = Field(default="", exclude_if=lambda name: not name)
    """What sets it apart from the protocol's evaluation of this model: a part, other trials, another judge or user."""
    checkpoint: str = ""
    """Hash of the checkpoint; empty for an endpoint."""
    judge: str | None
    """The model that judged; None where rules did."""
    protocol_judge: str | None = Field(default=None, exclude_if=lambda name: name is None)
    """The protocol's judge, where another one judged: no published figure is comparable."""
    data_sha256: dict[str, str]
    """Of each file of questions, by its name."""
    questions: int
    whole: bool
    """Whether that is all that the protocol asks, with a verdict on nearly all: only such figures are comparable."""
    trials: int
    scored: int
    """Attempts with a verdict."""
    failures: int
    """Attempts without one; never counted as wrong in `accuracy`."""
    accuracy: float | None
    """Share solved of those with a verdict, the mean over the questions: pass@1 over the trials."""
    interval: Interval | None
    """Of the accuracy, over questions with their trials."""
    rates: tuple[PassRates, ...]
    """pass^k and pass@k over the trials; empty for one."""
    groups: dict[str, float]
    """Accuracy by subject or kind."""
    cost_usd: Decimal
    """Dollars of an attempt, on average; judges and simulated users are apart."""
    latency_s: float
    calls: dict[str, int]
    judge_usd: Decimal
    simulated: bool
    """Whether simulated experts took part."""
    figures: dict[str, float]
    """The benchmark's own."""
    agreement: Agreement | None = None

    @property
    def name(self) -> str:
        """That of its folder: two results of one model have two."""
        return "-".join(filter(None, (self.model, self.variant)))


def verdicts(attempts: Sequence[Attempt]) -> dict[str, list[bool]]:
    """Verdicts by question; attempts without one are left out."""
    found: dict[str, list[bool]] = {}
    for attempt in attempts:
        if attempt.solved is not None:
            found.setdefault(attempt.item, []).append(attempt.solved)
    return found


def means(attempts: Sequence[Attempt]) -> list[float]:
    """Share solved of each question's trials with a verdict."""
    return [sum(some) / len(some) for some in verdicts(attempts).values()]


def interval(attempts: Sequence[Attempt]) -> Interval | None:
    """The interval of the accuracy: questions are drawn again with all of their trials. None without verdicts."""
    found = means(attempts)
    return mean_interval(found, RESAMPLES, SEED) if found else None


def share(attempts: Sequence[Attempt]) -> float | None:
    """Share solved of the attempts with a verdict, each question as much as another; None where there is none."""
    found = means(attempts)
    return sum(found) / len(found) if found else None


def summarise(
    spec: Benchmark,
    attempts: Sequence[Attempt],
    *,
    model: str,
    identity: str,
    judge: str | None,
    data_sha256: Mapping[str, str],
    questions: int,
    there: int,
    trials: int,
    checkpoint: str = "",
    agreement: Agreement | None = None,
    user: str = "model",
    variant: str = "",
    own_data: bool = True,
) -> Summary:
    """The figures over all attempts.

    `there` is the number of questions that the files hold, `user` what plays it. `own_data`: whether the files are
    those that the protocol is about.
    """
    protocol, count = spec.protocol, max(1, len(attempts))
    named = None if protocol.judge is None else protocol.judge.model
    official = judge == named and user == "model" and own_data
    failures = sum(attempt.solved is None for attempt in attempts)
    calls: dict[str, int] = {}
    for attempt in attempts:
        for name, number in attempt.calls.items():
            calls[name] = calls.get(name, 0) + number
    groups = {name: found for name, some in by_group(attempts).items() if name and (found := share(some)) is not None}
    return Summary(
        benchmark=protocol.benchmark,
        protocol_version=protocol.version,
        split=protocol.split,
        model=model,
        identity=identity,
        variant=variant,
        checkpoint=checkpoint,
        judge=judge,
        protocol_judge=None if judge == named else named,
        data_sha256=dict(data_sha256),
        questions=questions,
        whole=official
        and questions == there == (protocol.questions or there)
        and trials >= protocol.trials
        and failures <= MOST_FAILED * questions * trials,
        trials=trials,
        scored=sum(attempt.solved is not None for attempt in attempts),
        failures=failures,
        accuracy=share(attempts),
        interval=interval(attempts),
        rates=pass_rates(verdicts(attempts), RESAMPLES, SEED),
        groups=groups,
        cost_usd=add_up(attempt.cost_usd for attempt in attempts) / count,
        latency_s=round(sum(attempt.latency_s for attempt in attempts) / count, 6),
        calls=dict(sorted(calls.items())),
        judge_usd=add_up(attempt.judged.cost_usd for attempt in attempts if attempt.judged is not None),
        simulated=any(attempt.simulated for attempt in attempts),
        figures=spec.figures(attempts, questions),
        agreement=agreement,
    )


def write(folder: Path, summary: Summary, protocol: Protocol, attempts: Sequence[Attempt]) -> None:
    """Every file of a result, whole or none: the summary, attempts, failures and the protocol."""
    failed = [attempt for attempt in attempts if attempt.solved is None]
    with atomic.whole_folder(folder) as made:
        (made / SUMMARY).write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (made / PROTOCOL).write_text(yaml.safe_dump(protocol.model_dump(mode="json"), sort_keys=False))
        for name, some in ((ATTEMPTS, attempts), (FAILURES, failed)):
            write_jsonl(made / name, some)


def results(root: Path) -> list[Summary]:
    """Every result of a workspace, by benchmark and model; raises `DataError` for a file that is damaged."""
    found = []
    for file in sorted((root / REPORTS).glob(f"*/*/{SUMMARY}")):
        try:
            found.append(Summary.model_validate_json(file.read_text(encoding="utf-8")))
        except (ValidationError, UnicodeDecodeError):
            raise DataError("not a summary", where=str(file), fix="run the evaluation again") from None
    return found


def metrics(summary: Summary) -> dict[str, float]:
    """The numbers for a tracking server, by name; with the accuracy its interval and, by subject or kind, its parts."""
    told: dict[str, Any] = {"accuracy": summary.accuracy, "cost_usd": summary.cost_usd, "latency_s": summary.latency_s}
    told |= {"scored": summary.scored, "failures": summary.failures, "judge_usd": summary.judge_usd}
    told |= {f"pass_all_{rate.k}": rate.all.value for rate in summary.rates}
    told |= {f"pass_any_{rate.k}": rate.any.value for rate in summary.rates}
    if summary.interval is not None:
        told |= {"accuracy_low": summary.interval.low, "accuracy_high": summary.interval.high}
    if not any(name.startswith(PART) for name in summary.figures):
        told |= {f"{PART}{group}": value for group, value in summary.groups.items()}
    told |= summary.figures
    if summary.agreement is not None:
        told["kappa"] = summary.agreement.kappa
    return {name: float(value) for name, value in told.items() if value is not None}


def table(summaries: Sequence[Summary]) -> list[str]:
    """Results as lines, one below the other."""
    rows = [("benchmark", "model", "questions", "accuracy", "dollars", "seconds", "failures", "whole")]
    for one in summaries:
        accuracy = "-" if one.accuracy is None else f"{one.accuracy:.1%}"
        counted = f"{one.questions} x {one.trials}"
        made = (one.benchmark, one.name, counted, accuracy, f"{one.cost_usd:.4f}", f"{one.latency_s:.1f}")
        rows.append((*made, str(one.failures), "yes" if one.whole else "no"))
    return [
        *aligned(rows),
        *(f"{one.benchmark} {one.model}: {told}" for one in summaries if (told := other_judge(one))),
    ]


def other_judge(summary: Summary) -> str:
    """A sentence where another judge than the protocol's decided; empty where it did."""
    if summary.protocol_judge is None:
        return ""
    return f"the verdicts are by {summary.judge}, not by the protocol's judge {summary.protocol_judge}"
