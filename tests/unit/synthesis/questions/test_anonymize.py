"""A disguised episode is the same one about other names and numbers, and never about a name that later data may use."""

import random

import pytest

from orchestra.config.schema import Habits, load_params
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.render import Codec
from orchestra.synthesis.dataset.generate import generate
from orchestra.synthesis.names import made_up
from orchestra.synthesis.questions.anonymize import GIVEN, NAME, NUMBER, Disguise
from orchestra.tools.toolkit import Toolkit
from orchestra.training.sft import sft_row
from orchestra.training.teacher import teacher_policy
from orchestra.types import Episode
from tests.support.worlds import ROOT

MARK = "<|im_start|>user\n"


@pytest.fixture(scope="module")
def shipped() -> Codec:
    return Codec.load(ROOT / "models/recipes/embedded")


@pytest.fixture(scope="module")
def told(shipped: Codec) -> list[Episode]:
    params = load_params(ROOT / "params.yaml")
    few = params.synthesize.model_copy(update={"train_examples": 150, "heldout_examples": 8})
    params = params.model_copy(update={"synthesize": few})
    kit = Toolkit.from_params(params, ROOT)
    made = generate(params, kit)
    teacher = teacher_policy(kit.catalogue, Habits(strongest=0, stop=0.5), 0, shipped.turn)
    options = RolloutOptions(params.rollout, kit.catalogue.policy_price)
    return rollout(made.examples["train"], teacher, shipped, made.known_to(kit), options)


def prompt(codec: Codec, episode: Episode) -> str:
    return str(codec.tokenizer.decode(list(episode.prompt_ids), skip_special_tokens=False))


def test_no_name_of_a_disguise_could_be_given_later(shipped: Codec) -> None:
    rng = random.Random(3)
    assert all(GIVEN.fullmatch(made_up(rng)) for _ in range(500))
    disguise = Disguise(shipped, rng, taken={"Borvane"})
    names = {disguise.name() for _ in range(2000)}
    assert len(names) > 1500 and not any(GIVEN.fullmatch(name) for name in names) and "Borvane" not in names


def test_the_story_stays_and_its_names_and_numbers_go(shipped: Codec, told: list[Episode]) -> None:
    disguise = Disguise(shipped, random.Random(0))
    changed = 0
    for episode in told:
        other = disguise(episode)
        table, _, request = prompt(shipped, episode).rpartition(MARK)
        new_table, _, new_request = prompt(shipped, other).rpartition(MARK)
        assert new_table == table
        assert NUMBER.sub("#", NAME.sub("X", new_request)) == NUMBER.sub("#", NAME.sub("X", request))
        assert len(other.turns) == len(episode.turns)
        for turn, new in zip(episode.turns, other.turns, strict=True):
            assert shipped.decode(new.ids) == new.text
            assert NUMBER.sub("#", NAME.sub("X", new.text)) == NUMBER.sub("#", NAME.sub("X", turn.text))
        changed += other.prompt_ids != episode.prompt_ids
        assert len(sft_row(other)["labels"]) == len(other.prompt_ids) + len(other.completion_ids)
    assert changed > 0.8 * len(told)


def test_what_was_copied_is_copied_still(shipped: Codec, told: list[Episode]) -> None:
    """Whatever of a turn was read in the request or an observation can be read there in the disguise too."""
    disguise = Disguise(shipped, random.Random(1))
    read = 0
    for episode in told:
        other = disguise(episode)
        seen, new_seen = prompt(shipped, episode).rpartition(MARK)[2], prompt(shipped, other).rpartition(MARK)[2]
        for turn, new in zip(episode.turns, other.turns, strict=True):
            for pattern in (NAME, NUMBER):
                for word, new_word in zip(pattern.findall(turn.text), pattern.findall(new.text), strict=True):
                    if word in pattern.findall(seen):
                        assert new_word in pattern.findall(new_seen)
                        read += 1
            seen, new_seen = f"{seen} {turn.observation}", f"{new_seen} {new.observation}"
    assert read > len(told) / 2
