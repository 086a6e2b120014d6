"""What a benchmark is: its protocol, its questions, the attempts at them, and the figures over those."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from pydantic import Field, JsonValue, ValidationError

from orchestra.config.judge import JudgeSettings
from orchestra.errors import ConfigError
from orchestra.files.tables import problem
from orchestra.files.yaml import load_yaml
from orchestra.register import Register
from orchestra.rewards.rubrics import rubric
from orchestra.types import Example, Judged, Message, Record, Seconds, ToolCall, Usd


class Source(Record):
    """Where the published data are; none of them is shipped."""

    name: str
    """On the hub: cais/hle."""
    files: tuple[str, ...]
    """Of that repository."""
    revision: str
    """The commit or tag that is fetched."""
    licence: str
    rows: int
    """As published; a whole evaluation needs as many."""
    gated: bool = False
    """Whether the hub asks for the user's token."""


class Protocol(Record):
    """protocol.yaml: everything that must be equal for two figures to be comparable."""

    benchmark: str
    version: str
    """Of this protocol: figures of another version are not comparable."""
    source: Source | None = None
    split: str
    questions: int | None = None
    """How many a whole evaluation asks; None: as many as the file holds."""
    trials: int = 1
    """The official number."""
    max_output_tokens: int = 16_384
    """Of one answer of a chat endpoint."""
    judge: JudgeSettings | None = None
    second_judge: JudgeSettings | None = None
    """Judges a sample again, for the agreement."""
    prompt_sha256: str = ""
    """Of the judge's prompt."""
    scorer: str
    """Which code decides the score, and what it was compared with."""
    notes: tuple[str, ...] = ()
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """The benchmark's own."""

    @classmethod
    def load(cls, path: Path) -> "Protocol":
        """Raises `ConfigError` of one line, also when a prompt is not the one that is named."""
        try:
            protocol = cls.model_validate(load_yaml(path, if_missing="install the package again"))
        except ValidationError as error:
            raise ConfigError(problem(error), where=str(path), fix="fix that key") from None
        if protocol.judge is not None and rubric(protocol.judge.rubric).sha256 != protocol.prompt_sha256:
            fix = f"write prompt_sha256: {rubric(protocol.judge.rubric).sha256}, and raise the protocol's version"
            raise ConfigError("the judge's prompt is another one", where=str(path), fix=fix)
        return protocol


class Question(Record):
    """One item."""

    id: str
    messages: tuple[Message, ...]
    """What the model is sent."""
    question: str
    """What a judge is told was asked."""
    answer: str = ""
    """The reference answer."""
    group: str = ""
    """Subject or kind: the report has a row for each."""
    example: Example | None = None
    """Where the item is one of ours, with its own tools and prices."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)


class Step(Record):
    """One turn of an attempt, for people to read."""

    text: str = ""
    call: ToolCall | None = None
    observation: str | None = None


class Attempt(Record):
    """One attempt at one question: a line of attempts.jsonl. It holds no clock time."""

    item: str
    trial: int
    group: str = ""
    answer: str | None = None
    stop: str = ""
    solved: bool | None = None
    """None: not known, since something failed; never a score of 0."""
    why: str = ""
    failure: str = ""
    """What failed, where `solved` is None."""
    cost_usd: Usd = Decimal(0)
    """Dollars of the attempt, experts included; those of judges and simulated users are apart."""
    latency_s: Seconds = 0.0
    calls: dict[str, int] = Field(default_factory=dict)
    """Calls that ran, by the tool's name."""
    simulated: bool = False
    steps: tuple[Step, ...] = ()
    judged: Judged | None = None
    details: dict[str, JsonValue] = Field(default_factory=dict)
    """What the benchmark's own scorer says."""

    @property
    def unjudged(self) -> bool:
        """Whether only its verdict is missing, because a cap came before the judge."""
        return self.solved is None and not self.failure


Figures = dict[str, float]
Load = Callable[[Sequence[Path]], list[Question]]
Summarise = Callable[[Sequence[Attempt], int], Figures]


def no_figures(attempts: Sequence[Attempt], questions: int) -> Figures:
    """For benchmarks without figures of their own."""
    del attempts, questions
    return {}


@dataclass(frozen=True)
class Benchmark:
    """One benchmark; its folder holds its loader, its protocol.yaml and its scorer."""

    protocol: Protocol
    load: Load
    """The questions of the published files; raises `DataError` naming file, line and field."""
    figures: Summarise = no_figures
    """Figures of its own over the attempts and the number of questions, besides those that all have."""
    play: str = ""
    """`module:function` that opens the model where attempts are more than answers: called with the evaluation, the
    budget and the cassette."""


BENCHMARKS: Register[Benchmark] = Register("benchmark", "orchestra.evaluation.benchmarks", "--benchmark")


def add_benchmark(
    package: str, protocol: Path, load: Load, figures: Summarise = no_figures, play: str = ""
) -> Benchmark:
    """Register the benchmark of a protocol.yaml, which is read at once."""
    made = Benchmark(Protocol.load(protocol), load, figures, play)
    BENCHMARKS.add(made.protocol.benchmark, made, package)
    return made


def by_group(attempts: Sequence[Attempt]) -> Mapping[str, list[Attempt]]:
    """Attempts by their question's group, in the order of their first ones."""
    groups: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault(attempt.group, []).append(attempt)
    return groups
