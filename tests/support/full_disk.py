"""A disk that has no room for a file to grow, for a while."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_larger_than(size: int) -> Iterator[None]:
    """Within the block this process can write no byte of a file beyond `size`: a part of a line may be the last."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
