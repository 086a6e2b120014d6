"""What is measured: a checkpoint through the one loop, or any chat endpoint, a gateway of ours among them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Params
from orchestra.errors import ConfigError, DataError
from orchestra.evaluation.benchmarks.base import Attempt, Question, Step
from orchestra.evaluation.benchmarks.endpoint import SPENT, EndpointModel
from orchestra.evaluation.benchmarks.served import ANY, Served, served
from orchestra.files.checkpoint import hash_dir
from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.synthesis.preferences.sentences import NEUTRAL
from orchestra.system.code_hash import code_hash
from orchestra.tools.catalogue.catalogue import CatalogueFile, read_catalogue
from orchestra.tools.catalogue.entry import own_temperature
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.judging import REASONING
from orchestra.tools.rate_limits import RateLimiter, limiter_of
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Episode, Example, Price, Provenance, StopReason, Verifier

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Policy
    from orchestra.rollout.render import Codec

KEY = "ORCHESTRA_MODEL_KEY"
"""Environment variable of a chat endpoint's key, where it needs one."""
ENDPOINT = re.compile(r"(?:(?P<model>[^@\s]+)@)?(?P<url>https?://\S+)")
"""`MODEL@http://host/v1`; without a model it is one of our gateways."""
GATEWAY_MODEL = "orchestrator"
REFERENCES = ("golden", "idle")
"""In place of a model, where a benchmark has them: the known solution, and an agent that does nothing."""
UNSCORED = frozenset({StopReason.TOOL_FAILURE, StopReason.CANCELLED})


class TestedModel(Protocol):
    """Answers questions."""

    @property
    def name(self) -> str: ...

    async def attempt(self, question: Question, trial: int) -> Attempt:
        """One attempt, its verdict open unless a rule of ours decides; raises `OrchestraError` when none is made."""
        ...

    async def aclose(self) -> None:
        """Close what it holds open."""
        ...


@dataclass(frozen=True)
class CheckpointModel:
    """A checkpoint in this process, one attempt at a time and greedy: how many run beside it changes no byte."""

    name: str
    folder: Path
    params: Params
    policy: Policy
    codec: Codec
    toolkit: Toolkit
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def load(cls, folder: Path, params: Params, root: Path, budget: Budget) -> Self:
        """Raises `OrchestraError` when the folder holds no checkpoint."""
        from orchestra.rollout.policies.transformers import TransformersPolicy
        from orchestra.rollout.render import Codec

        toolkit = Toolkit.from_params(params, root, budget=budget)
        policy = TransformersPolicy(folder, name=folder.name)
        return cls(folder.name, folder, params, policy, Codec.load(folder), toolkit)

    async def attempt(self, question: Question, trial: int) -> Attempt:
        example, prompts = question.example, None
        if example is None:
            example = self._example(question)
            words = example.preference.words
            prompts = [self.codec.messages_prompt(question.messages, example.toolbox, words)]
        price = self.toolkit.catalogue.policy_price
        options = RolloutOptions(self.params.rollout, price, judge=question.example is not None, prompts=prompts)
        async with self._turn:
            (episode,) = await run_episodes([example], self.policy, self.codec, self.toolkit, options)
        return of_episode(episode, question, trial)

    async def aclose(self) -> None:
        await self.toolkit.aclose()

    def _example(self, question: Question) -> Example:
        """The question with the tools that the gateway would offer."""
        from orchestra.serving.toolbox import toolbox

        specs = toolbox(self.toolkit, question.question, None, self.params.synthesize.experts_per_toolbox[True])
        return Example(
            id=question.id,
            kind="question",
            category=Category.TOPIC,
            instruction=question.question,
            toolbox=specs,
            preference=NEUTRAL,
            verifier=Verifier(kind="judge", answer=question.answer),
            provenance=Provenance(source="benchmark", licence="the benchmark's", generator="benchmark", seed=0),
        )


def of_episode(episode: Episode, question: Question, trial: int) -> Attempt:
    """An episode as an attempt: without token ids, which a report does not need."""
    verdict = episode.verdict
    failed = episode.stop in UNSCORED or (question.example is not None and verdict is None)
    return Attempt(
        item=question.id,
        trial=trial,
        group=question.group,
        answer=episode.answer,
        stop=episode.stop.value,
        solved=None if verdict is None else verdict.solved,
        why="" if verdict is None else verdict.why,
        failure=(episode.stop.value if episode.stop in UNSCORED else "no verdict") if failed else "",
        cost_usd=episode.cost_usd,
        latency_s=round(episode.latency_s, 6),
        calls=episode.tool_counts,
        simulated=episode.simulated,
        steps=tuple(Step(text=turn.text, call=turn.call, observation=turn.observation) for turn in episode.turns),
        judged=None if verdict is None else verdict.judged,
    )


