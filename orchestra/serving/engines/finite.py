"""A checkpoint in this process whose broken weights are an error of one line, and no episode."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.errors import DataError
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.transformers import TransformersPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FinitePolicy(TransformersPolicy):
    """The model of a folder; no record can hold a turn whose log-probabilities are no numbers."""

    def __init__(self, folder: Path, name: str, model: "PreTrainedModel | None" = None) -> None:
        super().__init__(folder, name=name, model=model)
        self._folder = folder

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        """One turn for each; raises `DataError` where the model computes no numbers."""
        written = await super().generate(conversations, max_tokens)
        if not all(math.isfinite(logprob) for one in written for logprob in one.logprobs):
            what = "the model's log-probabilities are not finite: its weights are broken"
            fix = "train it again, with a lower learning rate where it happens again"
            raise DataError(what, where=str(self._folder), fix=fix)
        return written
