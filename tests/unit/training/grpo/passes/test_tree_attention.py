"""The tree of what rows share: every log-probability, entropy and gradient of the plain pass, from fewer tokens."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

from orchestra.training.grpo.passes import prefix_tree as module
from orchestra.training.grpo.passes import tree_attention
from orchestra.training.grpo.passes.prefix_tree import prefix_tree
from orchestra.training.grpo.passes.tree_attention import BUCKETS, PATHS, agree, by_path, enable, scored
from tests.support.worlds import tiny_model

Rows = list[tuple[list[int], list[int]]]


def sampled(seed: int, groups: int = 3, size: int = 4) -> Rows:
    """Groups that share a prompt, whose episodes leave one another now and then; some prompts begin alike."""
    rng = random.Random(seed)
    system = [rng.randint(8, 300) for _ in range(rng.randint(0, 9))]
    found: Rows = []
    for _ in range(groups):
        prompt = [*system, *(rng.randint(8, 300) for _ in range(rng.randint(1, 20)))]
        common = [rng.randint(8, 300) for _ in range(rng.randint(0, 12))]
        for _ in range(size):
            kept = common[: rng.randint(0, len(common))]
            found.append((prompt, [*kept, *(rng.randint(8, 12) for _ in range(rng.randint(1, 15)))]))
    rng.shuffle(found)
    return found


def batch(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, int]:
    """As TRL hands them over: prompts padded on the left, completions on the right."""
    split, width = max(len(p) for p, _ in rows) + 1, max(len(c) for _, c in rows) + 2
    ids = torch.zeros(len(rows), split + width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(rows):
        places = slice(split - len(prompt), split + len(completion))
        ids[row, places] = torch.tensor(prompt + completion)
        mask[row, places] = 1
    return ids, mask, width


def plain(model: Any, rows: Rows, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row by row, without padding."""
    logps, entropies = [], []
    for prompt, completion in rows:
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        every = torch.log_softmax(logits, -1)
        spare = (0, width - len(completion))
        found = every.gather(1, torch.tensor(completion)[:, None]).squeeze(1)
        logps.append(torch.nn.functional.pad(found, spare))
        entropies.append(torch.nn.functional.pad(-(every.exp() * every).sum(-1), spare))
    return torch.stack(logps), torch.stack(entropies)