@dataclass(frozen=True)
class ModelSettings:
    """How a model is found by its name; it can be sent to another process."""

    root: Path
    params: Params
    model: str
    """A checkpoint's folder, or `MODEL@URL`, or a gateway's URL."""
    price: str | None = None
    """A plain endpoint's row of the price book."""
    question_usd: Decimal | None = None
    max_tokens: int = 16_384
    deadline_s: float = 3600.0
    """Of an endpoint's answer, its tries together. One expert behind a gateway may take 600 s."""
    named: str = ""
    """What reports call it, where its folder's name says less: version-3."""
    tape: tuple[Mode, str] | None = None
    """Mode and file of a cassette; None: what ORCHESTRA_CASSETTE names."""

    @property
    def endpoint(self) -> re.Match[str] | None:
        return ENDPOINT.fullmatch(self.model)

    @cached_property
    def identity(self) -> str:
        """Everything that decides its answers, as far as it is known here."""
        found = self.endpoint
        if self.model in REFERENCES:
            return self.model
        if found is not None:
            # Not the address: a model has its name, and a gateway says what it serves.
            name = found["model"] or f"gateway/{self.release.fingerprint}"
            price = "" if self.price is None else self.price_of(self.price).model_dump_json()
            return f"{name}/{self.price}/{price}/{self._limit}/{self.max_tokens}"
        from orchestra.serving.releases.state import serving_fingerprint

        served = serving_fingerprint(self.root, self.checkpoint_hash, "in_process", self.params)
        return f"{served}/{code_hash('gateway')}"

    @cached_property
    def release(self) -> Served:
        """Of a gateway: asked once, also for the processes that this is sent to. Raises `ServiceError`."""
        found = self.endpoint
        return ANY if found is None or found["model"] else served(found["url"], self.cassette())

    def cassette(self) -> Cassette | None:
        """What records or replays an evaluation, read again at each call; None: nothing does."""
        return Cassette.from_environment() if self.tape is None else Cassette(Path(self.tape[1]), self.tape[0])

    @cached_property
    def checkpoint_hash(self) -> str:
        """Empty for an endpoint and for a reference; raises `DataError` where there is no checkpoint."""
        return "" if self.endpoint is not None or self.model in REFERENCES else hash_dir(self.checkpoint)

    @property
    def label(self) -> str:
        """What reports call it."""
        found, name = self.endpoint, self.named or self.model
        if found is not None:
            name = found["model"] or self.release.name
        return file_name(name)

    @property
    def terms(self) -> tuple[str, ...]:
        """The price and the limit of dollars that an endpoint is measured with."""
        limit = () if self.question_usd is None else (f"{self._limit}-usd",)
        return limit if self.price is None else (self.price, *limit)

    @property
    def _limit(self) -> str:
        """`question_usd` as it is written shortest: 0.50 is 0.5."""
        return "None" if self.question_usd is None else f"{self.question_usd.normalize():f}"

    @property
    def checkpoint(self) -> Path:
        """Raises `DataError` where there is none."""
        folder = self.root / self.model
        if not (folder / "config.json").is_file():
            fix = "a version's number, a folder such as models/grpo, or MODEL@http://host/v1"
            raise DataError("no model of that name", where=self.model, fix=fix)
        return folder

    def open(self, budget: Budget, cassette: Cassette | None) -> TestedModel:
        """The model; raises `OrchestraError` of one line when there is none."""
        found = self.endpoint
        if found is None:
            return CheckpointModel.load(self.checkpoint, self.params, self.root, budget)
        price = self.listed_price
        provider = RateLimiter() if self.price is None else limiter_of(self.price, self._catalogue.providers)
        chat = Chat(
            found["model"] or "gateway",
            model=found["model"] or GATEWAY_MODEL,
            url=found["url"],
            key=os.environ.get(KEY, ""),
            deadline_s=self.deadline_s,
            cassette=cassette,
            entry=self.release.fingerprint,
            billed=SPENT if price is None else frozenset(),
            own_counts=True,
            provider=provider,
        )
        limits, named = (self.max_tokens, self.question_usd), provider.limits.limit_parameter
        return EndpointModel(chat, found["url"], price, budget, *limits, self.release.version, named)

    @property
    def listed_price(self) -> Price | None:
        """The price that is named; None for what states its own dollars. Raises `ConfigError` where a price misses."""
        found = self.endpoint
        if self.price is None and found is not None and found["model"] is not None:
            what = "the model's price is unknown"
            raise ConfigError(what, where="--model", fix="name its row of the price book: --price PROVIDER/MODEL")
        return None if self.price is None else self.price_of(self.price)

    @property
    def own_temperature(self) -> bool:
        """Whether a plain endpoint's model may refuse the temperature that is sent by default."""
        found = self.endpoint
        reasons = found is not None and REASONING.match(found["model"] or "") is not None
        return reasons or (self.price is not None and own_temperature(self.price, self._catalogue.tools))

    @cached_property
    def _catalogue(self) -> CatalogueFile:
        return read_catalogue(self.root / self.params.world.catalogue)

    def price_of(self, row: str) -> Price:
        """A row of the price book on `world.price_date`; raises `ConfigError` for one that it lacks."""
        world = self.params.world
        return PriceBook.load(self.root / world.prices).at(row, date.fromisoformat(world.price_date))


def file_name(text: str) -> str:
    """The text as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-")


def digest_of(*parts: str | Sequence[str]) -> str:
    """16 hex digits over several texts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
