"""Whom the warm-up imitates: known solutions followed, abilities shown in full, choices drawn by habit alone."""

from collections import Counter
from dataclasses import replace

import pytest

from orchestra.config.schema import Habits, Rollout
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Conversation
from orchestra.tools.base import UNSURE
from orchestra.tools.search.corpus import Document, SearchIndex
from orchestra.tools.toolkit import Toolkit
from orchestra.training.choices import ANSWER, POOR, SEARCH, WORDS, Candidate, carried_out
from orchestra.training.teacher import (
    CANDIDATE_SKILL,
    FELT,
    MEANT,
    candidates,
    choice_words,
    grade,
    named,
    reasoned,
    show,
    steps,
    teacher_policy,
    wish,
)
from orchestra.types import Category, Episode, Example, Preference, ToolKind, Turn, User
from tests.support.worlds import NEUTRAL, PRICE, catalogue, codec, example, toolkit

LIMITS = Rollout(max_turns=5, max_turn_tokens=600, max_tokens=6000)
EXPERTS = [catalogue().spec(name) for name in catalogue().names(ToolKind.EXPERT)]
LIKED = Preference(kind="prefer", words="I like gpt-5.", outcome=1, compute=0, latency=0, tools={"gpt-5": 0.5})
DISLIKED = LIKED.model_copy(update={"kind": "avoid", "tools": {s.name: 0.25 for s in EXPERTS if s.name != "gpt-5"}})
CHEAP = Preference(kind="cheap", words="Keep it cheap.", outcome=0.3, compute=1, latency=0)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


def topic(name: str = "e1", preference: Preference = NEUTRAL, instruction: str = "who wrote Opal?") -> Example:
    made = example(
        name, instruction=instruction, answer="Tesk", toolbox=EXPERTS, category=Category.TOPIC, preference=preference
    )
    return made.model_copy(update={"topic": "music"})


def taught(
    tools: Toolkit, items: list[Example], *, seed: int = 0, strongest: float = 0, stop: float = 0.5, ask_on: float = 0
) -> list[Episode]:
    habits = Habits(strongest=strongest, stop=stop, ask_on=ask_on)
    policy = teacher_policy(tools.catalogue, habits, seed, codec().turn)
    return rollout(items, policy, codec(), tools, RolloutOptions(LIMITS, PRICE))


def thoughts(run: Episode) -> list[list[str]]:
    found = [turn.text.partition("\n</think>")[0].splitlines()[1:] for turn in run.turns if "</think>" in turn.text]
    assert len(found) == len(run.turns)
    return found


def choice_of(thought: list[str], turn: int) -> str:
    """Without its reasons, which repeat the wish before it and, after a reply, the state."""
    *said, word = thought[-1].split(" ")
    assert len(said) == (2 if turn else 1)
    reasons, choice = word.split("-")[: len(said)], "-".join(word.split("-")[len(said) :])
    assert word == reasoned(said[0] if turn else None, said[-1], choice) and len(reasons) == len(said)
    return choice


def asked(run: Episode) -> list[str]:
    return [turn.call.name for turn in run.turns if turn.call is not None]


def test_a_known_solution_is_followed(tools: Toolkit) -> None:
    calls = ({"name": "search", "arguments": {"query": "Norvik"}},)
    (run,) = taught(tools, [example(instruction="when was Norvik founded?", answer="1911", golden_calls=calls)])
    assert asked(run) == ["search"] and run.solved


def test_what_everybody_knows_is_answered_without_a_tool(tools: Toolkit) -> None:
    item = example(instruction="Which day follows Monday?", answer="Tuesday", category=Category.DIRECT)
    (run,) = taught(tools, [item])
    assert not asked(run) and run.answer == "Tuesday"


LEND = {"name": "get_loan", "arguments": {"reader": "Brin"}}
PAY = {"name": "pay_fine", "arguments": {"loan": 4711}}


def conversation(item: Example, *replies: str) -> Conversation:
    turn = Turn(text="", ids=(), logprobs=(), call=None, observation=None)
    return Conversation(item, [], turns=[turn.model_copy(update={"observation": reply}) for reply in replies])


