"""Python's collector of cycles, whose looks all requests wait for."""

import gc

YOUNG = 10_000
"""New objects after which it looks for cycles; Python's 700 come with every turn or two."""


def spare() -> None:
    """Have it pass over what is loaded, which stays, and look less often through what requests make.

    What the last release left is looked through now.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
