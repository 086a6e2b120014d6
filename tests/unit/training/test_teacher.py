"""Who the warm-up imitates: known solutions followed, experts picked by known habits."""

import pytest

from orchestra.config import Habits, Rollout
from orchestra.rollout.loop import rollout
from orchestra.rollout.policies import Conversation
from orchestra.tools.toolkit import Toolkit
from orchestra.training.teacher import CANDIDATE_SKILL, TRIES, appeal, grade, show, teacher_policy
from orchestra.types import Category, Episode, Example, Preference, ToolKind
from tests.worlds import NEUTRAL, PRICE, catalogue, codec, example, toolkit

LIMITS = Rollout(max_turns=5, max_turn_tokens=400, max_tokens=4000)
EXPERTS = [catalogue().spec(name) for name in catalogue().names(ToolKind.EXPERT)]
CHEAP = Preference(kind="cheap", words="Keep it cheap.", outcome=0.3, compute=1, latency=0)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


def topic(name: str = "e1", preference: Preference = NEUTRAL, instruction: str = "who wrote Opal?") -> Example:
    made = example(
        name, instruction=instruction, answer="Tesk", toolbox=EXPERTS, category=Category.TOPIC, preference=preference
    )
    return made.model_copy(update={"topic": "music"})


def taught(tools: Toolkit, items: list[Example], *, seed: int = 0, **habits: float) -> list[Episode]:
    chosen = Habits.model_validate({"bias": 0.0, "heed": 0.0, "careless": 0.0} | habits)
    policy = teacher_policy(tools.catalogue, chosen, seed, codec().turn)
    return rollout(items, policy, codec(), tools, LIMITS, price=PRICE)


def first(run: Episode) -> str:
    assert run.turns[0].call is not None
    return run.turns[0].call.name


def test_a_known_solution_is_followed(tools: Toolkit) -> None:
    calls = ({"name": "search", "arguments": {"query": "Norvik"}},)
    (run,) = taught(tools, [example(instruction="when was Norvik founded?", answer="1911", golden_calls=calls)])
    assert [t.call.name for t in run.turns if t.call] == ["search"]
    assert run.solved


def test_the_same_seed_teaches_the_same_whatever_the_order(tools: Toolkit) -> None:
    items = [topic(f"e{i}") for i in range(12)]
    once = {e.example_id: e for e in taught(tools, items, bias=0.3, careless=0.3)}
    again = {e.example_id: e for e in taught(tools, items[::-1], bias=0.3, careless=0.3)}
    assert once == again
    other = taught(tools, items, seed=1, bias=0.3, careless=0.3)
    assert [first(e) for e in other] != [first(once[e.example_id]) for e in other]


def fitting() -> list[str]:
    return [s.name for s in EXPERTS if catalogue().skill(s.tool, "music") >= CANDIDATE_SKILL]


def test_habits_decide_among_the_experts_that_fit(tools: Toolkit) -> None:
    items = [topic(f"e{i}") for i in range(40)]
    assert {first(e) for e in taught(tools, items)} == set(fitting())
    dearest = max((s for s in EXPERTS if s.name in fitting()), key=lambda s: s.call_usd).name
    assert {first(e) for e in taught(tools, items, bias=1.0)} == {dearest}
    assert {first(e) for e in taught(tools, items, careless=1.0)} - set(fitting())


def test_a_stated_preference_is_heeded_and_an_unstated_one_is_not(tools: Toolkit) -> None:
    items = [topic(f"e{i}", CHEAP) for i in range(5)]
    fit = [s for s in EXPERTS if s.name in fitting()]
    best = max(fit, key=lambda s: appeal(catalogue(), s, "music", CHEAP))
    assert {first(e) for e in taught(tools, items, heed=1.0, bias=1.0)} == {best.name}
    assert best.call_usd < max(s.call_usd for s in fit)
    dear = taught(tools, [topic()], heed=1.0, bias=1.0)
    assert first(dear[0]) != best.name


def test_the_thought_lists_the_candidates_as_the_prompt_shows_them(tools: Toolkit) -> None:
    item = topic()
    (run,) = taught(tools, [item])
    prompt = codec().tokenizer.decode(list(run.prompt_ids))
    thought = run.turns[0].text.partition("</think>")[0].splitlines()
    by_price = sorted((s for s in EXPERTS if s.name in fitting()), key=lambda s: (s.call_usd, s.name))
    assert thought[1:] == ["music", *(show(s, grade(catalogue(), s, "music")) for s in by_price)]
    for spec, line in zip(by_price, thought[2:], strict=True):
        price, seconds, _, name = line.split()
        assert f"{spec.description}: {price} {seconds} {name}\n" in prompt


def test_a_grade_says_what_a_description_promises() -> None:
    grades = {s.name: grade(catalogue(), s, "math") for s in EXPERTS if catalogue().skill(s.tool, "math") >= 0.38}
    for spec in EXPERTS:
        words = set(spec.description.replace(",", "").split())
        if spec.name in grades and "math" not in words:
            assert grades[spec.name] in words
        elif spec.name in grades:
            assert grades[spec.name] == ("good" if words & {"some", "easy"} else "expert")


def test_it_gives_up_after_its_tries(tools: Toolkit) -> None:
    """A question in nobody's book: every expert is unsure."""
    (run,) = taught(tools, [topic(instruction="who wrote Nothing?")])
    asked = [t.call.name for t in run.turns if t.call]
    assert len(asked) == len(set(asked)) == TRIES
    assert run.answer == "I am not sure."


def test_no_expert_left_is_an_answer(tools: Toolkit) -> None:
    item = topic().model_copy(update={"toolbox": ()})
    policy = teacher_policy(tools.catalogue, Habits(bias=1, heed=1, careless=1), 0, codec().turn)
    (run,) = rollout([item], policy, codec(), tools, LIMITS, price=PRICE)
    assert run.answer == "I am not sure."
    assert Conversation(item, list(run.prompt_ids)).ids == list(run.prompt_ids)
