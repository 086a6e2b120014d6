"""One release in the gateway's memory: codec, tools and policy, and the loop run over a request."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from orchestra.config.schema import Rollout
from orchestra.errors import OrchestraError, ServiceError
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.serving import vllm
from orchestra.serving.api import ChatRequest, bad_request
from orchestra.serving.state import Serving
from orchestra.serving.toolbox import preference, toolbox
from orchestra.types import Category, Episode, Example, Message, Provenance, Verifier

if TYPE_CHECKING:
    from orchestra.rollout.loop import OnTurn
    from orchestra.rollout.policies.base import Policy
    from orchestra.rollout.render import Codec
    from orchestra.tools.toolkit import Toolkit


@dataclass(frozen=True)
class Job:
    """A request made ready: what the loop needs."""

    trace_id: str
    example: Example
    prompt: list[int]
    """(time,)"""
    limits: Rollout
    request: ChatRequest

    @property
    def tools(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.example.toolbox)


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
    _turnstile: contextlib.AbstractAsyncContextManager[object] = field(default_factory=contextlib.nullcontext)

    @classmethod
    def load(cls, root: Path, serving: Serving) -> Self:
        """Read everything a request will need, so that nothing is missing later; raises `OrchestraError`."""
        from orchestra.rollout.render import Codec
        from orchestra.tools.toolkit import Toolkit

        params = serving.parsed
        folder = root / serving.checkpoint
        toolkit = Toolkit.from_params(params, root)
        # Read now: a later run of the pipeline replaces these files.
        _ = (toolkit.index, toolkit.book, [toolkit.domain(name) for name in params.world.domains])
        policy: Policy
        turnstile: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        if serving.engine == "vllm":
            if serving.vllm_url is None or not vllm.healthy(serving.vllm_url, timeout_s=5):
                raise ServiceError("vLLM does not answer", where=str(serving.vllm_url), fix="deploy again")
            policy = VllmPolicy(serving.vllm_url, vllm.SERVED_NAME, name=serving.version)
        else:
            from orchestra.rollout.policies.transformers import TransformersPolicy

            policy = TransformersPolicy(folder, name=serving.version)
            # One batch at a time: the policy holds its key-value cache.
            turnstile = asyncio.Lock()
        experts = params.synthesize.experts_per_toolbox
        return cls(serving, Codec.load(folder), toolkit, policy, params.rollout, experts, _turnstile=turnstile)

    def job(self, request: ChatRequest) -> Job:
        """Check a request against what is served; raises `ApiError` 400 for what the caller can fix."""
        question = request.messages[-1].text.strip()
        if request.domain is not None and request.domain not in self.toolkit.domain_folders:
            known = ", ".join(self.toolkit.domain_folders) or "none"
            raise bad_request(f"no domain named {request.domain[:60]}; there are: {known}", "domain")
        if request.max_turns is not None and request.max_turns > self.limits.max_turns:
            raise bad_request(f"at most {self.limits.max_turns} turns", "max_turns")
        trace_id = uuid.uuid4().hex
        example = Example(
            id=trace_id,
            kind="question" if request.domain is None else "domain",
            category=Category.TOPIC if request.domain is None else Category.LOOKUP,
            instruction=question,
            domain=request.domain,
            toolbox=toolbox(self.toolkit, question, request.domain, self.experts[request.domain is None]),
            preference=preference(request.preference),
            verifier=Verifier(kind="judge"),
            provenance=Provenance(source="gateway", licence="the caller's", generator="gateway", seed=0),
            budget_usd=request.budget_usd if self.limits.tell_budget else None,
        )
        messages = [m.plain for m in request.messages[:-1]] + [Message(role="user", content=question)]
        words = example.preference.words
        prompt = self.codec.messages_prompt(messages, example.toolbox, words, example.budget_usd)
        if len(prompt) + self.limits.max_turn_tokens > self.limits.max_tokens:
            limit = self.limits.max_tokens - self.limits.max_turn_tokens
            message = f"{len(prompt)} tokens with the tools, of at most {limit}: shorten the conversation"
            raise bad_request(message, "messages", "context_length_exceeded")
        limits = self.limits.model_copy(update={"max_turns": request.max_turns or self.limits.max_turns})
        return Job(trace_id, example, prompt, limits, request)

    async def run(self, job: Job, on_turn: OnTurn | None = None) -> Episode:
        """One episode of the one loop; raises `OrchestraError` when the engine fails."""
        from orchestra.rollout.loop import RolloutOptions, run_episodes

        options = RolloutOptions(
            job.limits,
            self.toolkit.catalogue.policy_price,
            budget_usd=job.request.budget_usd,
            judge=False,
            prompts=[job.prompt],
            on_turn=on_turn,
        )
        with self._counted():
            async with self._turnstile:
                episodes = await run_episodes([job.example], self.policy, self.codec, self.toolkit, options)
        return episodes[0]

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def problem(self) -> str | None:
        """Why it cannot answer now, or None."""
        url = self.serving.vllm_url
        if self.serving.engine == "vllm" and (url is None or not vllm.healthy(url)):
            return f"vLLM at {url} does not answer"
        return None


def describe(error: BaseException) -> str:
    """One line for /health and logs."""
    return str(error) if isinstance(error, OrchestraError) else f"{type(error).__name__}: {error}"
