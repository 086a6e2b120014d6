"""A key-value cache whose rows have lengths of their own, so that conversations keep it across turns."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache


class RaggedCache(Cache):
    """Per layer keys and values of shape (rows, heads, capacity, head_dim); row r holds `lengths[r]` tokens.

    The model writes each chunk at its row's own positions; slots past a row's length hold garbage that the mask hides
    and later chunks overwrite.
    """

    def __init__(self, lengths: torch.Tensor) -> None:
        self.layers: list[Any] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.lengths = lengths
        """(rows,) long."""
        self._width = 0
        self._slots: torch.Tensor | None = None

    def prepare(self, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make room for `chunk` more tokens a row.

        Returns position ids (rows, chunk) and a mask (rows, 1, chunk, width), True where a query may look.
        """
        offsets = torch.arange(chunk, device=self.lengths.device)
        positions = self.lengths[:, None] + offsets
        self._width = int(self.lengths.max()) + chunk
        self._slots = positions
        mask = torch.arange(self._width, device=self.lengths.device)[None, None, :] <= positions[:, :, None]
        return positions, mask[:, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's chunk (rows, heads, chunk, head_dim); returns all keys and values up to the width."""
        assert self._slots is not None
        rows, heads, chunk, dim = key_states.shape
        if layer_idx == len(self.keys):
            empty = key_states.new_zeros(rows, heads, 0, dim)
            self.keys.append(empty)
            self.values.append(empty)
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            held = store[layer_idx]
            if held.shape[2] < self._width:
                grown = held.new_zeros(rows, heads, max(self._width, int(held.shape[2] * 1.5) + 16), dim)
                grown[:, :, : held.shape[2]] = held
                store[layer_idx] = held = grown
            if chunk == 1:
                held[torch.arange(rows, device=held.device), :, self._slots[:, 0]] = states[:, :, 0]
            else:
                index = self._slots[:, None, :, None].expand(rows, heads, chunk, dim)
                held.scatter_(2, index, states)
        return self.keys[layer_idx][:, :, : self._width], self.values[layer_idx][:, :, : self._width]

    def advance(self, counts: torch.Tensor) -> None:
        """Keep the first `counts[r]` tokens of row r's last chunk."""
        self.lengths = self.lengths + counts

    def select(self, rows: torch.Tensor) -> None:
        """Keep (or repeat) the rows named by `rows` (new_rows,), in that order."""
        self.lengths = self.lengths[rows]
        self.keys = [k[rows] for k in self.keys]
        self.values = [v[rows] for v in self.values]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._width, 0
