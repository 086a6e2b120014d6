"""How a training stage uses its machine: parameters that SFT and GRPO have in common."""

from typing import Literal, Self

from pydantic import model_validator

from orchestra.config.section import Factor, Positive, Section, switch


class Lora(Section):
    """Low-rank adapters (arXiv 2106.09685) on every linear layer: they are trained, the base stays as it is."""

    rank: Positive = 16
    """Rank of an adapter."""
    alpha: Positive = 32
    """An adapter's output is multiplied by alpha / rank."""


class Compute(Section):
    """Ranks, precision, memory and optimizer of a training."""

    processes: Positive = switch(1)
    """Ranks that share each step, over all machines (one a GPU): docs/how-to/train-on-several-gpus.md."""
    strategy: Literal["ddp", "zero2", "zero3"] = switch("ddp")
    """ddp: each rank holds everything; DeepSpeed's zero2 shards optimizer and gradients, zero3 the weights too."""
    precision: Literal["float32", "bfloat16"] = switch("float32")
    """bfloat16: passes in bfloat16 over float32 master weights, since steps of 1e-6 are lost in bfloat16 ones. The
    checkpoint is written in this type."""
    gradient_checkpointing: bool = switch(False)
    """Whether a layer's activations are computed again in the backward pass rather than kept."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = switch("sdpa")
    """Attention implementation of transformers. Passes with `grpo.shared_prefix` have their own."""
    micro_batch: Positive | None = switch(None)
    """How many of the longest rows one pass of a rank has room for: in sft the longest of the data, in grpo
    `rollout.max_tokens`. Shorter rows go together until they have as many tokens, and what grpo's rows share counts
    once. null: all rows of a step are one pass. The gradients are the same: less memory, more time."""
    lora: Lora | None = switch(None)
    """Adapters in place of all weights. The checkpoint is written with the adapters merged."""
    optimizer: Literal["muon", "adamw"] = switch("muon")
    """muon: hidden matrices step with Muon, the rest with AdamW; adamw: everything with AdamW."""
    muon_ratio: Factor = switch(5.0)
    """Muon's learning rate over AdamW's: its steps have the same size whatever the gradient's."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.strategy != "ddp" and self.optimizer == "muon":
            raise ValueError(f"{self.strategy} shards matrices, which muon needs whole: set optimizer to adamw")
        if self.lora is not None and self.optimizer == "muon":
            raise ValueError("lora trains thin matrices, which muon is not for: set optimizer to adamw")
        if self.lora is not None and self.strategy == "zero3":
            raise ValueError("lora leaves nothing worth sharding: set strategy to ddp or zero2")
        if self.attention == "flash_attention_2" and self.precision == "float32":
            raise ValueError("flash_attention_2 has no kernels for float32: set precision to bfloat16")
        return self
