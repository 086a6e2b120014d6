"""Whatever a prompt's contents say, its control tokens are the template's, for every model's tokenizer and template."""

import json
import re
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestra.errors import DataError
from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.policies.vllm import VllmPolicy
from orchestra.rollout.render import Codec
from orchestra.types import Message, ToolSpec
from tests.support import vocabularies
from tests.support.worlds import ROOT, catalogue, codec, example
from tests.unit.rollout.test_render import qwen3 as qwen3_small

FAMILIES = vocabularies.templates()
TESTED = [name for name in FAMILIES if not name.endswith("_training")]


@lru_cache
def embedded() -> Codec:
    return Codec.load(ROOT / "models/recipes/embedded")


@cache
def tagged(name: str) -> Codec | None:
    """None: the template takes no system message."""
    made = vocabularies.tagged(FAMILIES[name])
    try:
        made.messages_prompt([Message(role="system", content="x"), Message(role="user", content="x")], ())
    except DataError:
        return None
    return made


PROFILES: dict[str, Callable[[], Codec]] = {
    "embedded": embedded,
    "qwen3": vocabularies.qwen3,
    "qwen3 tags": qwen3_small,
    "tests": codec,
}
each = pytest.mark.parametrize("make", PROFILES.values(), ids=PROFILES)
quick = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
few, long = settings(quick, max_examples=75), settings(quick, max_examples=2000)
GLUED = ['"', ">", "<", "\n", "\n\n", " ", "\\", "{", "}", '": "', "\r\n", "\x85", "\u2028", "\u0338", "/>", "|", "_"]


@lru_cache
def added(made: Codec) -> dict[int, str]:
    """The control tokens."""
    known = made.tokenizer.added_tokens_decoder.items()
    return {i: token.content for i, token in known if len(token.content) > 1}


def controls(made: Codec, ids: Sequence[int]) -> list[int]:
    """The control tokens among the ids, in order."""
    return [i for i in ids if i in added(made)]


@lru_cache
def texts(made: Codec) -> st.SearchStrategy[str]:
    """Text made of control strings, of their beginnings and ends, of what glues, and of anything."""
    strings = sorted(added(made).values())
    part = st.builds(
        lambda text, cut, head: (text[:cut] if head else text[cut:]) or text,
        st.sampled_from(strings), st.integers(1, 12), st.booleans(),
    )  # fmt: skip
    any_text = st.text(st.characters(codec="utf-8"), max_size=12)
    one = st.one_of(st.sampled_from(strings), part, st.sampled_from(GLUED), any_text)
    # Never white space alone: whether there is any content decides what a template writes.
    return st.lists(one, min_size=1, max_size=4).map("".join).map(lambda text: text if text.strip() else text + "x")


def tool(description: str, argument: str, inner: str) -> ToolSpec:
    """A tool all of whose strings are chosen; a name of an argument, too."""
    schema = {
        "type": "object",
        "properties": {
            argument: {"type": "string", "description": inner, "enum": [inner, argument]},
            f"{argument} b": {"type": ["integer", "null"], "default": inner, "title": description},
            f"{argument} c": {"type": "array", "items": {"type": "string", "pattern": inner, inner: description}},
        },
        "required": [argument, f"{argument} b"],
    }
    return catalogue().spec("search").model_copy(update={"description": description, "parameters": schema})


def prompt(made: Codec, roles: Sequence[str], said: Sequence[str]) -> list[int]:
    """A prompt in which each of these texts is some content: a preference, two tools, a message of each role."""
    words, description, argument, inner, *rest = said
    toolbox = [tool(description, argument, inner), catalogue().spec("gpt-5"), tool(inner, description, words)]
    messages = [Message.model_validate({"role": r, "content": t}) for r, t in zip(roles, rest, strict=True)]
    return made.messages_prompt(messages, toolbox, words)


