"""Plans: what each episode of a group begins with, and what the policy learns from it."""

import math
import random
from collections import Counter

import pytest
import torch

from orchestra.config.reward import Branch, RewardParams
from orchestra.config.schema import Rollout
from orchestra.errors import TrainingError
from orchestra.rewards.advantages import advantages
from orchestra.rewards.group import Reward
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import Conversation
from orchestra.rollout.policies.forced import Beginning, ForcedPolicy
from orchestra.tools.toolkit import Toolkit
from orchestra.training.grpo.branching.plan import _depth, _scores, _Tried, own_share, tried
from tests.support.worlds import PRICE, codec, episode
from tests.unit.training.grpo.branching.world import (
    AT_NAME,
    AT_WORD,
    EXPERTS,
    GREEDY,
    LIMITS,
    SIZE,
    WORDS,
    episodes,
    planned,
    plans,
    policy,
    question,
    written,
)


def test_every_expert_is_called_first_once_and_the_turn_before_is_shared(tools: Toolkit) -> None:
    acting, found = planned(AT_NAME)
    assert sorted(choice.name for choice in found.choices) == sorted(EXPERTS)
    assert sum(choice.chance for choice in found.choices) == pytest.approx(1)
    made = episodes(tools, acting, found)
    for sample, one in enumerate(made):
        choice = found.choice(sample)
        first = one.turns[0]
        assert (
            first.ids[: len(choice.ids)] == choice.ids
            and first.ids[: found.shared] == made[0].turns[0].ids[: found.shared]
        )
        assert f'"name": "{choice.name}"' in first.text and first.logprobs == ()
        assert first.call is None or first.call.name == choice.name
        # Its tokens are paid for as any others, and its prompt is no more in the cache than that of a sampled turn.
        spent = first.charges[0].usage
        assert spent.output_tokens == len(first.ids) and spent.cached_input_tokens == len(one.prompt_ids) - 1
    called = Counter(one.turns[0].call.name for one in made if one.turns[0].call is not None)
    assert called.keys() == set(EXPERTS)


def test_every_word_is_tried_and_ends_where_its_line_ends(tools: Toolkit) -> None:
    acting, found = planned(AT_WORD)
    assert [choice.name for choice in found.choices] == WORDS
    texts = [codec().decode(choice.ids) for choice in found.choices]
    assert [text.split("\n")[2] for text in texts] == WORDS
    made = episodes(tools, acting, found)
    assert [one.turns[0].text.split("\n")[2] for one in made] == ["cheap", "best", "wish", "cheap"]


def test_the_chance_is_the_policy_s_own(tools: Toolkit) -> None:
    """The tokens of the choice that was sampled score what they had when they were sampled."""
    acting, found = planned(AT_NAME)
    made = rollout([question()], acting, codec(), tools, RolloutOptions(LIMITS, PRICE))[0]
    name = made.turns[0].call
    assert name is not None
    taken = next(choice for choice in found.choices if choice.name == name.name)
    assert made.turns[0].ids[: len(taken.ids)] == taken.ids
    asked = Conversation(question(), list(made.prompt_ids))
    open_yet = _Tried(asked, {c.name: c.ids for c in found.choices}, found.shared, "")
    (scores,) = _scores(acting, [open_yet])
    sampled = sum(made.turns[0].logprobs[found.shared : len(taken.ids)])
    assert scores[found.choices.index(taken)] == pytest.approx(sampled, abs=1e-3)


def test_shares_follow_the_policy_or_are_even_and_add_up_to_1() -> None:
    _, found = planned(AT_NAME)
    chances = [choice.chance for choice in found.choices]
    # Four episodes of three choices: the first is taken twice.
    assert found.shares("policy") == pytest.approx([chances[0] / 2, *chances[1:], chances[0] / 2])
    assert found.shares("uniform") == pytest.approx([1 / 6, 1 / 3, 1 / 3, 1 / 6])
    few = planned(AT_NAME, size=2)[1]
    assert len(few.choices) == 2 and sum(few.shares("policy")) == pytest.approx(1)


def test_only_what_follows_the_choice_point_learns(tools: Toolkit) -> None:
    acting, found = planned(AT_NAME)
    for one in episodes(tools, acting, found):
        end = len(found.choice(one.sample).ids)
        both = [found.mask(one, weights) for weights in ("policy", "uniform")]
        assert [len(mask) for mask in both] == [len(one.completion_ids)] * 2
        assert not any(both[0][: found.shared]) and both[0][found.shared :] == one.mask[found.shared :]
        assert both[1] == [int(found.shared <= place < end) for place in range(len(one.mask))]


