"""The embedded tokenizer: JSON glue whole, digits single, nothing lost."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from orchestra.rollout.parse import format_call
from orchestra.training.tokenizer import GLUE, SPECIAL, save_recipe, train_tokenizer
from orchestra.types import ToolCall
from tests.support.worlds import TEXTS, codec


def test_the_same_texts_give_the_same_tokenizer() -> None:
    one, other = (train_tokenizer(TEXTS, 380, "x").backend_tokenizer.to_str() for _ in range(2))
    assert one == other


def test_glue_is_one_token_numbers_go_in_pairs_and_decimals_digit_by_digit() -> None:
    made = codec()
    for glue in [*GLUE, *SPECIAL]:
        assert len(made.encode(glue)) == 1
    ids = made.encode(format_call(ToolCall(name="calculator", arguments={"expression": "12*345"})))
    pieces = [made.tokenizer.decode([i]) for i in ids]
    assert pieces[0] == '<tool_call>\n{"name": "'
    assert pieces[-1] == '"}}\n</tool_call>'
    assert [p for p in pieces if any(c.isdigit() for c in p)] == ["12", "34", "5"]
    price = [made.tokenizer.decode([i]) for i in made.encode("$0.0359")]
    assert price[-4:] == list("0359")


@given(st.text(max_size=60))
def test_nothing_is_lost(text: str) -> None:
    made = codec()
    assert made.tokenizer.decode(made.encode(text)) == text


def test_a_recipe_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    tokenizer = codec().tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    save_recipe(tokenizer, tmp_path, hidden=64, layers=2, heads=2)
    again = AutoTokenizer.from_pretrained(str(tmp_path))
    text = TEXTS[2] + "<|im_end|>"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.chat_template == tokenizer.chat_template
    assert (again.eos_token, again.pad_token) == ("<|im_end|>", "<|endoftext|>")