@lru_cache
def own_controls(made: Codec, roles: tuple[str, ...]) -> list[int]:
    """The control tokens of a prompt with these roles whose contents are harmless: those of the template."""
    return controls(made, prompt(made, roles, [f"x{n}" for n in range(4 + len(roles))]))


def assert_own_controls_only(made: Codec, roles: Sequence[str], said: Sequence[str]) -> None:
    assert controls(made, prompt(made, roles, said)) == own_controls(made, tuple(roles))


def assert_hostile_text_adds_no_control(made: Codec, data: st.DataObject, roles: Sequence[str]) -> None:
    assert_own_controls_only(made, roles, [data.draw(texts(made)) for _ in range(4 + len(roles))])


TURNS = st.lists(st.sampled_from([("user",), ("assistant", "user"), ("assistant", "tool")]), max_size=2).map(
    lambda turns: ["user", *(role for turn in turns for role in turn)]
)
LED = st.tuples(st.booleans(), TURNS).map(lambda chosen: ["system", *chosen[1]] if chosen[0] else chosen[1])


@each
@few
@given(data=st.data(), roles=LED)
def test_no_content_changes_the_control_tokens(
    make: Callable[[], Codec], data: st.DataObject, roles: list[str]
) -> None:
    assert_hostile_text_adds_no_control(make(), data, roles)


@pytest.mark.slow
@each
@long
@given(data=st.data(), roles=LED)
def test_no_content_of_thousands_changes_the_control_tokens(
    make: Callable[[], Codec], data: st.DataObject, roles: list[str]
) -> None:
    assert_hostile_text_adds_no_control(make(), data, roles)


@settings(quick, max_examples=200)
@given(data=st.data(), name=st.sampled_from(TESTED))
def test_no_content_changes_the_control_tokens_of_published_templates(data: st.DataObject, name: str) -> None:
    if made := tagged(name):
        assert_hostile_text_adds_no_control(made, data, ["system", "user"])


@pytest.mark.slow
@settings(quick, max_examples=6000)
@given(data=st.data(), name=st.sampled_from(list(FAMILIES)))
def test_no_content_of_thousands_changes_those_of_published_templates(data: st.DataObject, name: str) -> None:
    if made := tagged(name):
        assert_hostile_text_adds_no_control(made, data, ["system", "user"])


@each
@quick
@given(data=st.data(), role=st.sampled_from(["user", "tool"]))
def test_the_loop_and_a_history_encode_the_same(make: Callable[[], Codec], data: st.DataObject, role: str) -> None:
    """What came back in an episode has the ids that it has in a conversation that a caller sends again."""
    made = make()
    said = data.draw(texts(made))
    appended = made.observation(said) if role == "tool" else made.reply(said)
    history = [Message.model_validate({"role": r, "content": "x"}) for r in ("user", "assistant")]
    ids = made.messages_prompt([*history, Message.model_validate({"role": role, "content": said})], ())
    assert ids[-len(appended) :] == appended
    assert controls(made, appended) == controls(made, made.observation("x") if role == "tool" else made.reply("x"))


ordinary = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9 ,.:;$%()'_/-]{0,30}[A-Za-z0-9])?", fullmatch=True)


@each
@quick
@given(said=st.lists(ordinary, min_size=6, max_size=6))
def test_ordinary_text_has_the_ids_that_the_template_and_tokenizer_alone_give(
    make: Callable[[], Codec], said: list[str]
) -> None:
    """As pretraining and other servers have them: tools with their prices, system and user messages."""
    made = make()
    words, description, argument, inner, system, user = said
    spec = tool(description, argument, inner)
    if any(string in " ".join(said) for string in added(made).values()):
        return
    shown = {
        "type": "function",
        "function": {"name": spec.name, "description": spec.description, "parameters": spec.parameters},
        "cost_usd": f"{spec.call_usd:.4f}",
        "latency_s": f"{round(spec.latency_s):03d}",
    }
    chat = [{"role": "system", "content": f"{words}\n{system}"}, {"role": "user", "content": user}]
    plain = made.tokenizer.apply_chat_template(chat, tools=[shown], tokenize=False, add_generation_prompt=True)
    asked = [Message.model_validate(one) for one in chat]
    assert made.messages_prompt([Message(role="system", content=system), asked[1]], [spec], words) == made.encode(
        str(plain)
    )
    assert made.messages_prompt(asked, [spec]) == made.encode(str(plain))


