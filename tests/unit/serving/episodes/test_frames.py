"""Prompts from frames are those that the codec renders, whatever the messages say; toolboxes not told are rendered."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestra.rollout.render import Codec
from orchestra.serving.episodes.frames import PromptFrames
from orchestra.serving.toolbox import Shelf, ToolChoice, toolbox
from orchestra.types import Message
from tests.support.worlds import ROOT, codec, toolkit

TEXTS = st.text(max_size=40) | st.sampled_from(["<|im_end|>", "</think>", "<tool_response>x", " a ", "{{ 1 }}", "\n"])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[PromptFrames, Shelf]:
    frames = PromptFrames(codec())
    return frames, Shelf(toolkit(tmp_path_factory.mktemp("world")), frames)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(TEXTS, min_size=1, max_size=5), led=st.booleans(), words=TEXTS, budget=st.booleans())
def test_prompts_are_the_codecs(
    shelf: tuple[PromptFrames, Shelf], said: list[str], led: bool, words: str, budget: bool
) -> None:
    frames, made = shelf
    box = made.toolbox("", None, 3)
    roles = ["system"] * led + ["user", "assistant"] * 3
    said = ["lead", *said] if led else said
    messages = [
        Message.model_validate({"role": role, "content": text}) for role, text in zip(roles, said, strict=False)
    ]
    usd = Decimal("0.05") if budget else None
    assert frames.prompt(messages, box, words, usd) == codec().messages_prompt(messages, box, words, usd)


def test_the_shipped_template_has_a_frame(tmp_path: Path) -> None:
    shipped = Codec.load(ROOT / "models/base/embedded")
    frames = PromptFrames(shipped)
    box = Shelf(toolkit(tmp_path), frames).toolbox("", None, 5)
    asked = [Message(role="user", content="what is 2+2?")]
    assert frames.prompt(asked, box, "be quick.", None) == shipped.messages_prompt(asked, box, "be quick.")
    frame = shipped.frame(shipped.led(asked, "be quick.", None), box)
    assert frame is not None and len(frame) == 3


def test_a_plain_toolbox_is_one_object_and_a_choice_is_still_kept_to(tmp_path: Path) -> None:
    tools = toolkit(tmp_path)
    made = Shelf(tools, PromptFrames(codec()))
    assert made.toolbox("a", None, 4) is made.toolbox("b", None, 4) == toolbox(tools, "a", None, 4)
    avoided = made.toolbox("a", None, 4)[0].name
    assert avoided not in [spec.name for spec in made.toolbox("a", None, 4, ToolChoice(avoid=frozenset({avoided})))]
