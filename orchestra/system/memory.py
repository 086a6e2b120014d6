"""Memory of a training and of its rollouts, reckoned from the model's shape and the settings before anything starts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from orchestra.errors import DataError

GIB = 1 << 30
FLOAT32, BFLOAT16 = 4, 2
"""Bytes of a number."""
TILE_TOKENS, TILE_WORDS = 4096, 32_768
"""Of the part of the logits that TRL's fused head makes at once; no training makes all of them."""
TILES, GPU_TILES = 8, 1
"""Such parts alive in the head's backward pass on a CPU, in float32, and on a GPU, whose kernel works in one."""
GATHERED = 8
"""Tokens of a pass's rows for each token of its budget, at most, where what they share counts once: each row gathers
all keys that it attends to."""
ADAMW_STATES, MUON_STATES = 2, 1
"""Numbers of optimizer state for each trained weight, in float32."""
OWN_DECODER = 2_000_000_000
"""Largest model in float32 whose layers and head the rollouts copy: `MAX_PARAMETERS` of their decoder."""
EXAMPLE = 37 * 2**10
"""Bytes of an example that a process has read, as measured on the shipped set."""
RUNTIME = 1 * GIB
"""What a process on a GPU needs besides: CUDA, its libraries, communication and fragmentation."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes in a config.json of the Qwen3 architecture."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read config.json of a checkpoint or recipe; raises `DataError` of one line."""
        file = folder / "config.json"
        try:
            raw: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            heads = int(raw["num_attention_heads"])
            return cls(
                layers=int(raw["num_hidden_layers"]),
                hidden=int(raw["hidden_size"]),
                intermediate=int(raw["intermediate_size"]),
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
                vocabulary=int(raw["vocab_size"]),
                tied=bool(raw.get("tie_word_embeddings", False)),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"no model's shape: {error!r:.80}", where=str(file), fix="name a checkpoint folder"
            ) from None

    @property
    def embedding(self) -> int:
        """Weights of the embedding, or of the output head."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Weights of the matrices of one layer."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def norms(self) -> int:
        """Weights of all norms."""
        return self.layers * (2 * self.hidden + 2 * self.head_dim) + self.hidden

    @property
    def weights(self) -> int:
        """All weights; tied ones count once."""
        return self.embedding * (1 if self.tied else 2) + self.layers * self.layer + self.norms

    def adapters(self, rank: int) -> int:
        """Weights of low-rank adapters on every matrix of the layers."""
        heads, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = [
            (self.hidden, heads), (self.hidden, narrow), (self.hidden, narrow), (heads, self.hidden),
            (self.hidden, self.intermediate), (self.hidden, self.intermediate), (self.intermediate, self.hidden),
        ]  # fmt: skip
        return self.layers * rank * sum(inner + outer for inner, outer in shapes)

    @property
    def saved(self) -> int:
        """Numbers that one layer keeps of one token for its backward pass: inputs of norms, matrices, attention and
        gate."""
        heads, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        # Keys and values are repeated for the heads that share them.
        return 6 * self.hidden + 7 * heads + 3 * narrow + 4 * self.intermediate

    def cache(self, tokens: int, size: int) -> int:
        """Bytes of the keys and values of so many tokens, in numbers of `size` bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * size


@dataclass(frozen=True)
class Footprint:
    """Bytes of one rank, by what they are for."""

    parts: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def told(self) -> str:
        """`14.2 GiB (weights 8.0, …)`, the largest part first; parts below 0.05 GiB are left out."""
        ranked = sorted(self.parts.items(), key=lambda part: -part[1])
        listed = ", ".join(f"{name} {size / GIB:.1f}" for name, size in ranked if size >= 0.05 * GIB)
        return f"{self.total / GIB:.1f} GiB" + (f" ({listed})" if listed else "")


@dataclass(frozen=True)
class TrainingPlan:
    """How one stage trains."""

    ranks: int = 1
    strategy: str = "ddp"
    """ddp, zero2 or zero3."""
    rows: int = 1
    """Rows of one rank in one pass."""
    tokens: int = 1
    """Tokens of the longest row."""
    accumulates: bool = False
    """Whether a step has several passes, so that gradients are kept while another pass runs."""
    one_backward: bool = False
    """Whether they are one backward pass, as where grpo compares tokens of all rows: no gradient is ready, and shared
    by the ranks, before its end."""
    bfloat16: bool = False
    """Passes in bfloat16 over float32 weights."""
    checkpointing: bool = False
    """Only the input of each layer is kept."""
    lora: int | None = None
    """Rank of adapters; None: every weight is trained."""
    muon: bool = False
    reference: bool = False
    """Whether a KL term compares with a model of its own; with adapters it is the base, which is there."""
    gpu: bool = False
    keys: int = 0
    """Keys and values that a layer gathers for the queries of one pass, where rows share what they begin with."""

    @property
    def bfloat16_weights(self) -> bool:
        """Whether what a pass or a rollout reads is in bfloat16: a base of adapters, or what ZeRO holds."""
        return self.bfloat16 and (self.lora is not None or self.strategy != "ddp")


