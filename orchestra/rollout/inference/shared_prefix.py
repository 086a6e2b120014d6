"""Contexts of a Qwen3 whose rows share their prompts: what a rollout of groups keeps across turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from orchestra.rollout.inference.decoder import Decoder

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

BATCH_TOKENS = 2048
"""Tokens (padding counts) that are read in one pass of several rows."""


@dataclass(frozen=True)
class _Sharing:
    """Which of the rows being fed read after which prompt; both lie in the first places of their stores."""

    prompts: int
    most: int
    """Rows of the prompt that has most."""
    lines: torch.Tensor
    """(prompts x kv_heads x most,) lines of rows (row x kv_heads + head) by prompt; spare ones repeat row 0's"""
    back: torch.Tensor
    """(rows x kv_heads,) where in `lines` each line of a row is."""
    mask: torch.Tensor
    """(prompts x kv_heads, 1, longest prompt): 0, or minus infinity behind a prompt's end."""


@dataclass(frozen=True)
class _Queries:
    """One shape of queries: `width` tokens of each row, in places of their own."""

    width: int
    spread: torch.Tensor | None
    """(rows x width,) the packed token at each place (0 where there is none); None: one token a row, in order."""
    packed: torch.Tensor | None
    """(tokens,) the place of each packed token."""
    mask: torch.Tensor
    """(rows x kv_heads, width x heads per kv_head or 1, longest tail)."""


