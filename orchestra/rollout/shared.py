"""Contexts of a Qwen3 whose rows share their prompts: what a rollout of groups keeps across turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from orchestra.rollout.decoder import Decoder

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class _Sharing:
    """Which of the rows being fed read after which prompt; both lie in the first places of their stores."""

    table: torch.Tensor
    """(prompts, most rows of a prompt) places of rows; spare entries repeat place 0."""
    prompt: torch.Tensor
    """(rows,) each row's line in `table`."""
    column: torch.Tensor
    """(rows,) and its column there."""
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
        self._prompt_store = self._store(len(prompts), max(1, int(self._prompt_lengths.max())))
        self._tail_store = self._store(len(prompt_of), 64)
        self._fed: list[int] = []
        self._sharing: _Sharing | None = None
        self._read_prompts(prompts)

    def lengths(self, rows: Sequence[int]) -> list[int]:
        return [int(self._prompt_lengths[self._prompt_of[row]] + self._tails[row]) for row in rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Nothing to do: rows that are not fed cost nothing."""

    def feed(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        self._gather(list(rows))
        by_row = dict(zip(rows, chunks, strict=True))
        order = self._rows.at[: len(rows)]
        packed = [by_row[row] for row in order]
        counts = np.array([len(c) for c in packed])
        tails = self._tails[order]
        starts = tails + self._prompt_lengths[[self._prompt_of[row] for row in order]]
        self._grow(int((tails + counts).max()))
        self._decoder.reach(int((starts + counts).max()))
        # Every packed token: its row's place, and how far behind the row's start it lies.
        place = np.repeat(np.arange(len(rows)), counts)
        offset = np.arange(len(place)) - np.repeat(counts.cumsum() - counts, counts)
        last = counts.cumsum() - 1
        final = self._queries(tails + counts - 1, np.ones_like(counts))
        usual = final if counts.max() == 1 else self._queries(tails, counts)
        slots = self._slots(place, tails[place] + offset)
        columns = int((tails + counts).max())

        def attention(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> torch.Tensor | None:
            for part, states in enumerate((keys, values)):
                flat = self._tail_store[layer, part].view(-1, self._decoder.head_dim)
                flat.index_copy_(0, slots, states.reshape(-1, self._decoder.head_dim))
            shape = final if layer == len(self._decoder.layers) - 1 else usual
            return self._attend(layer, queries, shape, len(rows), columns)

        ids = torch.tensor([i for chunk in packed for i in chunk], device=self._decoder.device)
        hidden = self._decoder.hidden(ids, self._tensor(starts[place] + offset), attention, self._tensor(last))
        assert hidden is not None
        self._tails[order] += counts
        scores = self._decoder.logits(hidden)
        return scores if order == list(rows) else scores[self._tensor([self._rows.of[row] for row in rows])]

    def _read_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """All prompts at once, packed; none attends to another."""
        decoder, counts = self._decoder, self._prompt_lengths
        width = self._prompt_store.shape[3]
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
            held = self._prompt_store[layer].view(2, len(prompts), decoder.kv_heads, width, decoder.head_dim)
            held[0], held[1] = spread(keys), spread(values)
            if not len(queries):
                return None
            # Padding lies behind every token, where the causal mask hides it.
            mixed = functional.scaled_dot_product_attention(
                spread(queries), held[0], held[1], is_causal=True, scale=1.0, enable_gqa=True
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
        prompts, most = sharing.table.shape
        asked = shape.width * group
        keys, values = self._prompt_store[layer, :, : prompts * kv]
        own_keys, own_values = self._tail_store[layer, :, : rows * kv, :columns]
        length = keys.shape[1]
        if shape.spread is not None:
            queries = queries[shape.spread]
        split = queries.reshape(rows, shape.width, kv, group, dim).transpose(1, 2).contiguous()
        split = split.view(rows, kv, asked * dim)
        heads = torch.arange(kv, device=queries.device)[None, :, None]

        def by_prompt(states: torch.Tensor) -> torch.Tensor:
            """(rows, kv, …) to (prompts x kv, most rows x asked, …)."""
            return states[sharing.table[:, None], heads].view(prompts * kv, most * asked, -1)

        def by_row(states: torch.Tensor) -> torch.Tensor:
            """And back: (rows x kv, asked, …)."""
            apart = states.view(prompts, kv, most, asked, -1).transpose(1, 2)
            return apart[sharing.prompt, sharing.column].view(rows * kv, asked, -1)

        shared = by_row(torch.baddbmm(sharing.mask, by_prompt(split), keys.transpose(1, 2)))
        own = torch.baddbmm(shape.mask, split.view(rows * kv, asked, dim), own_keys.transpose(1, 2))
        weights = torch.softmax(torch.cat([shared, own], dim=-1).float(), dim=-1).to(queries.dtype)
        on_prompt = by_prompt(weights[..., :length].reshape(rows, kv, asked * length))
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
        return _Queries(width, spread, packed, self._tensor(mask).to(self._decoder.dtype))

    def _gather(self, rows: list[int]) -> None:
        """Move the rows to be fed, and their prompts, to the first places."""
        if rows == self._fed:
            return
        kv = self._decoder.kv_heads
        self._rows.bring(rows, self._tail_store[:, :, :, : int(self._tails.max())], kv)
        prompts = sorted({self._prompt_of[row] for row in rows})
        self._prompts.bring(prompts, self._prompt_store, kv)
        members: list[list[int]] = [[] for _ in prompts]
        where = []
        for place, row in enumerate(self._rows.at[: len(rows)]):
            line = self._prompts.of[self._prompt_of[row]]
            where.append((line, len(members[line])))
            members[line].append(place)
        most = max(map(len, members))
        lengths = self._prompt_lengths[self._prompts.at[: len(prompts)]]
        mask = np.where(np.arange(self._prompt_store.shape[3]) < lengths[:, None], 0.0, -np.inf).astype(np.float32)
        self._sharing = _Sharing(
            table=self._tensor([line + [0] * (most - len(line)) for line in members]),
            prompt=self._tensor([line for line, _ in where]),
            column=self._tensor([column for _, column in where]),
            mask=self._tensor(mask.repeat(kv, axis=0)[:, None]).to(self._decoder.dtype),
        )
        self._fed = rows

    def _slots(self, place: Ints, column: Ints) -> torch.Tensor:
        """Where in a layer's flat tail store each token's keys go, head by head: (tokens x kv_heads,)."""
        kv, capacity = self._decoder.kv_heads, self._tail_store.shape[3]
        return self._tensor(((place[:, None] * kv + np.arange(kv)) * capacity + column[:, None]).ravel())

    def _store(self, rows: int, capacity: int) -> torch.Tensor:
        """(layers, keys and values, rows x kv_heads, capacity, head_dim)."""
        d = self._decoder
        return torch.zeros(len(d.layers), 2, rows * d.kv_heads, capacity, d.head_dim, device=d.device, dtype=d.dtype)

    def _grow(self, columns: int) -> None:
        held = self._tail_store
        if columns > held.shape[3]:
            self._tail_store = self._store(len(self._prompt_of), max(columns, held.shape[3] * 3 // 2))
            self._tail_store[:, :, :, : held.shape[3]] = held

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values, device=self._decoder.device)


class _Places:
    """Which item lies where in a store, when some have to lie in front."""

    def __init__(self, count: int) -> None:
        self.at = list(range(count))
        """The item at each place."""
        self.of = list(range(count))
        """The place of each item."""

    def bring(self, items: Sequence[int], store: torch.Tensor, heads: int) -> None:
        """Swap contents of `store` (…, …, places x heads, …) until `items` lie in the first places, in any order."""
        wanted = set(items)
        strangers = [place for place in range(len(items)) if self.at[place] not in wanted]
        absent = [self.of[item] for item in items if self.of[item] >= len(items)]
        if not strangers:
            return
        one, other = strangers + absent, absent + strangers
        index = (torch.tensor([one, other])[:, :, None] * heads + torch.arange(heads)).flatten(1).to(store.device)
        store[:, :, index[0]] = store[:, :, index[1]]
        moved = [self.at[place] for place in other]
        for place, item in zip(one, moved, strict=True):
            self.at[place], self.of[item] = item, place
