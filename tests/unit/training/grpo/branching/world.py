"""A tiny model that was taught to choose, and plans over its choices."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from transformers import PreTrainedModel

from orchestra.config.reward import Branch
from orchestra.config.schema import Rollout
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.parse import format_call
from orchestra.rollout.policies.forced import ForcedPolicy
from orchestra.rollout.policies.transformers import TransformersPolicy
from orchestra.tools.toolkit import Toolkit
from orchestra.training.grpo.branching.plan import Plan, first_turns, plan
from orchestra.types import Episode, Example, Preference, ToolCall
from tests.support.worlds import PRICE, catalogue, codec, example, tiny_model

LIMITS = Rollout(max_turns=2, max_turn_tokens=120, max_tokens=1500)
EXPERTS = ("gpt-5", "gpt-5-mini", "qwen3-32b")
WORDS = ["cheap", "best", "wish"]
AT_NAME, AT_WORD = Branch(at="expert"), Branch(at="word", words=WORDS)
SIZE = 4
CHEAP = Preference(kind="cheap", words="", outcome=0.5, compute=1, latency=0)


def question(name: str = "e1") -> Example:
    box = [catalogue().spec(expert) for expert in EXPERTS]
    box = [spec.model_copy(update={"description": "x", "parameters": {}}) for spec in box]
    return example(
        name, instruction="who wrote Opal?", answer=None, kind="database", domain="mock", toolbox=box, preference=CHEAP
    )


def written(expert: str, word: str) -> str:
    return format_call(ToolCall(name=expert), f"music\n{word}")


@lru_cache
def taught() -> PreTrainedModel:
    """A tiny model that thinks of music and a word, calls one of two experts, and answers (any answer is right)."""
    model = tiny_model(hidden=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    turns = [written("gpt-5", "best"), written("gpt-5", "cheap"), written("gpt-5-mini", "cheap")]
    prompt, seen, answer = codec().prompt(question()), codec().observation("Tesk"), codec().turn("Tesk")
    batch = []
    for turn in map(codec().turn, turns):
        own = [-100] * len(prompt) + turn + [-100] * len(seen) + answer
        batch.append((torch.tensor([[*prompt, *turn, *seen, *answer]]), torch.tensor([own])))
    for _ in range(40):
        optimizer.zero_grad()
        for ids, labels in batch:
            model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    return model


def policy() -> TransformersPolicy:
    return TransformersPolicy("", name="p", model=taught(), temperature=1.0, eos_id=codec().eos_id)


def plans(
    items: list[Example], acting: TransformersPolicy, branch: Branch, limits: Rollout = LIMITS, *,
    played: Sequence[Episode] = (), size: int = SIZE,
) -> list[Plan | None]:  # fmt: skip
    first = first_turns(items, acting, codec(), limits)
    return plan(items, first, acting, codec(), limits, branch, size, played)


def planned(branch: Branch, size: int = SIZE, limits: Rollout = LIMITS) -> tuple[TransformersPolicy, Plan]:
    """The first seed's policy whose sampled turn has a choice point."""
    for seed in range(10):
        acting = policy()
        acting.seed = seed
        found = plans([question()], acting, branch, limits, size=size)[0]
        if found is not None:
            return acting, found
    raise AssertionError("the taught model writes no choice")


def episodes(tools: Toolkit, acting: TransformersPolicy, found: Plan) -> list[Episode]:
    begun = {("e1", sample): found.beginning(sample) for sample in range(found.size)}
    options = RolloutOptions(LIMITS, PRICE, samples=found.size)
    return rollout([question()], ForcedPolicy(acting, begun), codec(), tools, options)


GREEDY = Branch(at="word", words=WORDS, weights="uniform", greedy=True)
