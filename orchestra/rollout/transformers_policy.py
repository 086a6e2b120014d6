"""The model in this process: batched generation with each conversation's key-value cache carried across turns."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orchestra.errors import DataError
from orchestra.rollout.cache import RaggedCache
from orchestra.rollout.policies import Conversation, Generation

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model(folder: Path | str) -> PreTrainedModel:
    """A checkpoint's model in float32 for CPU (its own dtype on a GPU); safetensors only, no code from the folder."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    dtype = "auto" if torch.cuda.is_available() else torch.float32
    loader: Any = AutoModelForCausalLM
    try:
        model, info = loader.from_pretrained(
            str(folder),
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(f"no model: {error}", where=str(folder), fix="name a checkpoint folder") from None
    if info["missing_keys"]:
        # transformers would go on with random weights in their place.
        what = f"{len(info['missing_keys'])} weights are missing, {sorted(info['missing_keys'])[0]} among them"
        raise DataError(what, where=str(folder), fix="train the checkpoint again")
    loaded: PreTrainedModel = model.eval()
    return loaded


class TransformersPolicy:
    """Greedy at temperature 0; otherwise sampled with noise seeded per (seed, example, sample, turn).

    So a token never depends on which other conversations share its batch, nor on the number of processes.
    """

    def __init__(
        self,
        model_dir: Path | str,
        *,
        name: str,
        eos_id: int | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        model: PreTrainedModel | None = None,
    ) -> None:
        self._name = name
        self.model = model if model is not None else load_model(model_dir)
        self.temperature = temperature
        self.seed = seed
        eos = eos_id if eos_id is not None else self.model.config.eos_token_id
        self.eos_id = eos[0] if isinstance(eos, list) else eos
        self._cache: RaggedCache | None = None
        self._rows: list[Conversation] = []

    @property
    def name(self) -> str:
        return self._name

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Compute each distinct prompt once (a group shares its prompt), then give every conversation its own row."""
        prompts = list(dict.fromkeys(tuple(c.prompt_ids) for c in conversations))
        # All but the last token: generation starts by feeding that one, which gives the first logits.
        chunks = [list(p[:-1]) for p in prompts]
        self._cache = RaggedCache(torch.zeros(len(prompts), dtype=torch.long))
        with self._evaluating():
            self._forward(chunks, logits=False)
        where = {prompt: row for row, prompt in enumerate(prompts)}
        self._cache.select(torch.tensor([where[tuple(c.prompt_ids)] for c in conversations]))
        self._rows = list(conversations)

    def end(self) -> None:
        self._cache, self._rows = None, []

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each conversation of the batch opened by `begin` (finished ones are dropped for good)."""
        assert self._cache is not None
        if len(conversations) != len(self._rows):
            where = {id(c): row for row, c in enumerate(self._rows)}
            self._cache.select(torch.tensor([where[id(c)] for c in conversations]))
            self._rows = list(conversations)
        cached = self._cache.lengths.tolist()
        pending = [c.ids[n:] for c, n in zip(conversations, cached, strict=True)]
        with self._evaluating():
            return self._decode(pending, list(max_tokens), cached)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """No dropout and no gradient checkpointing, also when generation comes in the middle of training."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    def _decode(self, pending: list[list[int]], limits: list[int], cached: list[int]) -> list[Generation]:
        """Feed `pending`, then one token a step until every row has stopped."""
        assert self._cache is not None
        rows = len(pending)
        noise = self._noise(limits) if self.temperature > 0 else None
        out: list[list[int]] = [[] for _ in range(rows)]
        logprobs: list[list[float]] = [[] for _ in range(rows)]
        logits = self._forward(pending)
        step = 0
        done = np.zeros(rows, dtype=bool)
        while True:
            ids, logp = self._choose(logits, None if noise is None else noise[:, step])
            for row in np.flatnonzero(~done):
                out[row].append(int(ids[row]))
                logprobs[row].append(float(logp[row]))
                done[row] = ids[row] == self.eos_id or len(out[row]) >= limits[row]
            if done.all():
                break
            # A stopped row still occupies its slot: its cache row must survive for the next turn, at its old length.
            chunk = [[] if done[row] else [int(ids[row])] for row in range(rows)]
            logits = self._forward(chunk)
            step += 1
        return [
            Generation(o, lp, "stop" if o[-1] == self.eos_id else "length", cached_tokens=c)
            for o, lp, c in zip(out, logprobs, cached, strict=True)
        ]

    def _forward(self, chunks: list[list[int]], *, logits: bool = True) -> torch.Tensor:
        """Feed each row its chunk (empty ones pad). Returns logits after each row's last token: (rows, vocab)."""
        assert self._cache is not None
        counts = torch.tensor([len(c) for c in chunks])
        width = max(1, int(counts.max()))
        ids = torch.zeros(len(chunks), width, dtype=torch.long)
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = torch.tensor(chunk, dtype=torch.long)
        with torch.inference_mode():
            positions, mask = self._cache.prepare(width)
            hidden = self.model.base_model(
                input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True
            ).last_hidden_state
            self._cache.advance(counts)
            assert isinstance(hidden, torch.Tensor)
            if not logits:
                return hidden
            last = hidden[torch.arange(len(chunks)), (counts - 1).clamp(min=0)]
            head = self.model.get_output_embeddings()
            assert head is not None
            scores: torch.Tensor = head(last).float()
            return scores

    def _choose(
        self, logits: torch.Tensor, noise: np.ndarray[tuple[int], np.dtype[np.float64]] | None
    ) -> tuple[list[int], list[float]]:
        """Next token and its log-probability for each row; `noise` is uniform in [0, 1) for inverse-CDF sampling."""
        scaled = logits / self.temperature if noise is not None else logits
        logp = torch.log_softmax(scaled, dim=-1)
        if noise is None:
            ids = logp.argmax(dim=-1)
        else:
            cumulative = logp.exp().double().cumsum(dim=-1)
            target = torch.from_numpy(noise)[:, None] * cumulative[:, -1:]
            ids = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
        return ids.tolist(), logp.gather(1, ids[:, None]).squeeze(1).tolist()

    def _noise(self, limits: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """(rows, max limit) uniforms."""
        width = max(limits)
        drawn = np.empty((len(self._rows), width))
        for row, c in enumerate(self._rows):
            key = (self.seed, zlib.crc32(c.example.id.encode()), c.sample, len(c.turns))
            drawn[row] = np.random.default_rng(key).random(width)
        return drawn
