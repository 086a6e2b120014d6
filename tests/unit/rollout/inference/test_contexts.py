"""What a batch of conversations has read: both ways of keeping it agree with computing everything again."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.compute import Lora
from orchestra.rollout.inference.contexts import CachedContexts, Contexts, open_contexts
from orchestra.rollout.inference.decoder import Decoder
from orchestra.rollout.inference.shared_prefix import BATCH_TOKENS, SharedContexts, alike
from orchestra.training.compute.lora import adapted
from tests.support.worlds import tiny_model

VOCAB = 300
Open = Callable[[Any, Sequence[Sequence[int]], Sequence[int]], Contexts]


def shared(model: Any, prompts: Sequence[Sequence[int]], prompt_of: Sequence[int]) -> Contexts:
    decoder = Decoder.of(model)
    assert decoder is not None
    return SharedContexts(decoder, prompts, prompt_of)


@pytest.mark.parametrize("opened", [shared, CachedContexts], ids=["shared", "cached"])
@pytest.mark.parametrize("seed", range(3))
def test_logits_equal_a_computation_of_the_whole(opened: Open, seed: int) -> None:
    """Prompts of every length (none included), rows fed in turn and dropped, chunks of one token and of many; tails
    outgrow the store they began in."""
    model, rng = tiny_model(seed).eval(), random.Random(seed)

    def words(count: int) -> list[int]:
        return [rng.randrange(8, VOCAB) for _ in range(count)]

    prompts = [words(n) for n in (0, 1, 13, 30)]
    prompt_of = [0, 1, 2, 2, 3, 2, 1, 3]
    seen = [list(prompts[i]) for i in prompt_of]
    rows = list(range(len(prompt_of)))
    with torch.inference_mode():
        contexts = opened(model, prompts, prompt_of)
        for turn in range(10):
            if turn in (4, 7):
                rows = sorted(rng.sample(rows, len(rows) - 2))
                contexts.keep(rows)
            fed = [row for row in rows if rng.random() < 0.7] or rows
            chunks = [words(rng.choice([1, 1, 2, 9, 40]) if turn % 3 == 0 else 1) for _ in fed]
            if turn == 0:
                chunks[0] = words(70)
            assert contexts.lengths(fed) == [len(seen[row]) for row in fed]
            logits = contexts.feed(fed, chunks)
            for row, chunk, found in zip(fed, chunks, logits, strict=True):
                seen[row] += chunk
                whole = model(torch.tensor([seen[row]])).logits[0, -1]
                torch.testing.assert_close(found, whole, atol=2e-5, rtol=1e-4)


def test_only_a_model_whose_forward_is_repeated_exactly_has_a_decoder() -> None:
    assert isinstance(open_contexts(tiny_model(), [[1]], [0]), SharedContexts)
    hooked = tiny_model()
    hooked.base_model.register_forward_hook(lambda *_: None)
    spread = tiny_model()
    spread.get_input_embeddings().weight.data = torch.empty(0)
    windowed = tiny_model()
    windowed.config.layer_types[0] = "sliding_attention"
    biased = tiny_model(attention_bias=True)
    wrapped: Any = tiny_model()
    wrapped.model.layers[0].mlp.up_proj = torch.nn.Sequential(wrapped.model.layers[0].mlp.up_proj)
    wrapped.model.layers[0].mlp.up_proj.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    others: list[Any] = [hooked, spread, windowed, biased, wrapped, tiny_model().to(torch.bfloat16)]  # type: ignore[arg-type]
    assert [Decoder.of(model) for model in others] == [None] * len(others)


def test_adapters_count_in_what_is_read() -> None:
    model: Any = adapted(tiny_model(), Lora(rank=4, alpha=8), seed=0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora" in name:
                p.add_(0.3)
    assert Decoder.of(model.get_base_model()) is None
    with torch.inference_mode():
        found = open_contexts(model, [[9, 10]], [0]).feed([0], [[11]])
        torch.testing.assert_close(found[0], model(torch.tensor([[9, 10, 11]])).logits[0, -1], atol=2e-5, rtol=1e-4)


def test_a_decoder_holds_the_weights_of_its_moment() -> None:
    """Each rollout of a training begins with the weights of its step."""
    model = tiny_model()
    before = Decoder.of(model)
    with torch.no_grad():
        embedding: Any = model.get_input_embeddings()
        embedding.weight.mul_(2)
        for name, p in model.named_parameters():
            if "proj" in name:
                p.mul_(1.5)
    after = Decoder.of(model)
    assert before is not None and after is not None
    with torch.inference_mode():
        found = SharedContexts(after, [[9, 10]], [0]).feed([0], [[11]])
        torch.testing.assert_close(found[0], model(torch.tensor([[9, 10, 11]])).logits[0, -1], atol=2e-5, rtol=1e-4)


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3)), min_size=1, max_size=40))
def test_chunks_are_batched_with_their_like(each: list[tuple[int, int]]) -> None:
    counts, prompt_of = [c for c, _ in each], [p for _, p in each]
    batches = alike(counts, prompt_of)
    assert sorted(i for batch in batches for i in batch) == list(range(len(each)))
    for batch in batches:
        longest = max(counts[i] for i in batch)
        assert all(2 * counts[i] >= longest for i in batch)
        assert len(batch) == 1 or len(batch) * longest <= BATCH_TOKENS
