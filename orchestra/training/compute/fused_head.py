"""TRL's fused head as trainings need it: only tokens that learn are scored, and only split weights are gathered."""

import functools
import inspect
from typing import Any


def adapt_head() -> None:
    """Have the fused head project only positions with a label on every device, and gather only what ZeRO-3 splits.

    TRL leaves out the other positions where Triton runs; elsewhere it scores prompts and replies too, which no loss
    counts. Half of a step of the embedded profile went there (two cores). The losses are the same.

    A pass that is computed again (`in_micro_batches`) keeps copies of its weights, made while they were whole. They
    are no parameters of DeepSpeed's, and TRL asks every weight for the state that only those have.
    """
    from trl.trainer import utils

    utils._use_triton = lambda device: True
    gather = inspect.unwrap(utils.maybe_gather_lm_head_ctx)

    @functools.wraps(gather)
    def gather_split(*weights: Any) -> Any:
        return gather(*(one for one in weights if hasattr(one, "ds_status")))

    utils.maybe_gather_lm_head_ctx = gather_split
