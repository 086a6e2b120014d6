"""The model in this process: batched generation with each conversation's key-value cache carried across turns."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orchestra.errors import ConfigError, DataError
from orchestra.rollout.inference.contexts import Contexts, open_contexts
from orchestra.rollout.policies.base import Conversation, Generation

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def device() -> torch.device:
    """Where this process computes: its own GPU where there is one, else the CPU."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def load_model(folder: Path | str, dtype: torch.dtype | None = None, attention: str | None = None) -> PreTrainedModel:
    """A checkpoint's model on `device()`; safetensors only, no code from the folder.

    Without a `dtype`: float32 on a CPU, its own on a GPU. `attention` is one of transformers' implementations.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    wanted = dtype or ("auto" if torch.cuda.is_available() else torch.float32)
    loader: Any = AutoModelForCausalLM
    try:
        model, info = loader.from_pretrained(
            str(folder),
            dtype=wanted,
            attn_implementation=attention,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise DataError(f"no model: {error}", where=str(folder), fix="name a checkpoint folder") from None
    if info["missing_keys"]:
        # transformers would go on with random weights in their place.
        what = f"{len(info['missing_keys'])} weights are missing, {sorted(info['missing_keys'])[0]} among them"
        raise DataError(what, where=str(folder), fix="train the checkpoint again")
    loaded: PreTrainedModel = model.eval().to(device())
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
        self._contexts: Contexts | None = None
        self._rows: dict[int, int] = {}
        """The row of each conversation (by identity) in the contexts."""

    @property
    def name(self) -> str:
        return self._name

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Compute each distinct prompt once (a group shares its prompt), then give every conversation its own row.

        Raises `ConfigError` while another batch is open.
        """
        if self._rows:
            fix = "run one after the other, or make a TransformersPolicy for each with the same model="
            raise ConfigError("the policy plays another batch", where=self._name, fix=fix)
        self._rows = {id(c): row for row, c in enumerate(conversations)}
        prompts = list(dict.fromkeys(tuple(c.prompt_ids) for c in conversations))
        where = {prompt: row for row, prompt in enumerate(prompts)}
        try:
            with self._evaluating():
                # All but the last token: generation starts by feeding that one, which gives the first logits.
                prompt_of = [where[tuple(c.prompt_ids)] for c in conversations]
                self._contexts = open_contexts(self.model, [p[:-1] for p in prompts], prompt_of)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self._contexts, self._rows = None, {}

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each conversation of the batch opened by `begin` (finished ones are dropped for good)."""
        assert self._contexts is not None
        rows = [self._rows[id(c)] for c in conversations]
        with self._evaluating():
            self._contexts.keep(rows)
            return self._decode(self._contexts, conversations, rows, list(max_tokens))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """No dropout and no gradient checkpointing, also when generation comes in the middle of training."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(was_training)

    def _decode(
        self, contexts: Contexts, conversations: Sequence[Conversation], rows: list[int], limits: list[int]
    ) -> list[Generation]:
        """Feed what is new to each row, then one token a step to those that have not stopped."""
        noise = self._noise(conversations, max(limits)) if self.temperature > 0 else None
        cached = contexts.lengths(rows)
        chunks = [c.ids[n:] for c, n in zip(conversations, cached, strict=True)]
        out: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        live = list(range(len(rows)))
        for step in range(max(limits)):
            logits = contexts.feed([rows[i] for i in live], chunks)
            ids, logp = self._choose(logits, None if noise is None else noise[live, step])
            for i, token, value in zip(live, ids, logp, strict=True):
                out[i].append(token)
                logprobs[i].append(value)
                if (told := conversations[i].on_tokens) is not None:
                    told([token])
            live = [i for i in live if out[i][-1] != self.eos_id and len(out[i]) < limits[i]]
            if not live:
                break
            chunks = [out[i][-1:] for i in live]
        return [
            Generation(o, lp, "stop" if o[-1] == self.eos_id else "length", cached_tokens=c)
            for o, lp, c in zip(out, logprobs, cached, strict=True)
        ]

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
            target = torch.from_numpy(noise).to(logits.device)[:, None] * cumulative[:, -1:]
            ids = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
        return ids.tolist(), logp.gather(1, ids[:, None]).squeeze(1).tolist()

    def _noise(
        self, conversations: Sequence[Conversation], width: int
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """(conversations, width) uniforms."""
        drawn = np.empty((len(conversations), width))
        for row, c in enumerate(conversations):
            key = (self.seed, zlib.crc32(c.example.id.encode()), c.sample, len(c.turns))
            drawn[row] = np.random.default_rng(key).random(width)
        return drawn
