"""Baselines (b) and (c): transformers' own `generate`, the whole conversation computed again each turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from orchestra.rollout.policies.base import Conversation, Generation


class GeneratePolicy:
    """One turn for every conversation by one `generate` call, left-padded; no cache survives the turn."""

    def __init__(self, model: Any, *, eos_id: int, pad_id: int, temperature: float) -> None:
        self.model, self.eos_id, self.pad_id, self.temperature = model, eos_id, pad_id, temperature

    @property
    def name(self) -> str:
        return "generate"

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Nothing is kept."""

    def end(self) -> None:
        """Nothing was kept."""

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """Log-probabilities are left out: the baseline is spared their cost."""
        prompts = [c.ids for c in conversations]
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            made = self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                max_new_tokens=max(max_tokens),
                eos_token_id=self.eos_id,
                pad_token_id=self.pad_id,
                use_cache=True,
                **(sampling if self.temperature > 0 else {"do_sample": False}),
            )
        return [self._turn(row, limit) for row, limit in zip(made[:, width:].tolist(), max_tokens, strict=True)]

    def _turn(self, ids: list[int], limit: int) -> Generation:
        end = ids.index(self.eos_id) + 1 if self.eos_id in ids else len(ids)
        kept = ids[: min(end, limit)]
        return Generation(kept, [], "stop" if kept[-1] == self.eos_id else "length")