@pytest.mark.parametrize(
    ("words", "facts", "replies", "thought"),
    [
        ("pay Brin's fine", {}, (), "get_loan pay_fine"),
        ("pay Brin's fine", {}, ("loan: 4711, due: 300",), "loan 4711 pay_fine"),
        ("pay Brin's fine", {}, ("loan: 4711, due: 300", "paid: 7, left: 90"), "paid 7"),
        ("pay Brin's fine", {}, ("loan: 4711, due: 300", "paid: 7, left: 7"), ""),
        ("pay a reader's fine (ask me which)", {"reader": "Brin"}, (), "ask get_loan pay_fine"),
        ("pay a reader's fine (ask me which)", {"reader": "Brin"}, ("the reader is Brin",), "get_loan pay_fine"),
        ("find the loan; only if it is 4711, pay its fine", {}, (), "get_loan"),
        ("find the loan; only if it is 4711, pay its fine", {}, ("loan: 4711, due: 300",), "loan 4711 pay_fine"),
    ],
)
def test_a_thought_notes_what_is_needed_and_names_the_tools_to_call(
    words: str, facts: dict[str, str], replies: tuple[str, ...], thought: str
) -> None:
    item = example(instruction=words, answer="7", golden_calls=(LEND, PAY), communicate=("7",))
    item = item.model_copy(update={"user": User(facts=facts) if facts else None})
    assert steps(conversation(item, *replies)) == thought


def test_the_same_seed_teaches_the_same_whatever_the_order(tools: Toolkit) -> None:
    items = [topic(f"e{i}") for i in range(12)]
    once = {e.example_id: e for e in taught(tools, items)}
    assert once == {e.example_id: e for e in taught(tools, items[::-1])}
    assert [asked(e) for e in taught(tools, items, seed=1)] != [asked(e) for e in once.values()]


def test_every_call_carries_its_choice_out(tools: Toolkit) -> None:
    for preference in (NEUTRAL, CHEAP, LIKED, DISLIKED):
        for run in taught(tools, [topic(f"e{i}", preference) for i in range(40)]):
            listed, names = candidates(catalogue(), topic(preference=preference)), asked(run)
            for turn, thought in enumerate(thoughts(run)):
                left = [one for one in listed if one.spec.name not in names[:turn]]
                choice = choice_of(thought, turn)
                meant = carried_out(choice, left)
                assert (meant.spec.name if meant else ANSWER) == (names[turn] if turn < len(names) else choice)


@pytest.mark.parametrize("strongest", [0.0, 0.6])
def test_choices_depend_on_no_wish(tools: Toolkit, strongest: float) -> None:
    counts = {}
    for preference in (NEUTRAL, CHEAP):
        runs = taught(tools, [topic(f"e{i}", preference) for i in range(300)], strongest=strongest)
        counts[preference.kind] = Counter(choice_of(thoughts(run)[0], 0) for run in runs)
    assert counts["neutral"] == counts["cheap"]
    share = counts["neutral"]["strongest"] / 300
    assert share == pytest.approx(strongest or 1 / len(WORDS), abs=0.08)
    assert all(counts["neutral"][word] >= 12 for word in WORDS)


def test_the_thought_says_the_wish_in_a_word() -> None:
    said = [wish(topic(preference=one)) for one in (NEUTRAL, CHEAP, LIKED, DISLIKED)]
    assert said == ["any", "cheap", "like", "not"]
    assert [named(topic(preference=one)) for one in (CHEAP, LIKED, DISLIKED)] == [[], ["like gpt-5"], ["not gpt-5"]]


def test_every_choice_that_a_teacher_can_make_is_among_the_choice_words(tools: Toolkit) -> None:
    words = choice_words()
    assert len(set(words)) == len(words) and not {*FELT.values()} & {*MEANT.values()}
    for preference in (NEUTRAL, CHEAP, LIKED, DISLIKED):
        for run in taught(tools, [topic(f"e{i}", preference) for i in range(60)], stop=0.3):
            assert {thought[-1].split(" ")[-1] for thought in thoughts(run)} <= set(words)