def test_the_branched_gradient_is_that_of_the_expected_reward() -> None:
    """Σ over episodes of A · log p, over n, has the gradient of Σ p R: the claim of the module's docstring."""
    acting, found = planned(AT_NAME, size=3)
    model, prompt = acting.model, codec().prompt(question())
    rewards = [0.2, 1.0, 0.7]

    def scores() -> list[torch.Tensor]:
        each = []
        for choice in found.choices:
            ids = torch.tensor([[*prompt, *choice.ids]])
            logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
            chosen = logp.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
            each.append(chosen[found.shared :].sum())
        return each

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, next(model.parameters()))[0]

    def expected(values: list[torch.Tensor]) -> torch.Tensor:
        chances = torch.softmax(torch.stack(values), 0)
        return (chances * torch.tensor(rewards)).sum()

    exact = gradient(expected(scores()))
    shape = RewardParams(scale="none")
    weighed = advantages(
        [Reward(r, {}) for r in rewards], min_std=0, clip=100, shape=shape, shares=found.shares("policy")
    )
    ours = gradient(torch.stack([a * s for a, s in zip(weighed, scores(), strict=True)]).sum() / 3)
    torch.testing.assert_close(ours, exact, atol=1e-5, rtol=1e-3)
    # Even shares move each choice's score by its advantage, however seldom the policy makes it.
    even = advantages(
        [Reward(r, {}) for r in rewards], min_std=0, clip=100, shape=shape, shares=found.shares("uniform")
    )
    assert even == pytest.approx([r - sum(rewards) / 3 for r in rewards])


@pytest.mark.parametrize(
    ("branch", "limits"),
    [
        (Branch(at="word", words=["fast", "value"]), LIMITS),
        (AT_NAME, Rollout(max_turns=2, max_turn_tokens=8, max_tokens=1500)),
    ],
    ids=["another word", "no room"],
)
def test_without_a_choice_point_a_group_is_sampled(branch: Branch, limits: Rollout) -> None:
    assert plans([question()], policy(), branch, limits) == [None]


def test_a_share_of_the_groups_tries_every_choice_and_the_others_are_sampled() -> None:
    items = [question(f"e{i}") for i in range(8)]
    every = plans(items, policy(), AT_NAME)
    half = plans(items, policy(), AT_NAME.model_copy(update={"share": 0.5}))
    assert any(every[:4]) and half == [*every[:4], *[None] * 4]


def test_a_choice_that_is_hardly_ever_made_is_not_tried() -> None:
    _, found = planned(AT_WORD)
    chances = sorted(choice.chance for choice in found.choices)
    least = (chances[0] + chances[1]) / 2
    likely = planned(AT_WORD.model_copy(update={"min_chance": least}))[1]
    assert {one.name for one in likely.choices} == {one.name for one in found.choices if one.chance > least}
    assert sum(one.chance for one in likely.choices) == pytest.approx(1) and len(likely.choices) == 2


def test_with_entropy_nothing_moves_where_chances_are_the_exponentials_of_rewards() -> None:
    _, found = planned(GREEDY)
    heat = 0.1
    rewards = [heat * math.log(one.chance) + 0.5 for one in found.choices]
    copied = [*rewards, rewards[0]]
    for weights in ("uniform", "policy"):
        shares = found.shares(weights)
        shape = RewardParams(scale="none")
        earned = advantages([Reward(r, {}) for r in copied], min_std=0, clip=100, shape=shape, shares=shares)
        bonus = found.bonus(heat, weights)
        assert earned == pytest.approx([-one for one in bonus]) and bonus[3] == 0
        assert sum(bonus) == pytest.approx(0)
    rarest = min(range(3), key=lambda place: found.choices[place].chance)
    assert found.bonus(heat, "uniform")[rarest] == max(found.bonus(heat, "uniform"))


@pytest.mark.parametrize("weights", ["policy", "uniform"])
def test_gains_are_advantages_without_shares_and_back(weights: str) -> None:
    _, found = planned(GREEDY)
    rewards = [Reward(value, {}) for value in (0.2, 1.0, 0.7, 0.2)]
    shape = RewardParams(scale="none")
    earned = advantages(rewards, min_std=0, clip=100, shape=shape, shares=found.shares(weights))
    gains = found.gains(earned, weights)
    names = [one.name for one in found.choices]
    assert gains[names[1]] - gains[names[0]] == pytest.approx(0.8) and gains[names[1]] - gains[
        names[2]
    ] == pytest.approx(0.3)
    assert found.paid(gains, weights) == pytest.approx(earned)
    # What an infrastructure failed is in no mean and is paid nothing.
    assert found.gains(earned, weights, {1}).keys() == {names[0], names[2]}
    assert found.paid(gains, weights, {1})[1] == 0


def test_a_copy_changes_no_advantage() -> None:
    rewards = [Reward(value, {}) for value in (0.2, 1.0, 0.7, 0.2)]
    shape = RewardParams(scale="none")
    played = advantages(rewards, min_std=0, clip=100, shape=shape, shares=[1 / 6, 1 / 3, 1 / 3, 1 / 6])
    copied = advantages(rewards, min_std=0, clip=100, shape=shape, shares=[1 / 3, 1 / 3, 1 / 3, 0])
    assert copied == pytest.approx([played[0] + played[3], *played[1:3], 0])


