"""What is measured: a checkpoint through the one loop, or any chat endpoint, a gateway of ours among them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import cost_of
from orchestra.config.schema import Params
from orchestra.errors import ConfigError, DataError
from orchestra.evaluation.benchmarks.base import Attempt, Question, Step
from orchestra.files.checkpoint import hash_dir, hash_file
from orchestra.rewards.outcome import verify
from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.synthesis.preferences.sentences import NEUTRAL
from orchestra.system.code_hash import code_hash
from orchestra.tools.catalogue.price_book import PriceBook
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Charge, Component, Episode, Example, Price, Provenance, StopReason, Verifier

if TYPE_CHECKING:
    from orchestra.rollout.policies.base import Policy
    from orchestra.rollout.render import Codec
    from orchestra.tools.replay.cassette import Cassette

KEY = "ORCHESTRA_MODEL_KEY"
"""Environment variable of a chat endpoint's key, where it needs one."""
ENDPOINT = re.compile(r"(?:(?P<model>[^@\s]+)@)?(?P<url>https?://\S+)")
"""`MODEL@http://host/v1`; without a model it is one of our gateways."""
GATEWAY_MODEL = "orchestrator"
DATA = ("data/generated/answers.jsonl", "data/generated/corpus.jsonl")
"""What simulated experts and the search know."""
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
class EndpointModel:
    """A chat endpoint. With a price it is a plain model; without one a gateway of ours, which states its dollars."""

    chat: Chat
    url: str
    price: Price | None
    budget: Budget
    max_tokens: int
    question_usd: Decimal | None
    """What one question may cost at a gateway, which keeps to it."""

    @property
    def name(self) -> str:
        return self.chat.model

    async def attempt(self, question: Question, trial: int) -> Attempt:
        if question.example is not None and question.example.domain is not None:
            what = f"{question.id} needs the tools of the domain {question.example.domain}"
            raise ConfigError(what, where=self.name, fix="measure a checkpoint, or questions only")
        made = await (self._plain(question) if self.price is not None else self._gateway(question))
        made = made.model_copy(update={"trial": trial})
        return made if question.example is None else ruled(made, question.example)

    async def aclose(self) -> None:
        await self.chat.aclose()

    async def _plain(self, question: Question) -> Attempt:
        assert self.price is not None
        paid = PaidChat(self.chat, self.price, self.budget, Component.POLICY)
        reply, _ = await paid.ask(question.messages, max_tokens=self.max_tokens)
        return Attempt(
            item=question.id,
            trial=0,
            group=question.group,
            answer=reply.text,
            stop="token_limit" if reply.cut else "answered",
            cost_usd=cost_of(self.price, reply.usage),
            latency_s=reply.seconds,
            steps=(Step(text=reply.text),),
        )

    async def _gateway(self, question: Question) -> Attempt:
        body: dict[str, Any] = {"messages": [message.model_dump(mode="json") for message in question.messages]}
        if self.question_usd is not None:
            body["budget_usd"] = str(self.question_usd)
        worst = self.question_usd
        if worst is None and self.budget.cap_usd is not None:
            raise ConfigError("a gateway's answer has no known worst case", where="--cap-usd", fix="add --question-usd")
        with self.budget.hold(worst) if worst is not None else nullcontext():
            reply = await self.chat.ask(body)
            told: dict[str, Any] = dict(reply.orchestra or {})
            spent = Decimal(str(told.get("cost_usd") or 0))
            paid_usd = Decimal(0) if reply.replayed else spent
            charge = Charge(component=Component.POLICY, name=self.name, usage=reply.usage, cost_usd=paid_usd)
            self.budget.book(charge)
        calls = [call for call in told.get("tool_calls") or [] if isinstance(call, dict)]
        names = [str(call.get("name")) for call in calls]
        return Attempt(
            item=question.id,
            trial=0,
            group=question.group,
            answer=reply.text,
            stop=str(told.get("stop") or "answered"),
            cost_usd=spent,
            latency_s=float(told.get("latency_s") or reply.seconds),
            calls={name: names.count(name) for name in sorted(set(names))},
            simulated=bool(told.get("simulated")),
            steps=(*(_step(call) for call in calls), Step(text=reply.text)),
        )


def ruled(attempt: Attempt, example: Example) -> Attempt:
    """The attempt at a question of ours, with the verdict of its rule; a judge decides later where none can."""
    if example.verifier.kind == "judge" or attempt.answer is None:
        return attempt
    verdict = verify(example, attempt.answer, None)
    return attempt.model_copy(update={"solved": verdict.solved, "why": verdict.why})


def _step(call: Mapping[str, Any]) -> Step:
    made = {"name": call.get("name"), "arguments": call.get("arguments") or {}}
    return Step.model_validate({"call": made, "observation": call.get("observation")})


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
    named: str = ""
    """What reports call it, where its folder's name says less: version-3."""

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
            # Not the address: a replayed evaluation has none.
            return f"{found['model'] or 'gateway'}/{self.price}/{self.question_usd}/{self.max_tokens}"
        world = self.params.world.model_dump_json() + self.params.rollout.model_dump_json()
        data = [file for name in DATA if (file := self.root / name).is_file()]
        return f"{self.checkpoint_hash}/{code_hash('gateway')}/{world}/{[hash_file(file) for file in data]}"

    @cached_property
    def checkpoint_hash(self) -> str:
        """Empty for an endpoint and for a reference; raises `DataError` where there is no checkpoint."""
        return "" if self.endpoint is not None or self.model in REFERENCES else hash_dir(self.checkpoint)

    @property
    def label(self) -> str:
        """What reports call it."""
        found, name = self.endpoint, self.named or self.model
        return re.sub(r"[^\w.-]+", "-", name if found is None else found["model"] or "gateway").strip("-")

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
        named = found["model"]
        price = None if self.price is None else self.price_of(self.price)
        if named is not None and price is None:
            what = "the model's price is unknown"
            raise ConfigError(what, where="--model", fix="name its row of the price book: --price PROVIDER/MODEL")
        chat = Chat(
            named or "gateway",
            model=named or GATEWAY_MODEL,
            url=found["url"],
            key=os.environ.get(KEY, ""),
            cassette=cassette,
        )
        return EndpointModel(chat, found["url"], price, budget, self.max_tokens, self.question_usd)

    def price_of(self, row: str) -> Price:
        """A row of the price book on `world.price_date`; raises `ConfigError` for one that it lacks."""
        world = self.params.world
        return PriceBook.load(self.root / world.prices).at(row, date.fromisoformat(world.price_date))


def digest_of(*parts: str | Sequence[str]) -> str:
    """16 hex digits over several texts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
