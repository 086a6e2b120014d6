"""One release in the gateway's memory: codec, tools and policy, and the loop run over a request."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestra.config.schema import Rollout
from orchestra.errors import BudgetError, OrchestraError, ServiceError, without_secrets
from orchestra.rollout.policies.replicas import ReplicatedPolicy
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving.demonstration import demonstration
from orchestra.serving.episodes.caution import CautiousPolicy
from orchestra.serving.episodes.clock import EpisodeClock
from orchestra.serving.episodes.conversation import (
    MAX_CHARACTERS,
    PromptSetting,
    Recall,
    Renderer,
    check_calls,
    question,
)
from orchestra.serving.episodes.frames import PromptFrames
from orchestra.serving.episodes.job import Job, unfinished
from orchestra.serving.releases import vllm
from orchestra.serving.releases.state import Serving
from orchestra.serving.shared.spending import RequestSpending
from orchestra.serving.toolbox import Shelf, ToolChoice, experts, known_tools, preference, spelt
from orchestra.serving.wire.errors import ApiError, bad_request, unsupported
from orchestra.serving.wire.reply import report
from orchestra.serving.wire.request import MODEL, ChatRequest
from orchestra.synthesis.questions.beyond import CANNOT_KNOW
from orchestra.system.environment import keep_loaded
from orchestra.types import Category, Episode, Example, Message, Provenance, StopReason, Turn, Verifier

if TYPE_CHECKING:
    from orchestra.accounting.budget import SpendingCap
    from orchestra.rollout.loop import OnTurn
    from orchestra.rollout.policies.base import Conversation, Policy
    from orchestra.rollout.render import Codec
    from orchestra.tools.toolkit import Toolkit

SMALL = 8_000
"""Characters of messages and tools that are made into tokens at once; more are, in a thread."""


@dataclass(eq=False)
class Backend:
    """The backend that answers requests; immutable but for the count of those under way."""

    serving: Serving
    codec: Codec
    toolkit: Toolkit
    policy: Policy
    limits: Rollout
    experts: tuple[int, int]
    """How many experts a request is offered: with a domain's tools, and without. As in training."""
    in_flight: int = 0
    _frames: PromptFrames = field(init=False)
    _shelf: Shelf = field(init=False)
    _least: float | None = field(init=False)
    """`deploy.least_confidence` of the release."""
    _doubted: Sequence[int] = field(init=False)
    """The turn that stands in place of one that the policy is not sure of."""
    _most_s: int = field(init=False)
    """`deploy.gateway.request_s` of the release."""
    expert_wait_s: float = field(init=False)
    """`deploy.gateway.expert_wait_s` of the release."""
    _told: dict[str, Any] = field(init=False, default_factory=dict)
    _look: asyncio.Task[str | None] | None = field(init=False, default=None)
    _turnstile: contextlib.AbstractAsyncContextManager[object] = field(default_factory=contextlib.nullcontext)

    def __post_init__(self) -> None:
        self._frames = PromptFrames(self.codec)
        self._shelf = Shelf(self.toolkit, self._frames)
        deploy = self.serving.parsed.deploy
        self._least, self._most_s = deploy.least_confidence, deploy.gateway.request_s
        self.expert_wait_s = deploy.gateway.expert_wait_s
        self._doubted = self.codec.turn(CANNOT_KNOW)

    @classmethod
    def load(cls, root: Path, serving: Serving) -> Self:
        """Read everything a request will need, so that nothing is missing later; raises `OrchestraError`."""
        from orchestra.rollout.render import Codec
        from orchestra.tools.toolkit import Toolkit

        params = serving.parsed
        if silent(serving, timeout_s=5):
            where = ", ".join(serving.model_servers) or "no address"
            raise ServiceError("vLLM does not answer", where=where, fix="start it, or deploy again")
        folder = root / serving.checkpoint
        toolkit = Toolkit.from_params(params, root)
        # Read now: a later run of the pipeline replaces these files.
        _ = (toolkit.index, toolkit.book, [toolkit.domain(name) for name in params.world.domains])
        policy: Policy
        turnstile: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        if serving.engine == "vllm":
            key = vllm.api_key(root)
            name, version = vllm.SERVED_NAME, serving.version
            # Log-probabilities take a third of the server's front end: they are asked for where something reads them.
            doubts = params.deploy.least_confidence is not None
            servers = [
                VllmPolicy(
                    url, name, name=version, api_key=key, persistent=True, logprobs=doubts, timeout_s=vllm.TURN_S
                )
                for url in serving.model_servers
            ]
            policy = servers[0] if len(servers) == 1 else ReplicatedPolicy(servers)
        else:
            from orchestra.rollout.policies.transformers import TransformersPolicy
            from orchestra.serving.episodes.engine import ThreadedPolicy

            policy = ThreadedPolicy(TransformersPolicy(folder, name=serving.version))
            # One batch at a time: the policy holds its key-value cache.
            turnstile = asyncio.Lock()
        offered = params.synthesize.experts_per_toolbox
        made = cls(serving, Codec.load(folder), toolkit, policy, params.rollout, offered, _turnstile=turnstile)
        made._shelf.prepare(params.world.domains, offered[False])
        made.told(root)
        keep_loaded()
        return made

    @property
    def prompt_limit(self) -> int:
        """Tokens that a prompt may have: a turn has to fit behind it."""
        return self.limits.max_tokens - self.limits.max_turn_tokens

    def card(self) -> dict[str, Any]:
        """What a caller should know: what fits, in tokens (the context, a prompt, and what the tools of a plain request
        take), the seconds that a request may take, and the strongest expert."""
        specs = self._shelf.toolbox("", None, self.experts[True])
        taken = len(self.codec.messages_prompt([Message(role="user", content="")], specs))
        return {
            "context_window": self.limits.max_tokens,
            "max_input_tokens": self.prompt_limit,
            "tool_tokens": taken,
            "max_message_tokens": max(0, self.prompt_limit - taken),
            "max_turn_tokens": self.limits.max_turn_tokens,
            "max_turns": self.limits.max_turns,
            "max_seconds": self._most_s,
            "max_characters": self.prompt_limit * MAX_CHARACTERS,
            "strongest_expert": next(iter(experts(self.toolkit.catalogue, 1)), None),
        }

    def told(self, root: Path) -> dict[str, Any]:
        """What it is where it is a demonstration, with questions to try: of the load, or the first found since."""
        if not self._told.get("to_try"):
            self._told = demonstration(root, self.serving)
        return self._told

    def check_model(self, name: str) -> None:
        """Raises `ApiError` 404 for a name that is neither the model's nor the release's version."""
        if name not in (MODEL, self.serving.version):
            message = f"no model named {name[:80]}; there is: {MODEL}"
            raise ApiError(404, message, kind="invalid_request_error", code="model_not_found", param="model")

    def job(self, request: ChatRequest, recall: Recall = lambda call_id, digest: None) -> Job:
        """Check a request against what is served; raises `ApiError` 400 for what the caller can fix."""
        return self._ready(request, recall)()

    async def ready(self, request: ChatRequest, recall: Recall) -> Job:
        """The same, where long text is made into tokens in a thread."""
        work = self._ready(request, recall)
        if request.characters <= SMALL:
            return work()
        return await asyncio.to_thread(work)

    def _ready(self, request: ChatRequest, recall: Recall) -> Callable[[], Job]:
        """What makes the job; everything but the text of the messages is checked at once."""
        self._check(request)
        check_calls(request.messages)
        asked, wanted = question(request.messages), spelt(request.wanted, self.toolkit.catalogue)
        choice = ToolChoice.of(wanted, self.toolkit.catalogue)
        self._check_choice(choice, request)
        own = [tool.spec for tool in request.own_tools if tool.function.name not in choice.avoid]
        specs = self._shelf.toolbox(asked, request.domain, self.experts[request.domain is None], choice, own)
        trace_id = uuid.uuid4().hex
        example = Example(
            id=trace_id,
            kind="question" if request.domain is None else "domain",
            category=Category.TOPIC if request.domain is None else Category.LOOKUP,
            instruction=asked,
            domain=request.domain,
            toolbox=specs,
            preference=preference(wanted),
            verifier=Verifier(kind="judge"),
            provenance=Provenance(source="gateway", licence="the caller's", generator="gateway", seed=0),
            budget_usd=request.budget_usd if self.limits.tell_budget else None,
        )
        words, codec = example.preference.words, self._frames.codec_hash
        setting = PromptSetting(specs, words, example.budget_usd, self.prompt_limit, codec)
        limits = self.limits.model_copy(update={"max_turns": request.max_turns or self.limits.max_turns})

        def make() -> Job:
            made = Renderer(self._frames, setting, recall).prompt(request.messages, cut=request.truncation == "auto")
            return Job(
                trace_id,
                example,
                made.ids,
                limits,
                request,
                min(self._most_s, request.max_seconds or self._most_s),
                own=frozenset(spec.name for spec in own),
                barred=choice.barred(self.toolkit.catalogue.entries),
                digest=setting.digest(request.messages) if own else "",
                dropped=made.dropped,
            )

        return make

    def _check(self, request: ChatRequest) -> None:
        if request.domain is not None and request.domain not in self.toolkit.domain_folders:
            known = ", ".join(self.toolkit.domain_folders) or "none"
            raise bad_request(f"no domain named {request.domain[:60]}; there are: {known}", "domain")
        if request.max_turns is not None and request.max_turns > self.limits.max_turns:
            raise bad_request(f"at most {self.limits.max_turns} turns", "max_turns")
        if request.domain is not None and request.own_tools:
            why = "a domain's database ends with the request, and a call of your tool ends the request"
            raise unsupported("domain beside tools", why)

    def _check_choice(self, choice: ToolChoice, request: ChatRequest) -> None:
        """Every tool that a preference names is one; a misspelt `avoid` would allow it."""
        known = {*known_tools(self.toolkit, request.domain), *(tool.function.name for tool in request.own_tools)}
        weighed = frozenset(request.wanted.tools)
        for part, names in (
            ("avoid", choice.avoid), ("tools_allowed", choice.allowed), ("tools", weighed), ("prefer", choice.prefer)
        ):  # fmt: skip
            for name in sorted((names or frozenset()) - known)[:1]:
                what = f"no tool named {name[:60]}; there are: {', '.join(sorted(known))[:1000]}"
                raise bad_request(what, f"preference.{part}")
        if choice.allowed and choice.allowed <= choice.avoid:
            raise bad_request("avoid rules out every tool that tools_allowed names", "preference.avoid")
        for name in choice.contrary(tool.function.name for tool in request.own_tools)[:1]:
            what = f"{name[:60]} is preferred, and avoid or tools_allowed rules it out: leave one of the two out"
            raise bad_request(what, "preference.prefer")

    async def run(
        self,
        job: Job,
        on_turn: OnTurn | None = None,
        on_tokens: Callable[[Sequence[int]], None] | None = None,
        budget: SpendingCap | None = None,
        clock: EpisodeClock | None = None,
        turns: list[Turn] | None = None,
    ) -> Episode:
        """One episode of the one loop; raises `OrchestraError` when the engine fails.

        Where its seconds or the caller's dollars are over, it is the episode of the turns until then; the seconds count
        from where the clock began. Raises `BudgetError` where `budget` does not pay for the first turn. Each turn that
        ends is added to `turns`, and one that is cut with its charges: they are paid for, whatever becomes of the rest.
        """
        from orchestra.rollout.loop import RolloutOptions, run_episodes
        from orchestra.tools.chat.breaker import longest_wait

        turns, booked = [] if turns is None else turns, RequestSpending(budget)
        policy = self._cautious(self.policy if clock is None else clock.watched(self.policy), job.request)

        def told(conversation: Conversation, turn: Turn) -> None:
            turns.append(turn)
            if clock is not None:
                clock.turned()
            if on_turn is not None:
                on_turn(conversation, turn)

        options = RolloutOptions(
            job.limits,
            self.toolkit.catalogue.policy_price,
            budget_usd=job.request.budget_usd,
            judge=False,
            prompts=[job.prompt],
            on_turn=told,
            on_tokens=on_tokens,
            handed_over=job.own,
            barred=job.barred,
            max_written=job.request.max_written,
            budget=booked,
        )
        left_s = job.seconds - (0 if clock is None else clock.now())
        try:
            async with asyncio.timeout(left_s) as limit, self._turnstile:
                with longest_wait(self.expert_wait_s):
                    episodes = await run_episodes([job.example], policy, self.codec, self.toolkit, options)
        except BaseException as error:
            begun, turns[:] = bool(turns), booked.with_cut(turns)
            if isinstance(error, TimeoutError) and limit.expired():
                return unfinished(job, self.policy.name, turns, StopReason.TIME_LIMIT)
            if isinstance(error, BudgetError) and begun:
                return unfinished(job, self.policy.name, turns, StopReason.BUDGET)
            raise
        return episodes[0]

    def _cautious(self, policy: Policy, request: ChatRequest) -> Policy:
        """The policy, or with `deploy.least_confidence` one that doubts what it is not sure of."""
        if self._least is None:
            return policy
        asked = sum(message.role in ("user", "tool") for message in request.messages)
        return CautiousPolicy(policy, self._least, self._doubted, self.codec, sums=asked == 1)

    def report(self, job: Job, episode: Episode, wall_s: float) -> dict[str, Any]:
        """The `orchestra` object of the job's response."""
        return report(
            episode,
            engine=self.serving.engine,
            version=self.serving.version,
            trace_id=job.trace_id,
            wall_s=wall_s,
            dropped=job.dropped,
            own=job.own,
        )

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Counts a request within the block, from its choice of this backend on; nothing is closed under it."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def problem(self) -> str | None:
        """Why it cannot answer now, or None. Those who ask at the same time wait for one look: it takes a thread for
        seconds where a server is silent, and anybody may ask /health."""
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(asyncio.to_thread(silent, self.serving))
        return await asyncio.shield(self._look)

    async def aclose(self) -> None:
        """Close what it holds open, once it answers nothing any more."""
        await self.toolkit.aclose()
        if isinstance(self.policy, (VllmPolicy, ReplicatedPolicy)):
            await self.policy.aclose()
        else:
            close = getattr(self.policy, "close", None)
            if close is not None:
                close()


def silent(serving: Serving, timeout_s: float = 2) -> str | None:
    """That none of its model servers answers; None where one does, and in process."""
    urls = serving.model_servers
    if serving.engine == "vllm" and not any(vllm.healthy(url, timeout_s=timeout_s) for url in urls):
        return f"vLLM at {', '.join(urls)} does not answer"
    return None


def describe(error: BaseException) -> str:
    """One line for /health, which anybody may ask, and for traces; no secret of the environment is in it."""
    return str(error) if isinstance(error, OrchestraError) else without_secrets(f"{type(error).__name__}: {error}")
