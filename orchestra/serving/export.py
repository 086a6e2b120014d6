"""A checkpoint as one GGUF file, and the proof that the file holds the same model: equal greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import ConfigError, DataError
from orchestra.files import atomic

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFWriter
    from transformers import PreTrainedModel

TYPES = ("f32", "f16", "q8_0")
"""Of the weights in the file."""
ARCHITECTURE = "qwen3"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizer splits text, which llama.cpp knows as `qwen2`."""
BLOCK = 32
"""Weights that q8_0 keeps under one scale."""
GREEDY_TOKENS = 32


@dataclass(frozen=True)
class ExportReport:
    """How a file compares with its checkpoint."""

    same: int
    """Prompts after which both write the same greedy tokens."""
    prompts: int
    reads_text: bool
    """Whether llama.cpp splits text as the checkpoint's tokenizer does; otherwise it must be handed token ids."""


def export_gguf(folder: Path, target: Path, kind: str, prompts: Sequence[Sequence[int]]) -> ExportReport:
    """Write the checkpoint as `target`, whole or not at all, and compare both on the prompts.

    Raises `ConfigError` for what cannot be exported, and `DataError` when an f32 file does not write the same tokens:
    then nothing is left. With f16 and q8_0 the report says how many prompts are as before.
    """
    if kind not in TYPES:
        raise ConfigError(f"no type {kind}", where="--type", fix=f"one of: {', '.join(TYPES)}")
    if not prompts:
        raise DataError("no prompt to compare on", where=str(folder), fix="run the validate stage")
    with atomic.whole_file(target) as partial:
        reads_text = write_gguf(folder, partial, kind)
        same = agreement(folder, partial, prompts)
        if kind == "f32" and same < len(prompts):
            what = f"the file writes other tokens after {len(prompts) - same} of {len(prompts)} prompts"
            raise DataError(what, where=str(target), fix="keep the checkpoint, and report this")
    return ExportReport(same, len(prompts), reads_text)


def write_gguf(folder: Path, target: Path, kind: str) -> bool:
    """Write the file; returns whether llama.cpp reads text as the checkpoint does."""
    try:
        import gguf
    except ImportError:
        fix = ".venv/bin/uv pip install gguf"
        raise ConfigError("the package gguf is missing", where="export", fix=fix) from None
    config = _config(folder)
    types = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16}
    writer = gguf.GGUFWriter(target, ARCHITECTURE, use_temp_file=True)
    try:
        writer.add_name(folder.name)
        writer.add_file_type(types.get(kind, gguf.LlamaFileType.MOSTLY_Q8_0))
        _shape(writer, config)
        reads_text = _tokenizer(writer, folder, config)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
        for name, weight in _weights(folder):
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            known = names.get_name(name, try_suffixes=(".weight",))
            if known is None:
                raise ConfigError(f"GGUF has no name for {name}", where=str(folder), fix="keep the checkpoint")
            _add(writer, known, weight, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return reads_text


def agreement(folder: Path, file: Path, prompts: Sequence[Sequence[int]]) -> int:
    """Prompts after which the file, read by transformers, writes the checkpoint's greedy tokens."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from orchestra.rollout.policies.transformers import load_model

    loader: Any = AutoModelForCausalLM
    # transformers reads no head size from a GGUF file, so the checkpoint's own configuration says it.
    config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    read = loader.from_pretrained(
        str(file.parent), gguf_file=file.name, config=config, dtype=torch.float32, trust_remote_code=False
    )
    ours = load_model(folder, dtype=torch.float32)
    theirs = read.eval().to(ours.device)
    return sum(_greedy(ours, prompt) == _greedy(theirs, prompt) for prompt in prompts)


def _greedy(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    """The likeliest tokens one by one, past an end too: the more tokens, the more is compared."""
    import torch

    ids, past, found = torch.tensor([list(prompt)], device=model.device), None, list[int]()
    with torch.inference_mode():
        while len(found) < GREEDY_TOKENS:
            out = model(input_ids=ids, past_key_values=past, use_cache=True)
            ids, past = out.logits[:, -1:].argmax(dim=-1), out.past_key_values
            found.append(int(ids.item()))
    return found


def _config(folder: Path) -> dict[str, Any]:
    """The checkpoint's configuration; raises `ConfigError` where it has what is not written here."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError("no readable config.json", where=str(folder), fix="name a checkpoint folder") from None
    rope = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config.get("rope_theta")}
    other = [
        *(["another architecture"] if config.get("model_type") != ARCHITECTURE else []),
        *(["biases in its attention"] if config.get("attention_bias") else []),
        *(["a sliding window"] if config.get("use_sliding_window") else []),
        *(["scaled positions"] if rope.get("rope_type", "default") != "default" or config.get("rope_scaling") else []),
    ]
    if other:
        raise ConfigError(f"the checkpoint has {other[0]}", where=str(folder), fix="only plain Qwen3 is exported")
    return config | {"rope_theta": rope["rope_theta"]}


def _shape(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _tokenizer(writer: GGUFWriter, folder: Path, config: dict[str, Any]) -> bool:
    """Write the vocabulary, the merges and the chat template; whether the split of text has a name in llama.cpp."""
    from gguf import TokenType

    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = [f"[PAD{number}]" for number in range(config["vocab_size"])]
    types = [TokenType.UNUSED] * len(tokens)
    for token, number in told["model"]["vocab"].items():
        tokens[number], types[number] = token, TokenType.NORMAL
    for added in told["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    known = QWEN_SPLIT in json.dumps(told["pre_tokenizer"], ensure_ascii=False).replace("\\\\", "\\")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if known else "default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = told["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    ends = config["eos_token_id"]
    writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)
    if config.get("pad_token_id") is not None:
        writer.add_pad_token_id(config["pad_token_id"])
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))
    return known


def _weights(folder: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Each tensor as float32, one in memory at a time."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError("no weights", where=str(folder), fix="name a checkpoint folder")
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 — no mapping
                yield name, tensors.get_tensor(name).float().numpy()


def _add(writer: GGUFWriter, name: str, weight: np.ndarray[Any, Any], kind: str) -> None:
    """Matrices in the wanted type; vectors, and what does not divide into blocks, as they are."""
    import numpy as np
    from gguf import GGMLQuantizationType, quants

    if weight.ndim < 2 or kind == "f32" or (kind == "q8_0" and weight.shape[-1] % BLOCK):
        writer.add_tensor(name, weight)
    elif kind == "f16":
        writer.add_tensor(name, weight.astype(np.float16))
    else:
        wanted = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quants.quantize(weight, wanted), raw_dtype=wanted)
