"""Qwen3's own vocabulary and chat template, and a random model of its architecture, for tests.

The vocabulary is in PyPI's dashscope (qwen.tiktoken, Apache-2.0), the template in TRL.
"""

import base64
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from orchestra.rollout.render import Codec

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is cut before bytes are merged, as in Qwen3's tokenizer.json."""
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
TAGS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
"""Added tokens from id 151,643: those of control, then those that are no special tokens."""


def vocabulary() -> Path | None:
    """The file of ranks; None where dashscope is not installed."""
    found = find_spec("dashscope")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    files = [Path(folder) / "resources/qwen.tiktoken" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def template() -> str:
    """Qwen3's chat template, as TRL keeps it."""
    found = find_spec("trl")
    assert found is not None and found.origin is not None
    return (Path(found.origin).parent / "chat_templates/qwen3.jinja").read_text(encoding="utf-8")


@cache
def tokenizer() -> "PreTrainedTokenizerFast":
    """The ranks as a tokenizer of byte pairs: pairs merge in the order of what they make, as tiktoken does."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    file = vocabulary()
    assert file is not None
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    letters = bytes_to_unicode()

    def text(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    merges = []
    for token in sorted(ranks, key=lambda one: ranks[one]):
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [cut for cut in cuts if cut[0] in ranks and cut[1] in ranks]
        merges += [(text(left), text(right)) for left, right in sorted(known, key=lambda c: (ranks[c[0]], ranks[c[1]]))]
    made = Tokenizer(models.BPE({text(token): rank for token, rank in ranks.items()}, merges))
    made.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in SPECIAL])
    made.add_tokens([AddedToken(one, normalized=False, special=False) for one in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=template(), clean_up_tokenization_spaces=False,
    )  # fmt: skip


@cache
def codec() -> "Codec":
    from orchestra.rollout.render import Codec

    return Codec(tokenizer())


def random_base(folder: Path, *, hidden: int = 32, layers: int = 1) -> Path:
    """A checkpoint of Qwen3's architecture, vocabulary and template with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, set_seed

    set_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e6}
    shape = Qwen3Config(
        hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, vocab_size=151_936, max_position_embeddings=40_960, rope_parameters=rope,
        tie_word_embeddings=True, bos_token_id=151_643, eos_token_id=151_645, pad_token_id=151_643,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    model.save_pretrained(str(folder), safe_serialization=True)
    tokenizer().save_pretrained(str(folder))
    return folder