def gradient(model: Any, logps: torch.Tensor, entropies: torch.Tensor, seed: int) -> list[torch.Tensor]:
    weights = torch.randn(2, *logps.shape, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    torch.autograd.backward((weights[0] * logps + weights[1] * entropies).sum())
    return [p.grad.clone() for p in model.parameters()]


def models(way: str = BUCKETS) -> tuple[Any, Any]:
    """A plain model and the same with TRL's head and attention over trees."""
    one, other = tiny_model(), tiny_model()
    add_fused_lm_head(other, outputs=("log_probs", "entropy"))
    assert enable(other)
    other.set_attn_implementation(way)
    return one, other


def assert_same(rows: Rows, seed: int, way: str = BUCKETS) -> None:
    one, other = models(way)
    ids, mask, width = batch(rows)
    expected = plain(one, rows, width)
    logps, entropies = scored(other, ids, mask, width)
    assert entropies is not None
    torch.testing.assert_close(logps, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected[1], atol=1e-5, rtol=1e-5)
    found = gradient(other, logps, entropies, seed)
    torch.testing.assert_close(found, gradient(one, *expected, seed), atol=1e-4, rtol=1e-4)


Many = tuple[torch.Tensor, ...]


def segments_alone(query: Any, key: Any, value: Any, ends: tuple[Any, Any], above: Any = None) -> Many:
    """Each segment by itself, in float32, causal from its end: the output, or the gradients of `above` by the book."""
    scale, heads = query.shape[2] ** -0.5, query.shape[1] // key.shape[1]
    mixed, grads = torch.zeros_like(query), [torch.zeros_like(part) for part in (query, key, value)]
    for queries, reach in zip(*(map(slice, *zip(*pairwise(of.tolist()), strict=True)) for of in ends), strict=True):
        asked = query[queries].float()
        keys, values = (part[reach].float().repeat_interleave(heads, dim=1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", asked, keys) * scale
        hidden = torch.ones_like(scores[0]).triu(1 + len(keys) - len(asked)).bool()
        chance = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        mixed[queries] = torch.einsum("hqk,khd->qhd", chance, values).to(query.dtype)
        if above is not None:
            given = above[queries].float()
            moved = torch.einsum("qhd,khd->hqk", given, values)
            inner = chance * (moved - (chance * moved).sum(-1, keepdim=True)) * scale
            grads[0][queries] = torch.einsum("hqk,khd->qhd", inner, keys).to(query.dtype)
            for grad, product, by in ((grads[1], inner, asked), (grads[2], chance, given)):
                every = torch.einsum("hqk,qhd->khd", product, by)
                grad[reach] = every.view(len(keys), -1, heads, query.shape[2]).sum(2).to(query.dtype)
    return (mixed,) if above is None else tuple(grads)


@pytest.fixture
def kernel() -> Iterator[list[int]]:
    """A processor's stand-in for the GPU's kernels below torch's `varlen_attn`; the segments of each call."""
    calls: list[int] = []

    def forward(
        query: Any, key: Any, value: Any, query_ends: Any, key_ends: Any, width: int, reach: int,
        dropout: float, causal: bool, debug: bool, *, window_size_left: int, window_size_right: int, **others: Any,
    ) -> Many:  # fmt: skip
        assert causal and (window_size_left, window_size_right) == (-1, 0) and not dropout
        assert (width, reach) == (int(query_ends.diff().max()), int(key_ends.diff().max()))
        assert query_ends.dtype == key_ends.dtype == torch.int32 and {query.stride(2), key.stride(2)} == {1}
        calls.append(len(query_ends) - 1)
        empty = torch.zeros(2, dtype=torch.uint64)
        (mixed,) = segments_alone(query, key, value, (query_ends, key_ends))
        return mixed, mixed.new_zeros(query.shape[1::-1]).float(), empty, query.new_empty(0), empty

    def backward(above: Any, query: Any, key: Any, value: Any, *rest: Any, **others: Any) -> Many:
        return segments_alone(query, key, value, rest[2:4], above)

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        yield calls


@pytest.mark.parametrize("seed", range(3))
def test_one_product_for_all_segments(seed: int, kernel: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch's own `varlen_attn`, in float32 so that the numbers can be compared."""
    monkeypatch.setattr(tree_attention, "HALF", (torch.float32,))
    rows = sampled(seed)
    assert_same(rows, seed, PATHS)
    # Each layer has one.
    assert kernel == [len(module._segments(_sorted(rows)))] * len(tiny_model().model.layers)


def test_one_product_in_bfloat16_over_float32_weights(kernel: list[int]) -> None:
    one, other = models(PATHS)
    ids, mask, width = batch(sampled(3))
    with torch.autocast("cpu", torch.bfloat16):
        logps, _ = scored(other, ids, mask, width)
    torch.testing.assert_close(logps.float(), plain(one, sampled(3), width)[0], atol=0.1, rtol=0)
    assert kernel


def test_what_the_kernel_does_not_know_goes_by_buckets(kernel: list[int]) -> None:
    assert_same(sampled(3), 3, PATHS)
    assert not kernel


def test_a_device_shows_that_both_ways_agree(
    kernel: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, device = tiny_model().config, torch.device("cpu")
    assert agree(config, device) and kernel and not caplog.records
    monkeypatch.setattr(tree_attention, "by_path", lambda *given: 1.1 * by_path(*given))
    assert not agree(config, device)
    assert "its numbers differ by 0.1 of their size" in caplog.text


def test_a_device_without_the_kernel_goes_by_buckets(caplog: pytest.LogCaptureFixture) -> None:
    assert not agree(tiny_model().config, torch.device("cpu"))
    assert "attention by buckets, which is slower: varlen_attn: Could not run" in caplog.text


@pytest.mark.parametrize("works", [True, False])
def test_a_gpu_takes_the_way_that_works_there(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "agree", lambda config, device: works)
    model = tiny_model()
    assert enable(model, torch.device("cuda"))
    assert model.config._attn_implementation == (PATHS if works else BUCKETS)


@pytest.mark.parametrize("seed", range(6))
def test_numbers_and_gradients_are_those_of_the_plain_pass(seed: int) -> None:
    assert_same(sampled(seed), seed)


@pytest.mark.parametrize("padding", [0, 1 << 30])
def test_neither_one_product_a_segment_nor_one_for_all_changes_a_number(
    padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OVERHEAD", padding)
    monkeypatch.setattr(module, "ALONE", padding)
    rows = sampled(3)
    assert len(prefix_tree(*batch(rows)).buckets) == (1 if padding else len(module._segments(_sorted(rows))))
    assert_same(rows, 3)


@pytest.mark.parametrize("padding", [0, 1 << 30])
def test_passes_in_bfloat16_over_float32_weights(padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long segments have a product of their own, short ones share one: autocast holds for both."""
    monkeypatch.setattr(module, "OVERHEAD", padding)
    monkeypatch.setattr(module, "ALONE", padding)
    one, other = models()
    ids, mask, width = batch(sampled(3))
    expected = plain(one, sampled(3), width)
    with torch.autocast("cpu", torch.bfloat16):
        logps, entropies = scored(other, ids, mask, width)
    assert entropies is not None
    torch.testing.assert_close(logps.float(), expected[0], atol=0.1, rtol=0)
    found, exact = (
        torch.cat([part.flatten() for part in gradient(model, *passed, 3)])
        for model, passed in ((other, (logps, entropies)), (one, expected))
    )
    assert float((found - exact).norm()) < 0.05 * float(exact.norm())


def _sorted(rows: Rows) -> list[Any]:
    made = [torch.tensor(p + c).numpy() for p, c in rows]
    return sorted(made, key=lambda row: row.tobytes())


def test_odd_rows() -> None:
    """One row; equal rows; a row that is the beginning of another; a prompt that is another's beginning; no token."""
    cases: list[Rows] = [
        [([9], [10])],
        [([9, 10], [11, 12])] * 3,
        [([9, 10], [11]), ([9, 10], [11, 12, 13]), ([9, 10], [])],
        [([9, 10], [11, 12]), ([9, 10, 11], [12, 13]), ([20], [21])],
    ]
    for seed, rows in enumerate(cases):
        assert_same(rows, seed)


def test_what_is_shared_is_computed_once() -> None:
    prompt, turn = list(range(10, 40)), list(range(50, 60))
    rows: Rows = [(prompt, [*turn, last, 2]) for last in (70, 71, 72)]
    tree = prefix_tree(*batch(rows))
    # The prompt and the turn; the turn's last token predicts three different ones; each of those once.
    assert tree.ids.numel() == len(prompt) + len(turn) - 1 + 3 + 3
    equal = prefix_tree(*batch([rows[0]] * 5))
    assert equal.ids.numel() == len(prompt) + len(turn) + 1


def test_only_completions_are_scored() -> None:
    prompt = list(range(10, 40))
    tree = prefix_tree(*batch([(prompt, [70, 71]), (prompt, [72])]))
    assert sorted(tree.labels[tree.labels >= 0].tolist()) == [70, 71, 72]


def test_a_model_with_a_sliding_window_is_left_alone() -> None:
    windowed = tiny_model(use_sliding_window=True, sliding_window=8, max_window_layers=0)
    assert not enable(windowed)
    assert windowed.config._attn_implementation == "sdpa"


def test_an_enabled_model_attends_as_ever_without_a_tree() -> None:
    one, other = models()
    ids = torch.randint(8, 300, (2, 17), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    torch.testing.assert_close(other(ids, attention_mask=mask).logits, one(ids, attention_mask=mask).logits)
