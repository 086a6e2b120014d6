"""The map of what flows: from an example, through an episode, to a verdict.

Example ──(rollout.loop)──> Episode(turns, charges, verdict) ──(rewards.group)──> Reward
"""

from collections import Counter
from collections.abc import Iterable
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from enum import StrEnum
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Usd = Annotated[Decimal, Field(ge=0, le=10**15, allow_inf_nan=False)]
"""Dollars, exact; written to JSON as a string so that nothing is lost."""
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Seconds of one call. An infinite one would give every other episode of its group the highest advantage."""
EXACT = Context(prec=200, traps=[Inexact, InvalidOperation, Overflow])
"""Arithmetic of dollars: wide enough that nothing is rounded, and an error where it would have to be."""
Split = Literal["train", "heldout"]
"""A part of the data set; no entity and no wording of a preference is in two."""
SPLITS: tuple[Split, ...] = get_args(Split)


def _unset(value: object) -> bool:
    """Fields added later are written only where they say something, so that rows without them keep their bytes."""
    return value is None or value == () or value == "" or value == {}


def add_up(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum: parts in any order and grouping make the same total."""
    total = Decimal(0)
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total


class Record(BaseModel):
    """Immutable data; unknown keys, infinities and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ToolKind(StrEnum):
    BASIC = "basic"
    """Search, calculator, sandbox."""
    EXPERT = "expert"
    """A tool that is a language model."""
    DOMAIN = "domain"
    """A function of a domain, over its own database."""


class Category(StrEnum):
    """Kind of task that an example asks for; the report has a row for each."""

    ARITHMETIC = "arithmetic"
    FACT = "fact"
    TWO_HOP = "two_hop"
    TOPIC = "topic"
    LOOKUP = "lookup"
    CHANGE = "change"
    DIRECT = "direct"
    """What everybody knows: no tool is needed."""


class Price(Record):
    """The price of a tool. All in US dollars."""

    input_per_million: Usd = Decimal(0)
    cached_input_per_million: Usd | None = None
    """None: cached input costs what fresh input costs."""
    output_per_million: Usd = Decimal(0)
    per_call: Usd = Decimal(0)
    per_second: Usd = Decimal(0)


class Usage(Record):
    """Tokens of one model call; `cached_input_tokens` is the part of `input_tokens` read from a cache."""

    input_tokens: int = Field(default=0, ge=0)
    cached_input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)


class ToolSpec(Record):
    """One tool as offered to one example, e.g. `gpt-5` at $0.021 a call, 96 s."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The name the model sees and calls."""
    tool: str
    """The catalogue entry (or `domain:<domain>/<tool>`) behind the name; differs from it when renamed."""
    kind: ToolKind
    description: str
    parameters: dict[str, JsonValue]
    """JSON schema of the arguments object, as in the OpenAI tools array."""
    price: Price
    call_usd: Usd
    """Expected dollars of one call under `price`: what the model is shown."""
    latency_s: Seconds
    """Expected seconds of one call: what the model is shown."""