class SharedContexts:
    """A Qwen3's own: a prompt is stored once for all its rows, and only the rows being fed are computed.

    Keys and values lie in two stores, of prompts and of what each row read after its prompt (its tail). Rows being fed
    are moved to the first places, so that every step reads one contiguous piece of each store.
    """

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], prompt_of: Sequence[int]) -> None:
        self._decoder = decoder
        self._group = decoder.heads // decoder.kv_heads
        self._prompt_of = list(prompt_of)
        self._prompt_lengths = np.array([len(p) for p in prompts])
        self._tails = np.zeros(len(prompt_of), dtype=np.int64)
        """Length of each row's tail, by row."""
        self._rows, self._prompts = _Places(len(prompt_of)), _Places(len(prompts))
        self._prompt_store = _Store(decoder, len(prompts), max(1, int(self._prompt_lengths.max())))
        self._tail_store = _Store(decoder, len(prompt_of), 64)
        self._fed: list[int] = []
        self._sharing: _Sharing | None = None
        self._read_prompts(prompts)

    def lengths(self, rows: Sequence[int]) -> list[int]:
        return [int(self._prompt_lengths[self._prompt_of[row]] + self._tails[row]) for row in rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Nothing to do: rows that are not fed cost nothing."""

    def feed(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        batches = alike([len(c) for c in chunks], [self._prompt_of[row] for row in rows])
        if len(batches) == 1:
            return self._feed(list(rows), chunks)
        parts = [self._feed([rows[i] for i in batch], [chunks[i] for i in batch]) for batch in batches]
        order = self._tensor([i for batch in batches for i in batch])
        return torch.cat(parts)[order.argsort()]

    def _feed(self, rows: list[int], chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read chunks of about the same length in one pass."""
        self._gather(rows)
        by_row = dict(zip(rows, chunks, strict=True))
        order = self._rows.at[: len(rows)]
        packed = [by_row[row] for row in order]
        counts = np.array([len(c) for c in packed])
        tails = self._tails[order]
        starts = tails + self._prompt_lengths[[self._prompt_of[row] for row in order]]
        columns = int((tails + counts).max())
        self._tail_store.grow(columns)
        self._decoder.reach(int((starts + counts).max()))
        # Every packed token: its row's place, and how far behind the row's start it lies.
        place = np.repeat(np.arange(len(rows)), counts)
        offset = np.arange(len(place)) - np.repeat(counts.cumsum() - counts, counts)
        last = counts.cumsum() - 1
        final = self._queries(tails + counts - 1, np.ones_like(counts))
        usual = final if counts.max() == 1 else self._queries(tails, counts)
        kv = self._decoder.kv_heads
        line = self._tensor((place[:, None] * kv + np.arange(kv)).ravel())
        column = self._tensor((tails[place] + offset).repeat(kv))

        def attention(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> torch.Tensor | None:
            self._tail_store.write(layer, line, column, keys, values)
            shape = final if layer == len(self._decoder.layers) - 1 else usual
            return self._attend(layer, queries, shape, len(rows), columns)

        ids = torch.tensor([i for chunk in packed for i in chunk], device=self._decoder.device)
        hidden = self._decoder.hidden(ids, self._tensor(starts[place] + offset), attention, self._tensor(last))
        assert hidden is not None
        self._tails[order] += counts
        scores = self._decoder.logits(hidden)
        return scores if order == rows else scores[self._tensor([self._rows.of[row] for row in rows])]

    def _read_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """All prompts at once, packed; none attends to another."""
        decoder, counts = self._decoder, self._prompt_lengths
        width = self._prompt_store.capacity
        if not counts.sum():
            return
        place = np.repeat(np.arange(len(prompts)), counts)
        offset = np.arange(len(place)) - np.repeat(counts.cumsum() - counts, counts)
        padded = self._tensor(place * width + offset)
        decoder.reach(width)

        def spread(states: torch.Tensor) -> torch.Tensor:
            """(tokens, heads, head_dim) to (prompts, heads, width, head_dim), 0 behind each end."""
            room = states.new_zeros(len(prompts) * width, *states.shape[1:])
            room[padded] = states
            return room.view(len(prompts), width, *states.shape[1:]).transpose(1, 2)

        def attention(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> torch.Tensor | None:
            keys, values = spread(keys), spread(values)
            self._prompt_store.keys[layer] = keys.transpose(2, 3).flatten(0, 1)
            self._prompt_store.values[layer] = values.flatten(0, 1)
            if not len(queries):
                return None
            # Padding lies behind every token, where the causal mask hides it.
            mixed = functional.scaled_dot_product_attention(
                spread(queries), keys, values, is_causal=True, scale=1.0, enable_gqa=True
            )
            return mixed.transpose(1, 2).reshape(len(prompts) * width, -1)[padded]

        ids = torch.tensor([i for prompt in prompts for i in prompt], device=decoder.device)
        decoder.hidden(ids, self._tensor(offset), attention, None)

    def _attend(self, layer: int, queries: torch.Tensor, shape: _Queries, rows: int, columns: int) -> torch.Tensor:
        """Softmax over prompt and tail together, each read from its store: (tokens, heads x head_dim).

        The queries of all rows of a prompt meet its keys in one product.
        """
        assert self._sharing is not None
        sharing, kv, group, dim = self._sharing, self._decoder.kv_heads, self._group, self._decoder.head_dim
        asked, length = shape.width * group, self._prompt_store.capacity
        keys, values = self._prompt_store.read(layer, sharing.prompts * kv, length)
        own_keys, own_values = self._tail_store.read(layer, rows * kv, columns)
        if shape.spread is not None:
            queries = queries[shape.spread]
        split = queries.reshape(rows, shape.width, kv, group, dim).transpose(1, 2).contiguous()
        split = split.view(rows * kv, asked, dim)

        def by_prompt(states: torch.Tensor) -> torch.Tensor:
            """(rows x kv, asked, …) to (prompts x kv, most rows x asked, …)."""
            return states.index_select(0, sharing.lines).view(sharing.prompts * kv, sharing.most * asked, -1)

        def by_row(states: torch.Tensor) -> torch.Tensor:
            """And back."""
            return states.view(len(sharing.lines), asked, -1).index_select(0, sharing.back)

        shared = by_row(torch.baddbmm(sharing.mask, by_prompt(split), keys))
        own = torch.baddbmm(shape.mask, split, own_keys)
        weights = torch.softmax(torch.cat([shared, own], dim=-1), dim=-1)
        on_prompt = by_prompt(weights)[..., :length]
        mixed = torch.baddbmm(by_row(torch.bmm(on_prompt, values)), weights[..., length:], own_values)
        mixed = mixed.view(rows, kv, shape.width, group * dim).transpose(1, 2).reshape(rows * shape.width, -1)
        return mixed if shape.packed is None else mixed[shape.packed]

    def _queries(self, before: Ints, counts: Ints) -> _Queries:
        """Queries of `counts` tokens a row, the first of them behind `before` tokens of the row's tail."""
        rows, width = len(counts), int(counts.max())
        columns = int((before + counts).max())
        position = before[:, None] + np.arange(width)
        hidden = np.where(np.arange(columns) <= position[:, :, None], 0.0, -np.inf).astype(np.float32)
        repeats = 1 if width == 1 else self._group
        mask = hidden[:, None, :, None].repeat(self._decoder.kv_heads, axis=1).repeat(repeats, axis=3)
        mask = mask.reshape(rows * self._decoder.kv_heads, width * repeats, columns)
        spread = packed = None
        if width > 1:
            inside = np.arange(width) < counts[:, None]
            starts = counts.cumsum() - counts
            spread = self._tensor(np.where(inside, starts[:, None] + np.arange(width), 0).ravel())
            packed = self._tensor(np.flatnonzero(inside))
        return _Queries(width, spread, packed, self._tensor(mask))

    def _gather(self, rows: list[int]) -> None:
        """Move the rows to be fed, and their prompts, to the first places."""
        if rows == self._fed:
            return
        kv = self._decoder.kv_heads
        self._rows.bring(rows, self._tail_store, int(self._tails.max()))
        prompts = sorted({self._prompt_of[row] for row in rows})
        self._prompts.bring(prompts, self._prompt_store, self._prompt_store.capacity)
        members: list[list[int]] = [[] for _ in prompts]
        where = []
        for place, row in enumerate(self._rows.at[: len(rows)]):
            line = self._prompts.of[self._prompt_of[row]]
            where.append((line, len(members[line])))
            members[line].append(place)
        most, heads = max(map(len, members)), np.arange(kv)
        table = np.array([line + [0] * (most - len(line)) for line in members])
        prompt, column = np.array(where).T
        lengths = self._prompt_lengths[self._prompts.at[: len(prompts)]]
        mask = np.where(np.arange(self._prompt_store.capacity) < lengths[:, None], 0.0, -np.inf).astype(np.float32)
        self._sharing = _Sharing(
            prompts=len(prompts),
            most=most,
            lines=self._tensor((table[:, None, :] * kv + heads[:, None]).ravel()),
            back=self._tensor(((prompt[:, None] * kv + heads) * most + column[:, None]).ravel()),
            mask=self._tensor(mask.repeat(kv, axis=0)[:, None]),
        )
        self._fed = rows

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values, device=self._decoder.device)


def alike(counts: Sequence[int], prompt_of: Sequence[int]) -> list[list[int]]:
    """Indices in batches: queries are padded to a batch's longest chunk, so its counts differ by half at most.

    Scores of a batch stay small enough for a processor's cache; rows of a prompt stay together where they can.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(counts)), key=lambda i: (-counts[i], prompt_of[i])):
        longest = counts[batches[-1][0]] if batches else 0
        if 2 * counts[index] < longest or not batches or (len(batches[-1]) + 1) * longest > max(BATCH_TOKENS, longest):
            batches.append([])
        batches[-1].append(index)
    return batches


class _Store:
    """Keys and values of every layer in numbered places, each `kv_heads` lines of `capacity` tokens."""

    def __init__(self, decoder: Decoder, places: int, capacity: int) -> None:
        self.capacity = capacity
        self.heads = decoder.kv_heads
        lines, dim = (len(decoder.layers), places * decoder.kv_heads), decoder.head_dim
        self.keys = torch.zeros(*lines, dim, capacity, device=decoder.device)
        """(layers, places x kv_heads, head_dim, capacity): products with few queries are several times faster so."""
        self.values = torch.zeros(*lines, capacity, dim, device=decoder.device)
        """(layers, places x kv_heads, capacity, head_dim)."""

    def read(self, layer: int, lines: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[layer, :lines, :, :columns], self.values[layer, :lines, :columns]

    def write(
        self, layer: int, line: torch.Tensor, column: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """`line`, `column` (tokens x kv_heads,): where each of `keys`, `values` (tokens, kv_heads, dim) goes."""
        self.keys[layer][line, :, column] = keys.reshape(-1, keys.shape[-1])
        self.values[layer][line, column] = values.reshape(-1, values.shape[-1])

    def grow(self, columns: int) -> None:
        """Have room for this many tokens in each place."""
        if columns > self.capacity:
            more = max(columns, self.capacity * 3 // 2) - self.capacity
            self.keys = functional.pad(self.keys, (0, more))
            self.values = functional.pad(self.values, (0, 0, 0, more))
            self.capacity += more

    def swap(self, one: Sequence[int], other: Sequence[int], columns: int) -> None:
        """Exchange the first `columns` tokens of places."""
        places = torch.tensor([one, other], device=self.keys.device)
        a, b = (places[:, :, None] * self.heads + torch.arange(self.heads, device=places.device)).flatten(1)
        keys, values = self.keys[..., :columns], self.values[:, :, :columns]
        keys[:, a], values[:, a] = keys[:, b], values[:, b]


class _Places:
    """Which item lies where in a store, when some have to lie in front."""

    def __init__(self, count: int) -> None:
        self.at = list(range(count))
        """The item at each place."""
        self.of = list(range(count))
        """The place of each item."""

    def bring(self, items: Sequence[int], store: _Store, columns: int) -> None:
        """Swap contents of `store` until `items` lie in the first places, in any order."""
        wanted = set(items)
        strangers = [place for place in range(len(items)) if self.at[place] not in wanted]
        absent = [self.of[item] for item in items if self.of[item] >= len(items)]
        if not strangers:
            return
        one, other = strangers + absent, absent + strangers
        store.swap(one, other, columns)
        moved = [self.at[place] for place in other]
        for place, item in zip(one, moved, strict=True):
            self.at[place], self.of[item] = item, place
