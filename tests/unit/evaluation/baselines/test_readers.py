"""Rivals that read: a preference from its words, chances from the table, agreement from the replies."""

import pytest

from orchestra.config.schema import Rollout
from orchestra.errors import ConfigError
from orchestra.evaluation.baselines.base import baseline_policy, find_rule, needed, rivals
from orchestra.evaluation.baselines.knowledge import Knowledge, Lesson
from orchestra.evaluation.baselines.readers import agreed, consensus
from orchestra.evaluation.baselines.reading import PreferenceReader, TableChances, features
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Conversation
from orchestra.synthesis.preferences.sentences import NEUTRAL, WORDS, stated
from orchestra.tools.base import UNSURE
from orchestra.tools.experts.simulated import AnswerBook, BookEntry, question_key
from orchestra.types import Category, Example, Preference, Price, ToolCall, Turn
from tests.support.worlds import catalogue, codec, example, toolkit

TOOLS = ("gpt-5", "gpt-5-mini", "llama-3.3-70b")
READERS = ("logistic_reader", "boosting_reader", "knn_reader")


def question(name: str, preference: Preference = NEUTRAL, text: str = "Who composed the song Olmar?") -> Example:
    offered = [catalogue().spec(tool) for tool in TOOLS]
    made = example(name, instruction=text, answer="Tesk", toolbox=offered, category=Category.TOPIC)
    return made.model_copy(update={"preference": preference})


def asking(kind: str, number: int) -> Preference:
    words = WORDS[kind]["train"]
    return stated(kind, words[number % len(words)], list(TOOLS), TOOLS[number % 3])


def lessons(right: dict[str, float]) -> list[Lesson]:
    """Every kind of preference often; each expert is right as told."""
    kinds = ("neutral", "cheap", "fast", "accurate", "prefer", "avoid")
    wanted = [NEUTRAL if kind == "neutral" else asking(kind, number) for kind in kinds for number in range(26)]
    return [Lesson(question(f"l{number}", preference), right) for number, preference in enumerate(wanted)]


OPTIONS = RolloutOptions(Rollout(max_turns=5, max_turn_tokens=200, max_tokens=4000), Price())
ALL_RIGHT = dict.fromkeys(TOOLS, 1.0)


def test_a_reader_learns_kinds_and_weights_from_training_sentences() -> None:
    reader = PreferenceReader([lesson.example for lesson in lessons(ALL_RIGHT)])
    offered = question("e").toolbox
    for kind in ("cheap", "fast", "accurate"):
        told = [reader.read(words, offered) for words in WORDS[kind]["heldout"]]
        assert sum(one.kind == kind for one in told) >= 0.7 * len(told), kind
    liked = reader.read("please use gpt-5-mini.", offered)
    assert liked.kind == "prefer" and set(liked.tools) == {"gpt-5-mini"}
    shunned = reader.read("please do not ask llama-3.3-70b.", offered)
    assert shunned.kind == "avoid" and "llama-3.3-70b" not in shunned.tools and len(shunned.tools) == 2
    assert reader.read("", offered).kind == "neutral"
    wanted = stated("cheap", "", list(TOOLS)).compute
    assert reader.read("keep it cheap.", offered).compute == pytest.approx(wanted)


@pytest.mark.parametrize("name", READERS)
def test_a_router_that_reads_heeds_what_its_user_asks_for(name: str) -> None:
    """All experts are right: then the preference decides."""
    choose = find_rule(name)(Knowledge(catalogue(), lessons=lessons(ALL_RIGHT)))

    def asked(preference: Preference) -> str:
        item = question("e", preference)
        chosen = choose(Conversation(item, [1]), list(item.toolbox))
        assert chosen is not None
        return chosen.name

    specs = question("e").toolbox
    assert asked(asking("cheap", 0)) == min(specs, key=lambda spec: spec.call_usd).name
    assert asked(asking("fast", 0)) == min(specs, key=lambda spec: spec.latency_s).name
    # gpt-5 costs much more than the favour is worth; the other two are within reach of it.
    assert {asked(stated("prefer", f"please use {name}.", list(TOOLS), name)) for name in TOOLS[1:]} == set(TOOLS[1:])
    assert asked(stated("avoid", "no llama-3.3-70b.", list(TOOLS), "llama-3.3-70b")) != "llama-3.3-70b"