class Preference(Record):
    """The preference of a user, in words and as the vector P of Eq. 2; every weight is within [0, 1]."""

    kind: str
    """The grammar rule or source: neutral, cheap, fast, accurate, prefer, avoid, …"""
    words: str
    """Appended to the instruction; empty for neutral."""
    outcome: float = Field(ge=0, le=1)
    compute: float = Field(ge=0, le=1)
    latency: float = Field(ge=0, le=1)
    tools: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Weight by shown tool name; a tool not named weighs 0."""
    weights: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict, exclude_if=_unset)
    """Weights of further reward parts, by the name that `orchestra.rewards.parts` declares beside each part."""


class ToolCall(Record):
    """A parsed call, e.g. `calculator({"expression": "37*24"})`."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class Message(Record):
    """One message of a conversation, as the chat template renders it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Verifier(Record):
    """How a verdict is reached."""

    kind: Literal["exact", "numeric", "database", "judge"]
    answer: str | None = None
    """The expected answer (exact, numeric, judge)."""
    tolerance: float = Field(default=0.0, ge=0)
    golden_calls: tuple[ToolCall, ...] = ()
    """A known solution, by shown names: domain calls are replayed on a fresh copy to know the golden contents; other
    calls show a teacher the way. Empty for topic questions, which only experts can answer."""
    communicate: tuple[str, ...] = ()
    """Information that the final answer must mention (database)."""


class Provenance(Record):
    source: str
    licence: str
    generator: str
    seed: int
    parent: str | None = None
    """Id of the example that this one was evolved from; two are joined by `+`."""
    prompts: tuple[str, ...] = Field(default=(), exclude_if=_unset)
    """sha256 of every prompt that a model was given to write it; the offline generator uses none."""


class User(Record):
    """What a simulated user knows and will say when asked, e.g. `{"reader": "Brin"}`; see `orchestra.rollout.users`."""

    facts: dict[str, str] = Field(min_length=1)
    """By the word that a question must use to learn it."""
    max_replies: int = Field(default=3, ge=1)
    """After so many replies the user ends the talk: the next answer is the last, be it a question."""
    rules: tuple[str, ...] = Field(default=(), exclude_if=_unset)
    """How the user behaves, each in a sentence; a model that plays the user is told, the script keeps to the facts."""


def asked(instruction: str, user: User | None) -> str:
    """The request with the facts that only the user knows: one wording is two requests where the users differ."""
    return instruction if user is None else "; ".join([instruction, *map(" ".join, user.facts.items())])


class Example(Record):
    """One item to solve."""

    id: str
    kind: Literal["question", "domain"]
    category: Category
    instruction: str
    domain: str | None = None
    toolbox: tuple[ToolSpec, ...]
    preference: Preference
    verifier: Verifier
    entities: tuple[str, ...] = ()
    """The entities of the example; no entity is both in training and held out."""
    topic: str | None = None
    """Subject of a topic question. Never rendered for the policy; reports group by it."""
    hard: bool = False
    """Whether small experts often fail at the topic question. Never rendered either."""
    provenance: Provenance
    user: User | None = Field(default=None, exclude_if=_unset)
    """The user who answers the policy's questions; None: no user, so every text is an answer. Never rendered."""
    difficulty: float | None = Field(default=None, ge=0, le=1, exclude_if=_unset)
    """Share of its tries that a solver solved: 1 is easy, 0 was never solved, None is not measured."""
    budget_usd: Usd | None = Field(default=None, exclude_if=_unset)
    """Dollars that an attempt may spend. The policy is told; the loop keeps to it, and spending more is not solving."""
    price_date: date | None = Field(default=None, exclude_if=_unset)
    """The day whose list prices its toolbox started from, where `synthesize.price_dates` names several."""
    query: str = Field(default="", exclude_if=_unset)
    """What a search for the answer of a topic question would ask; there may be no record. Never rendered."""

    @property
    def experts(self) -> list[ToolSpec]:
        """The experts of its toolbox, in order."""
        return [spec for spec in self.toolbox if spec.kind is ToolKind.EXPERT]

    @property
    def asked(self) -> str:
        """What tells it from other examples: the instruction, and what only its user knows."""
        return asked(self.instruction, self.user)

    @property
    def needs_expert(self) -> bool:
        """Whether nothing but an expert, or luck, answers it."""
        return not self.verifier.golden_calls and self.category is not Category.DIRECT


class StopReason(StrEnum):
    ANSWERED = "answered"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    MALFORMED = "malformed"
    BUDGET = "budget"
    TOOL_FAILURE = "tool_failure"
    """Infrastructure: left out of rewards and rates, and counted."""
    CANCELLED = "cancelled"
    HANDED_OVER = "handed_over"
    """It calls a tool of the caller, who makes the call and asks again with its result. Serving only."""
    TIME_LIMIT = "time_limit"
    """The caller's seconds by the clock were over. Serving only."""


