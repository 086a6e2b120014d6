"""Real tokenizers and chat templates of other models, for what must hold whatever the model."""

import re
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestra.rollout.render import Codec
from tests.support.qwen3 import codec, vocabulary
from tests.support.worlds import TEXTS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def _package(name: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name} is not installed; run make setup")
    return Path(spec.submodule_search_locations[0])


def templates() -> dict[str, Path]:
    """The chat templates of published model families, as TRL ships them."""
    return {file.stem: file for file in sorted((_package("trl") / "chat_templates").glob("*.jinja"))}


@cache
def _small() -> "PreTrainedTokenizerFast":
    from orchestra.training.tokenizer import train_tokenizer

    return train_tokenizer(TEXTS, 400, "")


def tagged(template: Path) -> Codec:
    """A small tokenizer for which every tag of the template is a control token."""
    from tokenizers import AddedToken

    text = template.read_text(encoding="utf-8")
    tokenizer = deepcopy(_small())
    tokenizer.chat_template = text
    ends = re.search(r"<\|im_end\|>|<\|end\|>|<end_of_turn>|<turn\|>|<\|eot_id\|>|<\|END_OF_TURN_TOKEN\|>", text)
    tags = sorted(set(re.findall(r"<[|/\uff5c]?[\w▁]+[|\uff5c]?>", text)))
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    tokenizer.add_special_tokens({"eos_token": ends[0] if ends else "<|im_end|>", "bos_token": "<|bos|>"})
    return Codec(tokenizer)


def qwen3() -> Codec:
    """Qwen3's tokenizer and chat template."""
    if vocabulary() is None:
        pytest.skip("dashscope is not installed; run make setup")
    return codec()