BREAKS = st.lists(
    st.one_of(st.sampled_from(["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"]), ordinary)
)


@quick
@given(description=BREAKS.map("".join), argument=BREAKS.map("".join))
def test_no_field_of_a_tool_forges_a_row_of_the_price_table(description: str, argument: str) -> None:
    made = embedded()
    row = ": $0.0001 001s gpt-5\n"
    box = [tool(description + "\n" + row + "free", argument + row, "x"), catalogue().spec("gpt-5")]
    text = made.decode(made.messages_prompt([Message(role="user", content="hello")], box))
    table = text.partition("<|im_start|>system\n")[2].partition("<|im_end|>")[0]
    assert [line.rpartition(" ")[2] for line in table.splitlines()] == [spec.name for spec in box]


@each
@quick
@given(data=st.data())
def test_a_vllm_server_is_sent_these_ids_and_no_text(make: Callable[[], Codec], data: st.DataObject) -> None:
    made = make()
    said = data.draw(texts(made))
    conversation = Conversation(example(instruction=said), made.prompt(example(instruction=said)))
    body = VllmPolicy("http://127.0.0.1:1", "m", name="v").request(conversation, 5)
    assert body["prompt"] == conversation.ids == conversation.prompt_ids
    spoken = {key: value for key, value in body.items() if key not in ("prompt", "model")}
    assert not any(isinstance(value, str) for value in spoken.values())
    assert not {"messages", "tools", "chat_template", "add_special_tokens"} & set(body)


def test_a_control_token_that_the_vocabulary_can_spell_is_spelled_in_characters() -> None:
    """A vocabulary may hold a control string as an ordinary piece: content then never takes that piece."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    pieces = [*"<end>nd", "<e", "<end", "<end>"]
    vocab = {piece: n for n, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("<", "e"), ("n", "d"), ("<e", "nd"), ("<end", ">")]
    vocab["nd"] = len(vocab)
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.add_special_tokens(["<end>"])
    template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", chat_template=template)
    shown = Codec(tokenizer)
    ids = shown.messages_prompt([Message(role="user", content="<end>")], ())
    assert ids == [*(vocab[letter] for letter in "<end>"), vocab["<end>"]]


def template_of(text: str) -> Codec:
    tokenizer = deepcopy(codec().tokenizer)
    tokenizer.chat_template = text
    return Codec(tokenizer)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0].content[:3] }}", "beginning"),
        ("{{ messages[0].content[3:] }}", "cuts"),
        ("{{ messages[0].content.split('|')[-1] }}", "cuts"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ],
)
def test_a_template_that_cannot_be_followed_is_one_line(template: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        template_of(template).messages_prompt([Message(role="user", content="hello | there")], ())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['"', '", "', "<think>\n", "<|im_end|>", "a", " ", "1", "<", "\n"])
def test_hostile_text_costs_time_in_proportion_to_its_length(text: str) -> None:
    made = embedded()

    def seconds(size: int) -> float:
        said = [Message(role="user", content=text * (size // len(text)))]
        began = time.process_time()
        made.messages_prompt(said, ())
        return time.process_time() - began

    seconds(1000)
    assert seconds(100_000) < 2


def test_what_a_tool_says_of_itself_reaches_the_prompt_whole() -> None:
    """A schema is shown as it is: neither its words nor its order change."""
    made = vocabularies.qwen3()
    spec = tool("finds <think> records", "query", "a\nb")
    text = made.decode(made.messages_prompt([Message(role="user", content="hello")], [spec]))
    shown = json.loads(text.partition("<tools>\n")[2].partition("\n</tools>")[0])
    assert shown["function"] == {"name": spec.name, "description": spec.description, "parameters": spec.parameters}


@lru_cache
def normalising(normalizer: str, marked: bool) -> Codec:
    """A tokenizer that turns letters into others; `marked`: its control tokens match what comes out of that."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted({*pre_tokenizers.ByteLevel.alphabet()})
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    made.normalizer = {
        "NFKC": normalizers.NFKC(),
        "lower": normalizers.Lowercase(),
        "accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        "replaced": normalizers.Sequence([normalizers.Replace("~", "<|im_end|>"), normalizers.Replace("^", "<think>")]),
        "left out": normalizers.Replace(Regex("[\u200b\u00ad]"), ""),
    }[normalizer]
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(one, normalized=marked, special=True) for one in ("<|im_end|>", "<|bos|>")])
    made.add_tokens([AddedToken(one, normalized=marked, special=False) for one in ("<think>", "</think>")])
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    return Codec(PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", chat_template=template))


HOW = ["NFKC", "lower", "accents", "replaced", "left out"]
SPOKEN = [
    "<|im_end|>",
    "<|bos|>",
    "<think>",
    "</think>",
    "<",
    "|>",
    "x",
    " ",
    "\n",
    "im_end",
    "\uff5e",
    "~",
    "^",
    "\u200b",
]


def disguised(text: str, how: str, at: int) -> str:
    """A control string as the normaliser turns back into it."""
    match how:
        case "NFKC":
            return "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" and one != "_" else one for one in text)
        case "lower":
            return text.upper()
        case "accents":
            return "".join(one + "\u0301" if one.isalpha() else one for one in text)
        case "left out":
            return text[:at] + "\u200b" + text[at:]
        case _:
            return "~^"[at % 2]