class Component(StrEnum):
    """The part of an episode that spent."""

    POLICY = "policy"
    EXPERT = "expert"
    SEARCH = "search"
    SANDBOX = "sandbox"
    DOMAIN = "domain"
    JUDGE = "judge"
    USER = "user_simulator"
    MCP = "mcp"
    """A tool of an MCP server."""
    GENERATOR = "generator"
    """A model that writes examples and domains."""


class Charge(Record):
    """One entry of the ledger."""

    component: Component
    name: str
    """The tool's shown name, or `policy`."""
    usage: Usage = Usage()
    cost_usd: Usd = Decimal(0)
    latency_s: Seconds = 0.0
    simulated: bool = False
    phase: str = Field(default="", exclude_if=_unset)
    """In a ledger: when it was spent, such as `evaluate/sft`: the stage, what within it, the policy."""


class Turn(Record):
    """One turn: what the policy wrote, and what came back."""

    ids: tuple[int, ...]
    """Tokens the policy produced, its stop token included; the only ones that training touches."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each of `ids` under the policy that sampled it; empty when unknown."""
    text: str
    call: ToolCall | None = None
    parse_error: str | None = None
    observation: str | None = None
    observation_ids: tuple[int, ...] = ()
    """Tokens that the environment appended after `ids` (never trained on)."""
    charges: tuple[Charge, ...] = ()


class Judged(Record):
    """A model's verdict on one answer, with what it was asked and what it said."""

    judge: str
    """The model, as its endpoint names it."""
    rubric: str
    prompt: str
    reply: str
    cost_usd: Usd = Decimal(0)
    solved: bool
    extracted: str | None = None
    """The final answer that the judge found in the response."""
    confidence: int | None = None
    """Percent, as the response states it."""


class Verdict(Record):
    solved: bool
    why: str
    judged: Judged | None = Field(default=None, exclude_if=_unset)
    """Where a model decided. Its dollars are the measurement's, so no part of the episode's."""


class Episode(Record):
    """One attempt at an example; one line of an episodes file."""

    example_id: str
    policy: str
    sample: int = 0
    """Index within the group of this example's episodes."""
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    answer: str | None = None
    verdict: Verdict | None = None
    """None when unknown (infrastructure failed)."""
    simulated: bool = False
    """True when any simulated expert took part."""

    @property
    def completion_ids(self) -> list[int]:
        """Everything after the prompt: (time,)."""
        return [i for turn in self.turns for i in (*turn.ids, *turn.observation_ids)]

    @property
    def mask(self) -> list[int]:
        """1 where the policy produced the token of `completion_ids`: (time,)."""
        return [m for t in self.turns for m in ([1] * len(t.ids) + [0] * len(t.observation_ids))]

    @property
    def well_formed(self) -> bool:
        """The format and invalid-output filters: every turn parsed, and there is an answer."""
        return self.answer is not None and all(turn.parse_error is None for turn in self.turns)

    @property
    def charges(self) -> list[Charge]:
        return [charge for turn in self.turns for charge in turn.charges]

    @property
    def cost_usd(self) -> Decimal:
        return add_up(charge.cost_usd for charge in self.charges)

    @property
    def latency_s(self) -> float:
        return sum(charge.latency_s for charge in self.charges)

    @property
    def tool_counts(self) -> dict[str, int]:
        """Calls that ran, by shown tool name. A call refused before it ran cost nothing and counts for nothing."""
        ran = (turn for turn in self.turns if any(charge.component is not Component.POLICY for charge in turn.charges))
        return dict(Counter(turn.call.name for turn in ran if turn.call is not None))

    @property
    def solved(self) -> bool:
        return self.verdict is not None and self.verdict.solved

    @property
    def counted(self) -> bool:
        """Whether rewards and rates may use it: infrastructure failures are left out, never scored 0."""
        return self.verdict is not None
