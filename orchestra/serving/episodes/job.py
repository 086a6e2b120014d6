"""A request on its way through the loop, and who asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra.config.schema import Rollout
from orchestra.serving.shared.spending import KeyBudget
from orchestra.serving.wire.request import ChatRequest
from orchestra.types import Episode, Example, StopReason, Turn


@dataclass(frozen=True)
class Caller:
    """Who asks: the owner of what is kept, and whose dollars are spent."""

    owner: str = ""
    """The key's id; empty where no key exists."""
    budget: KeyBudget | None = None
    checks: bool = False
    """Whether the workspace itself asks, to check what serves."""


ANYBODY = Caller()


@dataclass(frozen=True)
class Job:
    """A request made ready: what the loop needs."""

    trace_id: str
    example: Example
    prompt: list[int]
    """(time,)"""
    limits: Rollout
    request: ChatRequest
    seconds: float
    """That it may take: the operator's limit, or the caller's where that is smaller."""
    own: frozenset[str] = frozenset()
    """The caller's tools."""
    barred: frozenset[str] = frozenset()
    """Tools of the catalogue that nothing may call."""
    digest: str = ""
    """Of all that the model was given: see `PromptSetting.digest`."""
    dropped: int = 0
    """Messages that were left out of a long conversation."""
    request_id: str = ""
    """The answer's `x-request-id`."""

    @property
    def tools(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.example.toolbox)


def unfinished(job: Job, policy: str, turns: Sequence[Turn], stop: StopReason) -> Episode:
    """The episode of the turns until a limit of the job."""
    return Episode(
        example_id=job.trace_id,
        policy=policy,
        prompt_ids=tuple(job.prompt),
        turns=tuple(turns),
        stop=stop,
        simulated=any(charge.simulated for turn in turns for charge in turn.charges),
    )
