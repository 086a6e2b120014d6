"""SFT through the real trainer: loss on the policy's own tokens only, and a killed run that continues exactly."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from orchestra.config.schema import Habits, Rollout, Sft
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.training.sft import IGNORED, SftResult, new_model, sft_row, train_sft, training_order
from orchestra.training.tokenizer import save_recipe
from orchestra.types import Episode, ToolCall
from tests.support.worlds import PRICE, codec, easy_example, example, same, tiny_model, toolkit

SETTINGS = Sft(
    seed=0,
    teacher=Habits(strongest=0, stop=0.5), epochs=4, batch_size=2, learning_rate=0.01,
    warmup=0.1,
    save_steps=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> list[Episode]:
    """Twelve of different lengths, with a call and an observation each."""
    box = example().toolbox[:1]
    items = [easy_example(f"e{i}").model_copy(update={"toolbox": box}) for i in range(12)]

    def decide(conversation: Conversation) -> str:
        turns, number = conversation.turns, int(conversation.example.id[1:])
        call = ToolCall(name="calculator", arguments={"expression": "+".join("7" * (1 + number % 5))})
        return format_answer("yes " * (1 + number % 3)) if turns else format_call(call, "sum")

    world = toolkit(tmp_path_factory.mktemp("world"))
    limits = Rollout(max_turns=4, max_turn_tokens=100, max_tokens=500)
    return rollout(items, ScriptedPolicy("script", decide, codec().turn), codec(), world, RolloutOptions(limits, PRICE))


class Killed(Exception):
    """As far as the trainer knows."""


def train(
    episodes: list[Episode], work: Path, *, stop_at: int = 0, settings: Sft = SETTINGS
) -> tuple[PreTrainedModel, SftResult, dict[int, float]]:
    """The model, the result and the losses logged by step."""
    model, losses = tiny_model(), dict[int, float]()

    def log(metrics: dict[str, float], step: int) -> None:
        losses[step] = metrics["train/loss"]
        if step == stop_at:
            raise Killed

    return model, train_sft(model, codec(), episodes, settings, work, log), losses


@given(st.lists(st.integers(1, 500), min_size=1, max_size=120), st.integers(1, 4), st.integers(1, 8))
def test_every_row_is_seen_once_an_epoch_beside_rows_of_its_length(lengths: list[int], epochs: int, size: int) -> None:
    settings = SETTINGS.model_copy(update={"epochs": epochs, "batch_size": size})
    order = training_order(lengths, settings)
    assert order == training_order(lengths, settings)
    assert Counter(order) == dict.fromkeys(range(len(lengths)), epochs)
    # Batches partition the sorted rows: no two of them interleave.
    spans = [[lengths[i] for i in order[k : k + size]] for k in range(0, min(len(order), 50 * size), size)]
    spans.sort(key=lambda batch: (min(batch), max(batch)))
    assert all(max(one) <= min(other) for one, other in pairwise(spans))


def test_a_row_labels_only_what_the_policy_wrote(episodes: list[Episode]) -> None:
    for run in episodes:
        row = sft_row(run)
        assert row["input_ids"] == [*run.prompt_ids, *run.completion_ids]
        own = [i for turn in run.turns for i in turn.ids]
        assert [label for label in row["labels"] if label != IGNORED] == own
        assert all(label in (IGNORED, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))
        assert row["labels"][: len(run.prompt_ids)] == [IGNORED] * len(run.prompt_ids)
        assert own.count(codec().eos_id) == 2


def test_the_trainers_loss_is_the_mean_over_the_policys_own_tokens(episodes: list[Episode], tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 1, "batch_size": 12, "warmup": 0.0})
    _, result, losses = train(episodes, tmp_path, settings=settings)
    model, total, count = tiny_model(), 0.0, 0
    for run in episodes:
        row = sft_row(run)
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(row["labels"])[1:]
        total += float(torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"))
        count += int((labels != IGNORED).sum())
    assert list(losses) == [1]
    assert losses[1] == pytest.approx(total / count, abs=1e-3)
    assert result.loss == pytest.approx(losses[1])


def test_an_interrupted_run_continues_exactly(episodes: list[Episode], tmp_path: Path) -> None:
    whole, result, losses = train(episodes, tmp_path / "whole")
    assert result.steps == 24
    assert result.resumed_from == 0
    assert min(losses.values()) < losses[1]
    with pytest.raises(Killed):
        train(episodes, tmp_path / "cut", stop_at=20)
    # The kill came while a later checkpoint was being written.
    half = tmp_path / "cut/checkpoints/checkpoint-15"
    half.mkdir()
    (half / "trainer_state.json").write_text("{", encoding="utf-8")
    continued, again, tail = train(episodes, tmp_path / "cut")
    assert again.resumed_from == 10
    assert not half.exists()
    assert list(tail.items()) == list(losses.items()), "the first ten are told again, for a curve that is whole"
    assert again.loss == result.loss
    assert same(whole, continued)
    # Killed after the last step: there is nothing left to do, and the result is the same.
    done, last, told = train(episodes, tmp_path / "cut")
    assert (last.resumed_from, last.steps, last.loss) == (24, 24, result.loss)
    assert same(whole, done) and told == losses


def test_new_weights_are_the_recipes_and_the_seeds(tmp_path: Path) -> None:
    tokenizer = codec().tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    save_recipe(tokenizer, tmp_path, hidden=64, layers=2, heads=2)
    one, again, other = new_model(tmp_path, 1), new_model(tmp_path, 1), new_model(tmp_path, 2)
    assert one.config.vocab_size % 64 == 0
    assert one.config.eos_token_id == codec().eos_id
    assert same(one, again)
    assert not same(one, other)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
