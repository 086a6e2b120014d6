"""What we rely on in TRL's experimental rollout seam, measured as the gradient of one step of the real trainer."""

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl import GRPOConfig, GRPOTrainer

from orchestra.training.grpo.group_trainer import trainer_class
from orchestra.training.grpo.passes.tree_attention import enable
from orchestra.training.grpo.rollouts import eq2
from orchestra.training.grpo.trainer import _of_no_left_out_row
from tests.support.worlds import codec, tiny_model

ROWS, GROUP = 6, 3
PROMPTS = [[9, 10, 11, 12], [20, 21]]
OWN, SEEN = [30, 31, 32], [40, 41, 42, 43]
EPISODES = [
    # Prompt, completion, mask: observations (0) between and after the policy's own tokens (1), of uneven lengths.
    (PROMPTS[0], [*OWN, *SEEN, 33], [1, 1, 1, 0, 0, 0, 0, 1]),
    (PROMPTS[0], [50], [1]),
    (PROMPTS[0], [51, 52, *SEEN], [1, 1, 0, 0, 0, 0]),
    (PROMPTS[1], [*SEEN, 60, 61, 62, 63, 64, 65], [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
    (PROMPTS[1], [70, 71], [1, 1]),
    (PROMPTS[1], [2], [0]),
]
ADVANTAGES = [1.5, 0.0, -0.5, 0.0, 2.0, 0.0]

Gradient = dict[str, torch.Tensor]


class Unskipped(GRPOTrainer):
    """Our advantages, but every row kept in the forward pass."""

    rounds: SimpleNamespace

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        return batch | {"advantages": torch.tensor(self.rounds.advantages)}


def trained(
    trainer_class: Any,
    folder: Path,
    advantages: Sequence[float],
    *,
    rewards: Sequence[float | None] = (1, 2, 3, 4, 5, 6),
    asked: list[Any] | None = None,
) -> Gradient:
    """The gradient of one step, read off the weights after plain descent at rate 1."""
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def rollout_func(prompts: Any, trainer: Any) -> dict[str, Any]:
        if asked is not None:
            asked.extend(prompts)
        return {
            "prompt_ids": [p for p, _, _ in EPISODES],
            "completion_ids": [c for _, c, _ in EPISODES],
            "env_mask": [m for _, _, m in EPISODES],
            "logprobs": None,
            "eq2": list(rewards),
        }

    arguments = GRPOConfig(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=ROWS, steps_per_generation=1,
        num_generations=GROUP, learning_rate=1.0, lr_scheduler_type="constant", loss_type="dapo", beta=0.0,
        max_grad_norm=0.0, shuffle_dataset=False, report_to=[], disable_tqdm=True, gradient_checkpointing=False,
        bf16=False, save_strategy="no", temperature=1.0,
    )  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": "", "example_id": f"e{i}"}]} for i in range(2)]
    trainer = trainer_class(
        model=model,
        args=arguments,
        reward_funcs=[eq2],
        rollout_func=rollout_func,
        train_dataset=Dataset.from_list(rows),
        processing_class=codec().tokenizer,
        optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None),
    )
    trainer.rounds = SimpleNamespace(advantages=list(advantages))
    trainer.train()
    return {name: before[name] - p.detach() for name, p in model.named_parameters()}


def by_hand(advantages: Sequence[float], masks: Sequence[Sequence[int]] | None = None) -> Gradient:
    """Of -sum(A x log-probability) over the policy's own tokens, divided by how many there are in the whole batch."""
    model: PreTrainedModel = tiny_model()
    chosen = masks if masks is not None else [m for _, _, m in EPISODES]
    loss = torch.zeros(())
    for (prompt, completion, _), mask, advantage in zip(EPISODES, chosen, advantages, strict=True):
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits, -1).gather(1, torch.tensor([completion]).T).squeeze(1)
        loss = loss - advantage * (logp * torch.tensor(mask)).sum()
    torch.autograd.backward(loss / sum(sum(m) for m in chosen))
    return {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}


def assert_equal(one: Gradient, other: Gradient) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-6, rtol=1e-4)


def test_only_the_policys_own_tokens_have_a_gradient(tmp_path: Path) -> None:
    found = trained(trainer_class(), tmp_path, ADVANTAGES)
    assert_equal(found, by_hand(ADVANTAGES))
    everything = by_hand(ADVANTAGES, [[1] * len(c) for _, c, _ in EPISODES])
    with pytest.raises(AssertionError):
        assert_equal(found, everything)


def test_skipping_rows_without_advantage_changes_no_number(tmp_path: Path) -> None:
    assert_equal(trained(trainer_class(), tmp_path, ADVANTAGES), trained(Unskipped, tmp_path, ADVANTAGES))


def test_a_row_that_shapes_the_padding_may_be_skipped(tmp_path: Path) -> None:
    """The kept rows are the short ones, the longest prompt and completion are not among them."""
    advantages = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert_equal(trained(trainer_class(), tmp_path, advantages), by_hand(advantages))


def test_a_step_without_any_advantage_moves_nothing(tmp_path: Path) -> None:
    found = trained(trainer_class(), tmp_path, [0.0] * ROWS)
    assert all(not g.any() for g in found.values())


def test_rewards_of_none_reach_the_trainer_and_break_nothing(tmp_path: Path) -> None:
    for rewards in ([None, 2, None, 4, 5, 6], [None] * ROWS):
        found = trained(trainer_class(), tmp_path, ADVANTAGES, rewards=rewards)
        assert_equal(found, by_hand(ADVANTAGES))


def test_a_row_that_is_left_out_on_purpose_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import PartialState

    PartialState()
    name = "trl.trainer.grpo_trainer"
    of_trl, rewards = logging.getLogger(name), (None, 2, 3, None, 5, 6)
    monkeypatch.setattr(of_trl, "filters", [])  # A training before, in this process, left its own there.
    with caplog.at_level(logging.WARNING, logger=name):
        trained(trainer_class(), tmp_path / "told", ADVANTAGES, rewards=rewards)
        assert any("returned None" in record.getMessage() for record in caplog.records), "TRL words it otherwise now"
        caplog.clear()
        of_trl.addFilter(_of_no_left_out_row)
        trained(trainer_class(), tmp_path / "quiet", ADVANTAGES, rewards=rewards)
        of_trl.warning("another warning")
    assert [record.getMessage() for record in caplog.records if record.name == name] == ["another warning"]


def test_the_rollout_is_asked_for_whole_groups_with_the_example_id(tmp_path: Path) -> None:
    asked: list[Any] = []
    trained(trainer_class(), tmp_path, ADVANTAGES, asked=asked)
    assert [prompt[0]["example_id"] for prompt in asked] == ["e0"] * GROUP + ["e1"] * GROUP


def test_computing_once_what_rows_share_changes_no_number(tmp_path: Path) -> None:
    def sharing(**arguments: Any) -> Any:
        trainer = trainer_class()(**arguments)
        trainer.sharing = [arguments["model"]]
        assert enable(arguments["model"])
        return trainer

    assert_equal(trained(sharing, tmp_path, ADVANTAGES), by_hand(ADVANTAGES))
