"""The in-process policy against plain recomputation: the carried cache changes nothing but the time."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from orchestra.errors import ConfigError, DataError
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.transformers import TransformersPolicy
from orchestra.types import Turn
from tests.support.worlds import codec, example, tiny_model

EOS = 7
"""Any token: a random model then stops now and then."""
VOCAB = 300


def conversations(count: int, seed: int = 0, *, group: int = 1) -> list[Conversation]:
    """`count` examples with random prompts of different lengths, `group` conversations each."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(8, VOCAB) for _ in range(rng.randint(1, 40))] for _ in range(count)]
    return [Conversation(example(f"e{i}"), prompt, s) for i, prompt in enumerate(prompts) for s in range(group)]


def recompute(model: Any, ids: list[int], limit: int, eos: int) -> tuple[list[int], list[float]]:
    """Greedy decoding without any cache: the whole conversation again for every token."""
    out: list[int] = []
    logprobs: list[float] = []
    while len(out) < limit and (not out or out[-1] != eos):
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([[*ids, *out]]), use_cache=False).logits[0, -1].float(), -1)
        out.append(int(logp.argmax()))
        logprobs.append(float(logp[out[-1]]))
    return out, logprobs


async def play(
    policy: TransformersPolicy, jobs: Sequence[Conversation], turns: Sequence[int], seed: int = 0, limit: int = 12
) -> dict[int, list[Generation]]:
    """Every conversation for its own number of turns, with observations of random length between them."""
    rng = random.Random(seed)
    observed = {id(c): [[rng.randrange(8, VOCAB) for _ in range(rng.randint(0, 30))] for _ in range(9)] for c in jobs}
    policy.begin(jobs)
    said: dict[int, list[Generation]] = {index: [] for index in range(len(jobs))}
    for turn in range(max(turns)):
        active = [i for i, n in enumerate(turns) if n > turn]
        made = await policy.generate([jobs[i] for i in active], [limit + i % 3 for i in active])
        for index, generation in zip(active, made, strict=True):
            said[index].append(generation)
            seen = tuple(observed[id(jobs[index])][turn])
            jobs[index].turns.append(Turn(ids=tuple(generation.ids), text="", observation_ids=seen))
    policy.end()
    return said


@pytest.mark.parametrize("seed", range(3))
def test_greedy_turns_with_the_carried_cache_equal_full_recomputation(seed: int) -> None:
    """Random observation lengths (none included), rows that finish at different turns and steps."""
    model = tiny_model(seed)
    rng = random.Random(seed)
    jobs = conversations(6, seed)
    turns = [rng.randint(1, 4) for _ in jobs]
    said = asyncio.run(play(TransformersPolicy("", name="t", model=model, eos_id=EOS), jobs, turns, seed))
    stops = set()
    for index, job in enumerate(jobs):
        ids = list(job.prompt_ids)
        for generation, turn in zip(said[index], job.turns, strict=True):
            expected, logprobs = recompute(model, ids, 12 + index % 3, EOS)
            assert generation.ids == expected
            assert generation.logprobs == pytest.approx(logprobs, abs=1e-4)
            stops.add(generation.stop)
            assert generation.stop == ("stop" if expected[-1] == EOS else "length")
            ids += [*turn.ids, *turn.observation_ids]
    assert "length" in stops


def test_a_row_that_stops_early_keeps_its_place(seed: int = 1) -> None:
    """The stop token is what the model says next: each row then stops at its own step, and all go on afterwards."""
    model = tiny_model(seed)
    jobs = conversations(8, seed)
    first = asyncio.run(play(TransformersPolicy("", name="t", model=model, eos_id=-1), jobs, [1] * 8, seed))
    common = [g.ids for g in (first[i][0] for i in range(8))]
    eos = max({t for ids in common for t in ids[1:]}, key=lambda t: sum(t in ids for ids in common))
    jobs = conversations(8, seed)
    said = asyncio.run(play(TransformersPolicy("", name="t", model=model, eos_id=eos), jobs, [3] * 8, seed))
    lengths = {len(g.ids) for generations in said.values() for g in generations}
    assert len(lengths) > 2
    assert any(g.stop == "stop" for generations in said.values() for g in generations)
    for index, job in enumerate(jobs):
        ids = list(job.prompt_ids)
        for generation, turn in zip(said[index], job.turns, strict=True):
            assert generation.ids == recompute(model, ids, 12 + index % 3, eos)[0]
            ids += [*turn.ids, *turn.observation_ids]


def test_a_sample_does_not_depend_on_its_batch() -> None:
    model = tiny_model()

    def sampled(pick: Sequence[int]) -> dict[tuple[str, int], list[list[int]]]:
        every = conversations(3, group=4)
        jobs = [every[i] for i in pick]
        policy = TransformersPolicy("", name="t", model=model, eos_id=EOS, temperature=1.0, seed=5)
        # Observations are drawn in batch order, so here they are empty.
        asyncio.run(play_quietly(policy, jobs))
        return {(c.example.id, c.sample): [list(t.ids) for t in c.turns] for c in jobs}

    whole = sampled(range(12))
    assert len({str(v) for v in whole.values()}) == 12
    for pick in ([3], [11, 0, 5], [8, 9, 10, 11], list(reversed(range(12)))):
        for key, turns in sampled(pick).items():
            assert turns == whole[key]


