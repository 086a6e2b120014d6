"""Users in the loop: asked by a question, answering by their rules, at an end after so many replies."""

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.accounting.budget import Budget
from orchestra.files.jsonl import read_jsonl
from orchestra.rollout.loop import RolloutOptions, run_episodes
from orchestra.rollout.policies.base import ScriptedPolicy
from orchestra.rollout.policies.scripted import follow
from orchestra.rollout.users import IGNORANT, ModelUser, UserSimulator
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Charge, Component, Episode, Example, Price, StopReason, User
from tests.support.endpoint import answer, serving
from tests.support.scripts import LIMITS, call, play, says
from tests.support.worlds import PRICE, codec

ASK, PAY, DONE = "which reader is it?", call("pay_fine", reader="Brin"), "it was 7"


@pytest.fixture
def asking(paying: Example) -> Example:
    """Brin is not named: only the user can tell."""
    update = {"instruction": "a reader (ask me which) pays; how much?", "user": User(facts={"reader": "Brin"})}
    return paying.model_copy(update=update)


def test_a_question_goes_to_the_user_and_comes_back_as_its_words(tools: Toolkit, asking: Example) -> None:
    run = play(tools, says(ASK, PAY, DONE), asking)
    asked = run.turns[0]
    assert (asked.observation, asked.call, asked.parse_error) == ("the reader is Brin", None, None)
    shown = codec().tokenizer.decode(list(asked.observation_ids), skip_special_tokens=False)
    assert shown == "\n<|im_start|>user\nthe reader is Brin<|im_end|>\n<|im_start|>assistant\n"
    assert run.solved and run.stop is StopReason.ANSWERED and run.tool_counts == {"pay_fine": 1}
    assert len(run.mask) == len(run.completion_ids) and sum(run.mask) == sum(len(turn.ids) for turn in run.turns)
    assert Episode.model_validate_json(run.model_dump_json()) == run


def test_without_a_user_a_question_is_the_answer(tools: Toolkit, paying: Example) -> None:
    run = play(tools, says(ASK, PAY, DONE), paying)
    assert (len(run.turns), run.answer, run.turns[0].observation) == (1, ASK, None)


def test_the_user_knows_its_facts_only_and_ends_the_talk(tools: Toolkit, asking: Example) -> None:
    run = play(tools, says("how are you?"), asking)
    assert [turn.observation for turn in run.turns] == [IGNORANT] * 3 + [None]
    assert (run.stop, run.answer, run.solved) == (StopReason.ANSWERED, "how are you?", False)


def test_the_known_solution_asks_first(tools: Toolkit, asking: Example) -> None:
    known = ScriptedPolicy("known", lambda c: follow(c, lambda *_: None), codec().turn)
    run = play(tools, known, asking)
    assert run.solved and run.turns[0].text == "which reader?" and len(run.turns) == 3


def test_no_room_for_a_reply_ends_the_episode_within_its_limit(tools: Toolkit, asking: Example) -> None:
    prompt = len(codec().prompt(asking))
    tight = LIMITS.model_copy(update={"max_tokens": prompt + len(codec().turn(ASK)) + 5})
    run = play(tools, says(ASK, PAY, DONE), asking, tight)
    assert run.stop is StopReason.TOKEN_LIMIT and run.turns[0].observation_ids == ()


class Model:
    """A model as user, over a double."""

    def __init__(self, folder: Path, url: str, attempts: int = 1) -> None:
        chat = Chat("user-1", model="user-1", url=url, attempts=attempts)
        price = Price(output_per_million=Decimal(1000))
        self.user = ModelUser(PaidChat(chat, price, Budget(folder / "ledger.jsonl", Decimal(1)), Component.USER))


def attempt(tools: Toolkit, item: Example, user: UserSimulator, cap: str | None = None) -> Episode:
    policy = says(ASK, PAY, DONE)
    options = RolloutOptions(LIMITS, PRICE, user=user, budget_usd=None if cap is None else Decimal(cap))
    return asyncio.run(run_episodes([item], policy, codec(), tools, options))[0]


def test_a_model_plays_the_user_by_the_same_rules_and_is_charged(
    tools: Toolkit, asking: Example, tmp_path: Path
) -> None:
    with serving([(200, answer("It is\nBrin."), 0)]) as double:
        run = attempt(tools, asking, Model(tmp_path, double.url).user)
        system, question = double.asked[0]["messages"]
    assert "the reader is Brin" in system["content"] and asking.instruction in system["content"]
    assert question == {"role": "user", "content": ASK}
    assert run.solved and run.turns[0].observation == "It is Brin."
    spent: list[Charge] = [charge for charge in run.charges if charge.component is Component.USER]
    assert [charge.cost_usd for charge in spent] == [Decimal("0.007")]


def test_a_model_is_told_the_users_own_rules(tools: Toolkit, asking: Example, tmp_path: Path) -> None:
    user = User(facts={"reader": "Brin"}, rules=("You are in a hurry.", "You never say please."))
    with serving([(200, answer("Brin"), 0)]) as double:
        attempt(tools, asking.model_copy(update={"user": user}), Model(tmp_path, double.url).user)
        attempt(tools, asking, Model(tmp_path, double.url).user)
        ruled, plain = (request["messages"][0]["content"] for request in double.asked)
    assert ruled == plain + "\nThis is how you behave: You are in a hurry. You never say please."
    assert "rules" in user.model_dump() and "rules" not in User(facts={"reader": "Brin"}).model_dump()


def test_a_user_that_fails_leaves_the_verdict_unknown(tools: Toolkit, asking: Example, tmp_path: Path) -> None:
    with serving([(401, {}, 0)]) as double:
        run = attempt(tools, asking, Model(tmp_path, double.url).user)
    assert (run.stop, run.verdict, run.turns[0].observation) == (StopReason.TOOL_FAILURE, None, None)


@pytest.mark.parametrize(("cap", "stop"), [("0.3", StopReason.BUDGET), ("0.5", StopReason.ANSWERED)])
def test_a_user_is_not_asked_whose_reply_could_cross_the_episodes_cap(
    cap: str, stop: StopReason, tools: Toolkit, asking: Example, tmp_path: Path
) -> None:
    """A reply is 200 tokens at most: 0.2 dollars an attempt."""
    with serving([(200, answer("Brin"), 0)]) as double:
        run = attempt(tools, asking, Model(tmp_path, double.url, attempts=2).user, cap)
    assert run.stop is stop and len(double.asked) == (stop is StopReason.ANSWERED)
    assert run.solved is (stop is StopReason.ANSWERED)


@pytest.mark.parametrize("last", [200, 401])
def test_what_lost_replies_of_the_user_cost_is_in_the_episode(
    last: int, tools: Toolkit, asking: Example, tmp_path: Path
) -> None:
    with serving([(0, None, 0), (last, answer("Brin"), 0)]) as double:
        run = attempt(tools, asking, Model(tmp_path, double.url, attempts=2).user)
    spent = [charge.cost_usd for charge in run.charges if charge.component is Component.USER]
    assert spent == [Decimal("0.207") if last == 200 else Decimal("0.2")]
    assert sum(line.cost_usd for line in read_jsonl(tmp_path / "ledger.jsonl", Charge, fix="")) == sum(spent)