def training(shape: ModelShape, plan: TrainingPlan) -> Footprint:
    """The peak of a training step on one rank.

    The peak is either before the backward pass, with every activation, or after it, with every gradient: weights and
    optimizer state are there both times.
    """
    trained = shape.weights if plan.lora is None else shape.adapters(plan.lora)
    zero = plan.strategy != "ddp"
    sharded = {"ddp": (1, 1), "zero2": (1, plan.ranks), "zero3": (plan.ranks, plan.ranks)}[plan.strategy]
    size = BFLOAT16 if plan.bfloat16 else FLOAT32
    frozen = shape.weights if plan.lora is not None else 0
    weights = (frozen * size + trained * FLOAT32) // sharded[0]
    if plan.bfloat16 and zero:
        # The float32 masters are shared as the optimizer's state is; passes read weights in bfloat16 besides.
        weights = (frozen + trained) * BFLOAT16 // sharded[0] + trained * FLOAT32 // sharded[1]
        if plan.strategy == "zero3":
            # A layer and the next are gathered, or an embedding.
            weights += max(2 * shape.layer, shape.embedding) * BFLOAT16
    elif plan.bfloat16 and plan.lora is None:
        # Autocast keeps a copy of each matrix.
        weights += shape.weights * BFLOAT16
    states = ADAMW_STATES * trained
    if plan.muon:
        states = MUON_STATES * shape.layers * shape.layer + ADAMW_STATES * (trained - shape.layers * shape.layer)
    share = trained * FLOAT32 // sharded[1]
    # What earlier passes left: under ZeRO each backward pass ends with shares, and until then has the whole in the
    # type of the weights.
    left = share + (trained * size if zero and plan.one_backward else 0) if plan.accumulates else 0
    gradients = max(share, left)
    passes = _pass(shape, plan, size)
    # Before the backward pass reaches the layers, the head's new gradient is there besides.
    head = shape.embedding * FLOAT32 if plan.lora is None else 0
    if zero and size < FLOAT32:
        # The ranks share it in float32, a copy.
        head += head * size // FLOAT32
    early = left + head
    # After it all gradients are, beside what the first layer still keeps, or what the optimizer's step needs.
    size_of_layer = plan.rows * plan.tokens * shape.saved * size
    late = max(size_of_layer, _step(shape, plan, trained) // sharded[1])
    parts = {"weights": weights, "optimizer": states * FLOAT32 // sharded[1]}
    if plan.reference and plan.lora is None:
        parts["reference"] = shape.weights * (BFLOAT16 if plan.bfloat16_weights else FLOAT32) // sharded[0]
    if sum(passes.values()) + early >= gradients + late:
        return Footprint({**parts, "gradients": early, **passes})
    return Footprint({**parts, "gradients": gradients, "last of the step": late})


def rollouts(shape: ModelShape, conversations: int, tokens: int, *, bfloat16: bool = False) -> Footprint:
    """Episodes in this process: weights, the decoder's copy of them, and every conversation's cache at its longest."""
    size = BFLOAT16 if bfloat16 else FLOAT32
    parts = {"weights": shape.weights * size, "KV cache": shape.cache(conversations * tokens, size)}
    if not bfloat16 and shape.weights <= OWN_DECODER:
        parts["decoder"] = (shape.layers * shape.layer + shape.embedding) * FLOAT32
    return Footprint(parts)


def _pass(shape: ModelShape, plan: TrainingPlan, size: int) -> dict[str, int]:
    """What a forward pass keeps for the backward pass."""
    tokens = plan.rows * plan.tokens
    kept = shape.layers * shape.saved
    if plan.checkpointing:
        kept = shape.layers * shape.hidden + shape.saved
    tiles = GPU_TILES if plan.gpu else TILES
    logits = min(tokens, TILE_TOKENS) * min(shape.vocabulary, TILE_WORDS) * FLOAT32 * tiles
    # Gathered, their gradients, and on the way those of each query's head.
    gathered = plan.keys * 2 * shape.head_dim * (2 * shape.kv_heads + shape.heads)
    if not plan.checkpointing:
        gathered += (shape.layers - 1) * plan.keys * 2 * shape.head_dim * shape.kv_heads
    return {"activations": (tokens * (kept + 3 * shape.hidden) + gathered) * size, "logits": logits}


def _step(shape: ModelShape, plan: TrainingPlan, trained: int) -> int:
    """What an optimizer step needs besides: Muon works on all matrices of one shape at once, and AdamW over ZeRO's
    shares on a GPU copies the second moments."""
    if not plan.muon:
        return trained * FLOAT32 if plan.gpu and plan.strategy != "ddp" else 0
    return 5 * shape.layers * 2 * shape.hidden * shape.intermediate * FLOAT32