async def play_quietly(policy: TransformersPolicy, jobs: Sequence[Conversation], turns: int = 2) -> None:
    policy.begin(jobs)
    for _ in range(turns):
        for job, generation in zip(jobs, await policy.generate(jobs, [10] * len(jobs)), strict=True):
            job.turns.append(Turn(ids=tuple(generation.ids), text="", observation_ids=(9, 9)))
    policy.end()


def test_a_seed_changes_the_samples_and_its_logprobs_are_the_models() -> None:
    model = tiny_model()
    drawn = []
    for seed in (1, 1, 2):
        jobs = conversations(4)
        policy = TransformersPolicy("", name="t", model=model, eos_id=EOS, temperature=0.7, seed=seed)
        drawn.append(asyncio.run(play(policy, jobs, [2] * 4)))
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    for job, generations in zip(jobs, drawn[2].values(), strict=True):
        ids = list(job.prompt_ids)
        for generation, turn in zip(generations, job.turns, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([[*ids, *turn.ids]])).logits[0, len(ids) - 1 : -1]
            logp = torch.log_softmax(logits / 0.7, -1).gather(1, torch.tensor([turn.ids]).T).squeeze(1)
            assert generation.logprobs == pytest.approx(logp.tolist(), abs=1e-4)
            ids += [*turn.ids, *turn.observation_ids]


def test_samples_follow_the_models_distribution() -> None:
    """Four thousand first tokens of one prompt: every frequency within five standard errors."""
    model, count = tiny_model(), 4000
    prompt = [9, 10, 11]
    jobs = [Conversation(example("e"), prompt, s) for s in range(count)]
    policy = TransformersPolicy("", name="t", model=model, eos_id=EOS, temperature=1.0, seed=0)

    async def first() -> list[int]:
        policy.begin(jobs)
        return [g.ids[0] for g in await policy.generate(jobs, [1] * count)]

    found = torch.bincount(torch.tensor(asyncio.run(first())), minlength=VOCAB) / count
    with torch.no_grad():
        p = torch.softmax(model(torch.tensor([prompt])).logits[0, -1], -1)
    assert ((found - p[: len(found)]).abs() < 5 * (p[: len(found)] / count).sqrt() + 2 / count).all()


def test_a_group_computes_its_prompt_once() -> None:
    model = tiny_model()
    jobs = conversations(2, group=8)
    policy = TransformersPolicy("", name="t", model=model, eos_id=EOS)
    fed: list[tuple[int, ...]] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda _, __, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    said = asyncio.run(play(policy, jobs, [1] * 16))
    hook.remove()
    assert fed[0][0] == 2
    assert {shape for shape in fed[1:]} == {(16, 1)}
    # Greedy copies of one prompt say the same, but for their length limits.
    assert len({tuple(said[i][0].ids[:5]) for i in range(8)}) == 1
    assert all(g[0].cached_tokens == len(j.prompt_ids) - 1 for g, j in zip(said.values(), jobs, strict=True))


def test_training_mode_does_not_reach_generation_and_is_restored() -> None:
    """GRPO generates in the middle of training: dropout must not touch the cached prompt."""
    model = tiny_model(attention_dropout=0.9)
    jobs = conversations(3)
    model.train()
    said = asyncio.run(play(TransformersPolicy("", name="t", model=model, eos_id=EOS), jobs, [2] * 3))
    assert model.training
    model.eval()
    for index, job in enumerate(jobs):
        assert said[index][0].ids == recompute(model, list(job.prompt_ids), 12 + index % 3, EOS)[0]


def test_a_checkpoint_folder_gives_the_same_policy(tmp_path: Any) -> None:
    model = tiny_model()
    model.save_pretrained(str(tmp_path))
    jobs, again = conversations(2), conversations(2)
    asyncio.run(play(TransformersPolicy("", name="t", model=model, eos_id=codec().eos_id), jobs, [1, 1]))
    loaded = TransformersPolicy(tmp_path, name="t")
    assert loaded.eos_id == codec().eos_id
    asyncio.run(play(loaded, again, [1, 1]))
    assert [c.ids for c in jobs] == [c.ids for c in again]


def test_a_folder_without_weights_is_one_line(tmp_path: Any) -> None:
    with pytest.raises(DataError) as caught:
        TransformersPolicy(tmp_path, name="t")
    assert "\n" not in str(caught.value)


def test_a_second_batch_is_refused_while_one_is_open_and_the_first_goes_on() -> None:
    policy = TransformersPolicy("", name="t", model=tiny_model(), eos_id=EOS)
    first, second = conversations(2), conversations(3, seed=1)

    async def both() -> list[Any]:
        policy.begin(first)
        with pytest.raises(ConfigError, match="t: the policy plays another batch"):
            policy.begin(second)
        made = await policy.generate(first, [4, 4])
        policy.end()
        policy.begin(second)
        policy.end()
        return made

    assert len(asyncio.run(both())) == 2


def test_a_batch_that_could_not_be_opened_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TransformersPolicy("", name="t", model=tiny_model(), eos_id=EOS)
    with monkeypatch.context() as patch:
        patch.setattr("orchestra.rollout.policies.transformers.open_contexts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            policy.begin(conversations(2))
    policy.begin(conversations(2))
