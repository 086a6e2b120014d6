"""Who the warm-up imitates: known solutions followed, experts picked by known habits."""

import pytest

from orchestra.config import Habits, Rollout
from orchestra.rollout.loop import rollout
from orchestra.rollout.policies import Conversation
from orchestra.tools.toolkit import Toolkit
from orchestra.training.teacher import CANDIDATE_SKILL, FREE, PLANS, PROMISE, Plan, grade, merit, show, teacher_policy
from orchestra.types import Category, Episode, Example, Preference, ToolKind
from tests.worlds import NEUTRAL, PRICE, catalogue, codec, example, toolkit

LIMITS = Rollout(max_turns=5, max_turn_tokens=400, max_tokens=4000)
EXPERTS = [catalogue().spec(name) for name in catalogue().names(ToolKind.EXPERT)]
CAREFUL = Preference(kind="accurate", words="It must be right.", outcome=1, compute=0, latency=0)
LIKED = Preference(kind="prefer", words="I like gpt-5.", outcome=1, compute=0, latency=0, tools={"gpt-5": 0.5})
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
    chosen = Habits.model_validate({"bias": 0.0, "heed": 0.0, "careless": 0.0, "sense": 0.0, "patience": 1.0} | habits)
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


def plan_of(run: Episode) -> str:
    return run.turns[0].text.partition("\n</think>")[0].splitlines()[-1]


def test_habits_decide_the_plan(tools: Toolkit) -> None:
    items = [topic(f"e{i}") for i in range(80)]
    assert {plan_of(e) for e in taught(tools, items)} == set(FREE)
    dearest = max((s for s in EXPERTS if s.name in fitting()), key=lambda s: s.call_usd).name
    assert {(plan_of(e), first(e)) for e in taught(tools, items, bias=1.0)} == {("dear", dearest)}
    anyone = taught(tools, items, careless=1.0)
    assert {plan_of(e) for e in anyone} == {"any"} and {first(e) for e in anyone} - set(fitting())


@pytest.mark.parametrize(("hard", "plan"), [(True, "strong"), (False, "value")])
def test_sense_pays_for_a_strong_expert_where_a_question_is_hard(tools: Toolkit, hard: bool, plan: str) -> None:
    items = [topic(f"e{i}").model_copy(update={"hard": hard}) for i in range(5)]
    assert {plan_of(e) for e in taught(tools, items, sense=1.0)} == {plan}
    careful = [item.model_copy(update={"preference": CAREFUL}) for item in items]
    assert {plan_of(e) for e in taught(tools, careful, heed=1.0, bias=1.0)} == {plan}


@pytest.mark.parametrize("plan", [p for p in PLANS if p != "any"])
def test_a_plan_orders_the_experts_by_what_it_says(plan: Plan) -> None:
    wish = Preference(kind="prefer", words="", outcome=1, compute=0, latency=0, tools={"llama-3.3-70b": 0.5})
    graded = {s.name: grade(catalogue(), s, "music") for s in EXPERTS if s.name in fitting()}
    fit = [s for s in EXPERTS if s.name in fitting()]
    order = sorted(fit, key=lambda s: merit(plan, s, graded[s.name], wish), reverse=True)
    value = [PROMISE[graded[s.name]] - 5 * float(s.call_usd) for s in order]
    expected = {
        "cheap": [float(s.call_usd) for s in order] == sorted(float(s.call_usd) for s in fit),
        "fast": [s.latency_s for s in order] == sorted(s.latency_s for s in fit),
        "dear": order[0].name == "claude-opus-4.1",
        "best": [PROMISE[graded[s.name]] for s in order] == sorted((PROMISE[g] for g in graded.values()), reverse=True),
        "strong": order[0].name == "gpt-5",
        "value": value == sorted(value, reverse=True),
        "wish": order[0].name == "llama-3.3-70b",
    }
    assert expected[plan]


@pytest.mark.parametrize(("wish", "plan"), [(CHEAP, "cheap"), (LIKED, "wish")])
def test_a_stated_preference_is_heeded_and_an_unstated_one_is_not(tools: Toolkit, wish: Preference, plan: str) -> None:
    runs = taught(tools, [topic(f"e{i}", wish) for i in range(5)], heed=1.0, bias=1.0)
    assert {plan_of(e) for e in runs} == {plan}
    assert {plan_of(e) for e in taught(tools, [topic(f"e{i}") for i in range(5)], heed=1.0, bias=1.0)} == {"dear"}


def test_the_thought_lists_the_candidates_as_the_prompt_shows_them(tools: Toolkit) -> None:
    item = topic()
    (run,) = taught(tools, [item])
    prompt = codec().tokenizer.decode(list(run.prompt_ids))
    thought = run.turns[0].text.partition("</think>")[0].splitlines()
    by_price = sorted((s for s in EXPERTS if s.name in fitting()), key=lambda s: (s.call_usd, s.name))
    assert thought[1:-1] == ["music", *(show(s, grade(catalogue(), s, "music")) for s in by_price)]
    assert thought[-1] in FREE
    for spec, line in zip(by_price, thought[2:-1], strict=True):
        price, seconds, _, name = line.split()
        assert f"{spec.description}: {price} {seconds} {name}\n" in prompt


def test_a_grade_says_what_a_description_promises() -> None:
    grades = {s.name: grade(catalogue(), s, "math") for s in EXPERTS if catalogue().skill(s.tool, "math") >= 0.38}
    for spec in EXPERTS:
        words = set(spec.description.replace(",", "").split())
        if spec.name in grades and "math" not in words:
            assert grades[spec.name] in words
        elif spec.name in grades:
            assert grades[spec.name] == ("some" if words & {"some", "easy"} else "expert")


def test_a_hard_question_is_called_hard(tools: Toolkit) -> None:
    (run,) = taught(tools, [topic().model_copy(update={"hard": True})])
    assert run.turns[0].text.splitlines()[1] == "music hard"


def test_patience_is_how_often_it_asks_on(tools: Toolkit) -> None:
    """A question in nobody's book: every expert is unsure."""
    item = topic(instruction="who wrote Nothing?")
    (patient,), (not_so,) = taught(tools, [item]), taught(tools, [item], patience=0.0)
    asked = [t.call.name for t in patient.turns if t.call]
    assert sorted(asked) == sorted(fitting())
    assert len([t for t in not_so.turns if t.call]) == 1
    assert not_so.answer == "I am not sure."


def test_no_expert_left_is_an_answer(tools: Toolkit) -> None:
    item = topic().model_copy(update={"toolbox": ()})
    policy = teacher_policy(tools.catalogue, Habits(bias=1, heed=1, careless=1, sense=0, patience=1), 0, codec().turn)
    (run,) = rollout([item], policy, codec(), tools, LIMITS, price=PRICE)
    assert run.answer == "I am not sure."
    assert Conversation(item, list(run.prompt_ids)).ids == list(run.prompt_ids)
