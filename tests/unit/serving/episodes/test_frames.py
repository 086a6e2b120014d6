"""Prompts from frames are those that the codec renders, whatever the messages say; toolboxes not told are rendered."""

import copy
import dataclasses
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestra.rollout.render import Codec
from orchestra.serving.episodes.frames import PromptFrames, ToolRows
from orchestra.serving.toolbox import FREE, Shelf, ToolChoice, toolbox
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Message, ToolSpec
from tests.support.worlds import ROOT, catalogue, codec, toolkit

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


def with_rows(codec: Codec, tools: Toolkit) -> tuple[PromptFrames, tuple[ToolSpec, ...], list[ToolSpec]]:
    """Frames that know a domain's toolboxes; the plain toolbox, and the domain's tools."""
    frames = PromptFrames(codec)
    made = Shelf(tools, frames)
    made.toolbox("", "mock", 3)
    return frames, made.toolbox("", None, 3), list(made._domains["mock", 3].values())


@pytest.mark.parametrize("made", [codec, lambda: Codec.load(ROOT / "models/base/embedded")])
def test_a_domains_tools_have_rows_in_any_order(tmp_path: Path, made: Callable[[], Codec]) -> None:
    frames, plain, tools = with_rows(made(), toolkit(tmp_path))
    draw = random.Random(7)
    for said in ["is book 7 free?", "<|im_end|>", "5", " a ", "\n"]:
        for count in range(1, len(tools) + 1):
            box, asked = (*plain, *draw.sample(tools, count)), [Message(role="user", content=said)]
            assert frames.prompt(asked, box, "", None) == made().messages_prompt(asked, box)
            rows = frames._rows[id(box[-1])]
            assert rows.frame(box) == made().frame(asked, box)


def test_what_is_led_or_longer_is_rendered(shelf: tuple[PromptFrames, Shelf]) -> None:
    frames, made = shelf
    box, roles = made.toolbox("which books are there", "mock", 3), ["user", "assistant", "user"]
    messages = [Message.model_validate({"role": role, "content": f"say {role}"}) for role in roles]
    for led, words in ((messages, ""), (messages[:1], "be quick."), (messages[:1], "")):
        assert frames.prompt(led, box, words, None) == codec().messages_prompt(led, box, words)


@pytest.mark.parametrize(
    "table",
    [
        "{% for tool in tools %}{{ loop.index }} {{ tool.function.name }}\n{% endfor %}",
        "{{ tools | length }} tools\n{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}",
        "{% for tool in tools %}{{ tool.function.description }}{% endfor %}",
        "{% for tool in tools | sort(attribute='function.name') %}{{ tool.function.name }}\n{% endfor %}",
        "{% for tool in tools %}{{ tool.function.name }}{{ ', ' if not loop.last }}{% endfor %}",
        "{{ tools[0].function.name }}",
        "{% if tools | length > 12 %}{{ no_such_thing() }}{% endif %}{{ tools[0].function.name }}",
    ],
)
def test_a_table_that_is_more_than_its_rows_is_rendered(tmp_path: Path, table: str) -> None:
    other = Codec(copy.deepcopy(codec().tokenizer))
    user = "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    other.tokenizer.chat_template = table + user
    frames, plain, tools = with_rows(other, toolkit(tmp_path))
    asked = [Message(role="user", content="is book 7 free?")]
    for box in ((*plain, *tools[::-1]), (*plain, *tools[3:5]), (*plain, tools[2])):
        assert frames.prompt(asked, box, "", None) == other.messages_prompt(asked, box)


def test_rows_that_depend_on_their_number_are_none(tmp_path: Path) -> None:
    other = Codec(copy.deepcopy(codec().tokenizer))
    other.tokenizer.chat_template = (
        "{% for tool in tools %}{{ loop.index }} {{ tool.function.name }}\n{% endfor %}{{ messages[0].content }}"
    )
    tools = toolkit(tmp_path)
    domain = [tools.catalogue.domain_spec("mock", tool) for tool in tools.domain("mock").tools.values()]
    assert ToolRows.of(other, toolbox(tools, "", None, 3), tuple(domain)) is None
    assert ToolRows.of(codec(), toolbox(tools, "", None, 3), tuple(domain[:1])) is None


@pytest.mark.parametrize("choice", [FREE, ToolChoice(avoid=frozenset({"get_book"}))])
def test_a_domains_toolbox_is_made_of_what_is_kept(tmp_path: Path, choice: ToolChoice) -> None:
    tools = toolkit(tmp_path)
    made = Shelf(tools, PromptFrames(codec()))
    for question in ("which books are there", "who has book 7", ""):
        box = made.toolbox(question, "mock", 3, choice)
        assert box == toolbox(tools, question, "mock", 3, choice)
        assert (box[-1] is made.toolbox(question, "mock", 3)[-1]) == (choice == FREE)


def test_another_releases_price_is_in_its_prompts(tmp_path: Path) -> None:
    first, known = toolkit(tmp_path), catalogue()
    higher = known.domain_price.model_copy(update={"per_call": Decimal("0.75")})
    second = Toolkit(dataclasses.replace(known, domain_price=higher), {"mock": ROOT / "data/domains/mock"}, tmp_path)
    asked, prompts = [Message(role="user", content="which books are there")], []
    for tools in (first, second):
        frames = PromptFrames(codec())
        box = Shelf(tools, frames).toolbox("which books are there", "mock", 3)
        prompts.append(frames.prompt(asked, box, "", None))
        assert prompts[-1] == codec().messages_prompt(asked, box)
    assert "$0.7500" in codec().decode(prompts[1]) and "$0.7500" not in codec().decode(prompts[0])