def test_what_the_policy_would_earn_is_logged_beside_what_was_tried() -> None:
    _, found = planned(AT_NAME, size=3)
    group = [episode(solved=place == 0, cost_usd=place) for place in range(3)]
    told = tried([group, group], [found, None], AT_NAME)
    chances = [choice.chance for choice in found.choices]
    assert told["branched"] == 0.5
    assert told["expected_accuracy"] == pytest.approx(chances[0])
    assert told["expected_usd"] == pytest.approx(chances[1] + 2 * chances[2])
    assert tried([group], [None], None) == {}


def test_a_later_turn_tries_every_choice_after_the_same_turns(tools: Toolkit) -> None:
    """The taught model answers without a thought, so its episodes are given a second turn with a choice."""
    acting = policy()
    first = rollout([question()], acting, codec(), tools, RolloutOptions(LIMITS, PRICE))[0].turns[0]
    assert first.call is not None
    again = first.model_copy(update={"ids": tuple(codec().turn(written("gpt-5-mini", "best")))})
    played = episode().model_copy(update={"turns": (first, again)})
    limits = LIMITS.model_copy(update={"max_turns": 3})
    (found,) = plans([question()], acting, AT_WORD, limits, played=[played])
    assert found is not None and found.before == (first,)
    begun = {("e1", sample): found.beginning(sample) for sample in range(SIZE)}
    options = RolloutOptions(limits, PRICE, samples=SIZE)
    made = rollout([question()], ForcedPolicy(acting, begun), codec(), tools, options)
    assert [one.turns[1].text.split("\n")[2] for one in made] == ["cheap", "best", "wish", "cheap"]
    assert {(one.turns[0].ids, one.turns[0].observation_ids) for one in made} == {(first.ids, first.observation_ids)}
    start = len(first.ids) + len(first.observation_ids) + found.shared
    for one in made:
        learns = [place for place, learned in enumerate(found.mask(one, "uniform")) if learned]
        end = len(first.ids) + len(first.observation_ids) + len(found.choice(one.sample).ids)
        assert learns == list(range(start, end))
        assert one.cost_usd >= made[0].turns[0].charges[0].cost_usd


def test_later_turns_are_tried_alike_however_few_episodes_have_them() -> None:
    turn = episode(calls={"gpt-5": 1}).turns[0]
    played = [episode().model_copy(update={"turns": (turn,) * count}) for count in (1, 2, 2, 2, 2, 4)]
    drawn = Counter(_depth(played, random.Random(seed)) for seed in range(600))
    assert drawn.keys() == {1, 2, 3} and all(count / 600 == pytest.approx(1 / 3, abs=0.07) for count in drawn.values())
    assert _depth(played[:1], random.Random(0)) == _depth([], random.Random(0)) == 0


def test_a_call_that_gets_another_reply_when_it_is_made_again_is_refused(tools: Toolkit) -> None:
    acting = policy()
    first = rollout([question()], acting, codec(), tools, RolloutOptions(LIMITS, PRICE))[0].turns[0]
    other = first.model_copy(update={"observation_ids": (*first.observation_ids, 5)})
    begun = {("e1", 0): Beginning(before=(other,))}
    with pytest.raises(TrainingError, match="another reply"):
        rollout([question()], ForcedPolicy(acting, begun), codec(), tools, RolloutOptions(LIMITS, PRICE))


def test_a_batch_with_different_numbers_of_given_turns_is_refused(tools: Toolkit) -> None:
    acting = policy()
    first = rollout([question()], acting, codec(), tools, RolloutOptions(LIMITS, PRICE))[0].turns[0]
    begun = {("e1", 0): Beginning(before=(first,))}
    with pytest.raises(ValueError, match="different numbers"):
        rollout([question()], ForcedPolicy(acting, begun), codec(), tools, RolloutOptions(LIMITS, PRICE, samples=2))


def test_a_settled_choice_is_not_tried_again() -> None:
    _, found = planned(AT_WORD)
    most = max(choice.chance for choice in found.choices)
    assert 0.5 < most < 1
    open_yet = planned(AT_WORD.model_copy(update={"settled": (1 + most) / 2}))[1]
    assert open_yet.choices
    acting = policy()
    for seed in range(10):
        acting.seed = seed
        settled = AT_WORD.model_copy(update={"settled": 0.5})
        assert plans([question()], acting, settled) == [None]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("ranks", "own"), [(1, 8), (2, 4), (8, 1), (3, 2)])
def test_a_share_of_a_step_s_groups_is_the_same_on_any_number_of_ranks(share: float, ranks: int, own: int) -> None:
    parts = [own_share(share, own, rank, ranks) for rank in range(ranks)]
    assert sum(parts) == own_share(share, own * ranks) == math.ceil(share * own * ranks)
    assert max(parts) - min(parts) <= 1 and max(parts) <= own
