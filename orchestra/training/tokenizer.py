"""The embedded profile's tokenizer: byte-level BPE, JSON glue kept whole, names and numbers easy to copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.training.teacher import choice_words

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
GLUE = [
    "<think>\n",
    "\n</think>\n\n",
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '", "arguments": {}}\n</tool_call>',
    '"}}\n</tool_call>',
    "}}\n</tool_call>",
    '": "',
    '": ',
    '", "',
    ', "',
]
"""Strings that the turn format repeats: one token each."""
CHOICES = [f" {word}" for word in choice_words()]
"""Choices with their reasons, one token each. A small model whose choice is a token of its own, whatever the reasons,
learns one choice for everybody; here reward can move a choice for one preference and one state alone."""

NAME = r"\p{Ll}[\p{Ll}\p{N}.]{0,40}(?:[-_][\p{Ll}\p{N}.]{0,40}[\p{Ll}\p{N}])+"
"""A tool's name, such as `qwen2.5-math-7b` or `get_order`: one word, however many digits.

Bounded, so that hostile text costs no more than its length.
"""
DECIMALS = "|".join([r"(?<=\.)\p{N}", *(rf"(?<=\.\p{{N}}{{{n}}})\p{{N}}" for n in (1, 2, 3))])
WORDS = "|".join(
    [
        r"\$0\.",
        DECIMALS,
        NAME,
        r"\p{N}{1,2}",
        rf" (?={NAME})",
        r" ?\p{Ll}+",
        r"\p{Lu}\p{Ll}*",
        r" ",
        r"[^\s\p{L}\p{N}]+",
        r"\s+|.",
    ]
)
"""Lower-case words carry their space; numbers and names do not, so a name is the same tokens everywhere.

Digits after a decimal point are single, so that prices compare digit by digit; other numbers go in pairs of digits,
as distinct as the syllables of names: single digits repeat, and a small model loses its place among them.
"""
PAIRS = [f"{n:02d}" for n in range(100)] * 2000
"""Shown to the trainer so often that every pair of digits becomes one token."""


def splitter() -> Split:
    """Parts text into `WORDS`."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    return Split(Regex(WORDS), behavior="isolated")


def train_tokenizer(texts: Iterable[str], vocab_size: int, chat_template: str) -> PreTrainedTokenizerFast:
    """Learn merges from rendered texts, up to `vocab_size` tokens, and add a token for each of `CHOICES`.

    The same texts in the same order give the same tokenizer.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            splitter(),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(GLUE),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.chain(PAIRS, texts), trainer)
    tokenizer.add_tokens([AddedToken(glue, normalized=False, special=False) for glue in [*GLUE, *CHOICES]])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def save_recipe(tokenizer: PreTrainedTokenizerFast, folder: Path, *, hidden: int, layers: int, heads: int) -> None:
    """Write tokenizer and Qwen3 config: what random weights are made from."""
    from transformers import GenerationConfig, Qwen3Config

    tokenizer.save_pretrained(str(folder))
    Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        initializer_range=hidden**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["Qwen3ForCausalLM"],
    ).save_pretrained(str(folder))
    GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    ).save_pretrained(str(folder))