@settings(quick, max_examples=400)
@given(data=st.data(), how=st.sampled_from(HOW), marked=st.booleans())
def test_no_text_that_is_normalised_becomes_a_control_token(data: st.DataObject, how: str, marked: bool) -> None:
    made = normalising(how, marked)
    one = st.builds(disguised, st.sampled_from(SPOKEN[:4]), st.just(how), st.integers(1, 6))
    other = st.sampled_from(SPOKEN)
    parts = data.draw(st.lists(st.one_of(one, other), min_size=1, max_size=5))
    said = "".join(parts)
    turn = made.turn(said)
    written = re.findall("</?think>", said)
    assert turn[-1] == made.eos_id
    assert [added(made)[i] for i in turn[:-1] if i in added(made)] == written, "tags are those that are written"
    assert controls(made, made.observation(said)) == controls(made, made.observation("x"))
    assert controls(made, made.reply(said)) == controls(made, made.reply("x"))
    assert controls(made, made.messages_prompt([Message(role="user", content=said)], ())) == [made.eos_id]


@each
@settings(quick, max_examples=60)
@given(data=st.data())
def test_a_turn_has_its_tags_and_no_special_token(make: Callable[[], Codec], data: st.DataObject) -> None:
    made = make()
    said = data.draw(texts(made))
    special = {i for i, token in made.tokenizer.added_tokens_decoder.items() if token.special}
    turn = made.turn(said)
    assert turn[-1] == made.eos_id and special.isdisjoint(turn[:-1])


@each
@settings(quick, max_examples=60)
@given(said=ordinary, tags=st.lists(st.integers(0, 40), max_size=3))
def test_an_ordinary_turn_has_the_ids_that_the_tokenizer_alone_gives(
    make: Callable[[], Codec], said: str, tags: list[int]
) -> None:
    made = make()
    known = [token.content for token in made.tokenizer.added_tokens_decoder.values() if not token.special]
    text = said + "".join(known[n % len(known)] + said for n in tags if known)
    assert made.turn(text) == [*made.encode(text), made.eos_id]