def test_the_thought_lists_the_candidates_as_the_prompt_shows_them(tools: Toolkit) -> None:
    item = topic()
    (run,) = taught(tools, [item])
    prompt = codec().tokenizer.decode(list(run.prompt_ids))
    fitting = [s for s in EXPERTS if catalogue().skill(s.tool, "music") >= CANDIDATE_SKILL]
    by_price = sorted(fitting, key=lambda s: (s.call_usd, s.name))
    first = thoughts(run)[0]
    graded = [Candidate(spec, grade(catalogue(), spec, "music")) for spec in by_price]
    assert first[:-1] == ["music", *map(show, graded)] and first[-1].startswith("any ")
    assert show(replace(graded[0], mark="like")) == f"{show(graded[0])} like"
    for spec, line in zip(by_price, first[1:-1], strict=True):
        price, seconds, _, name = line.split()
        assert f"{spec.description}: {price} {seconds} {name}\n" in prompt


def test_a_named_expert_is_listed_with_its_mark_even_if_it_does_not_suit() -> None:
    stranger = next(s for s in EXPERTS if catalogue().skill(s.tool, "music") < CANDIDATE_SKILL)
    liked = LIKED.model_copy(update={"tools": {stranger.name: 0.5}})
    found = {one.spec.name: (one.grade, one.mark) for one in candidates(catalogue(), topic(preference=liked))}
    assert found[stranger.name] == (POOR, "like")
    assert {mark for _, (_, mark) in found.items()} == {"", "like"}


def test_a_grade_says_what_a_description_promises() -> None:
    for spec in EXPERTS:
        words = spec.description.replace(",", "").split()
        for subject in catalogue().topics:
            found = grade(catalogue(), spec, subject)
            if found in ("strong", "good", "fair"):
                assert found in words
            elif found == "some":
                assert f"some {subject}" in spec.description
            else:
                assert (found == "expert") == (subject in words and f"some {subject}" not in spec.description)


def test_a_hard_question_is_thought_of_like_any_other(tools: Toolkit) -> None:
    (plain,), (hard,) = taught(tools, [topic()]), taught(tools, [topic().model_copy(update={"hard": True})])
    assert plain.turns == hard.turns


def test_after_a_reply_it_says_what_is_known(tools: Toolkit) -> None:
    """A question in nobody's book: every expert is unsure."""
    runs = taught(tools, [topic(f"e{i}", instruction="who wrote Nothing?") for i in range(20)])
    assert {thought[0].split()[0] for run in runs for thought in thoughts(run)[1:]} == {"unsure"}
    assert {run.answer for run in runs} == {"I am not sure."}
    known = [topic(f"e{i}") for i in range(60)]
    states = {thought[0].split()[0] for run in taught(tools, known, stop=0.2) for thought in thoughts(run)[1:]}
    assert states <= {"unsure", "one", "agree", "differ"}


def test_asking_on_is_for_where_nothing_is_known(tools: Toolkit) -> None:
    unknown = [topic(f"e{i}", instruction="who wrote Nothing?") for i in range(20)]
    known = [topic(f"e{i}") for i in range(20)]
    once = [len(run.turns) for run in taught(tools, unknown, stop=1)]
    on = [len(run.turns) for run in taught(tools, unknown, stop=1, ask_on=1)]
    assert set(once) == {2} and min(on) > 2
    sure = [run for run in taught(tools, known, stop=1, ask_on=1) if run.turns[0].observation != UNSURE]
    assert sure and {len(run.turns) for run in sure} == {2}


def test_a_search_is_a_choice_where_there_is_one(tools: Toolkit) -> None:
    record = Document(id="1", title="Opal author", text="The author of the song Opal is Tesk.")
    tools = tools.with_data(SearchIndex.build([record]), tools.book)
    spec = catalogue().spec(SEARCH)
    changes = {"toolbox": (*EXPERTS, spec), "query": "Opal author"}
    items = [topic(f"e{i}").model_copy(update=changes) for i in range(60)]
    runs = [run for run in taught(tools, items) if asked(run)[0] == SEARCH]
    assert runs and all(thoughts(run)[1][0].startswith("found any ") for run in runs)
    assert {run.answer for run in runs} == {"Tesk"}


def test_no_expert_left_is_an_answer(tools: Toolkit) -> None:
    (run,) = taught(tools, [topic().model_copy(update={"toolbox": ()})])
    assert run.answer == "I am not sure."
