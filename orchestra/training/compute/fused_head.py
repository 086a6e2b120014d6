"""TRL's fused head on a CPU: only the tokens that learn are scored."""


def score_labels_alone() -> None:
    """Have the fused head project only positions with a label, on every device.

    TRL does so where Triton runs; elsewhere it scores prompts and replies too, which no loss counts. Half of a step of
    the embedded profile went there (two cores). The losses are the same.
    """
    from trl.trainer import utils

    utils._use_triton = lambda device: True
