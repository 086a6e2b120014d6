"""Weights that are no numbers: the evaluation of such a checkpoint ends in one line that names it."""

import asyncio
from pathlib import Path

import pytest
import torch

from orchestra.errors import DataError
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.serving.engines.checkpoints import in_process
from tests.support.worlds import codec, easy_example, tiny_model


def written(folder: Path) -> Generation:
    """One turn of the checkpoint, as an evaluation asks for it."""
    policy, item = in_process("grpo", folder), easy_example()
    conversation = Conversation(item, codec().prompt(item))
    policy.begin([conversation])
    return asyncio.run(policy.generate([conversation], [4]))[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("share", ["all", "one"])
def test_broken_weights_are_an_error_of_one_line(tmp_path: Path, value: float, share: str) -> None:
    model = tiny_model()
    with torch.no_grad():
        norm = model.get_parameter("model.norm.weight")
        (norm if share == "all" else norm[:1]).fill_(value)
    model.save_pretrained(str(tmp_path))
    with pytest.raises(DataError, match="log-probabilities are not finite") as told:
        written(tmp_path)
    assert told.value.where == str(tmp_path) and "\n" not in str(told.value)


def test_good_weights_write_a_turn(tmp_path: Path) -> None:
    tiny_model().save_pretrained(str(tmp_path))
    assert len(written(tmp_path).ids) == len(written(tmp_path).logprobs) > 0