def test_without_lessons_a_reader_is_refused_in_one_line() -> None:
    item = question("e")
    with pytest.raises(ConfigError, match="has no training questions"):
        find_rule("logistic_reader")(Knowledge(catalogue()))(Conversation(item, [1]), list(item.toolbox))
    assert needed([*READERS, "best_plan"]) == {"lessons"} and needed(["consensus"]) == set()


@pytest.mark.parametrize("model", ["logistic", "boosting"])
def test_chances_follow_what_the_table_shows(model: str) -> None:
    told = {"gpt-5": 1.0, "gpt-5-mini": 0.0, "llama-3.3-70b": 0.0}
    table = TableChances(lessons(told), model)  # type: ignore[arg-type]
    item = question("e")
    chance = {spec.name: table.chance(item.instruction, spec, item.toolbox) for spec in item.toolbox}
    assert chance["gpt-5"] > 0.8 > 0.2 > chance["gpt-5-mini"]
    assert len({len(features(item.instruction, spec, item.toolbox)) for spec in item.toolbox}) == 1


def replied(*replies: tuple[str, str]) -> Conversation:
    conversation = Conversation(question("e"), [1])
    for name, text in replies:
        conversation.turns.append(Turn(ids=(1,), text="", call=ToolCall(name=name), observation=text))
    return conversation


def test_two_equal_answers_settle_a_question_and_doubt_does_not() -> None:
    assert agreed(replied(("gpt-5", "Tesk"), ("gpt-5-mini", " tesk. ")))
    assert not agreed(replied(("gpt-5", "Tesk"), ("gpt-5-mini", "Brin")))
    assert not agreed(replied(("gpt-5", UNSURE), ("gpt-5-mini", UNSURE)))
    assert not agreed(replied())


def test_the_consensus_asks_the_strongest_where_the_cheap_ones_differ() -> None:
    choose = consensus(Knowledge(catalogue()))
    item = question("e")
    cheap = sorted(item.toolbox, key=lambda spec: spec.call_usd)[:2]
    first = choose(Conversation(item, [1]), list(item.toolbox))
    assert first is not None and first.name == cheap[0].name
    differ = replied((cheap[0].name, "Tesk"), (cheap[1].name, "Brin"))
    left = [spec for spec in item.toolbox if spec.name not in {one.name for one in cheap}]
    last = choose(differ, left)
    assert last is not None and last.name == "gpt-5"
    assert choose(replied(*((spec.name, spec.name) for spec in item.toolbox)), []) is None


def test_they_play_whole_episodes_and_stand_in_the_claims_table(tmp_path_factory: pytest.TempPathFactory) -> None:
    item = question("e")
    entry = BookEntry(question=item.instruction, topic="music", answer="Tesk", wrong=("Brin",))
    tools = toolkit(tmp_path_factory.mktemp("kit"))
    tools = tools.with_data(tools.index, AnswerBook({question_key(entry.question): entry}))
    knowledge = Knowledge(catalogue(), lessons=lessons(ALL_RIGHT))
    for name in (*READERS, "best_plan", "consensus", "consensus@1", "knn_reader@0"):
        policy = baseline_policy(name, knowledge, codec().turn)
        (made,) = rollout([item], policy, codec(), tools, OPTIONS)
        assert made.answer is not None and made.tool_counts, name
    assert {*READERS, "best_plan", "consensus", "consensus@3", "boosting_reader@0.5"} <= set(rivals())
