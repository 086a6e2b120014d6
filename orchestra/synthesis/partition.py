"""Which part of a data set a shard makes: what two shards make apart is never the same.

A set of one shard owns everything, and is made as if there were no shards.
"""

import hashlib
from dataclasses import dataclass

from orchestra.types import Split


@dataclass(frozen=True)
class SetPart:
    """One of `count` equal parts of whatever can be made: names, sums, tasks of a domain."""

    index: int = 0
    count: int = 1

    @property
    def whole(self) -> bool:
        """Whether one machine makes everything."""
        return self.count == 1

    def owns(self, text: str) -> bool:
        """Whether this share may make it: every text belongs to exactly one share, by its hash."""
        if self.whole:
            return True
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % self.count == self.index

    def seed(self, seed: int) -> str:
        """The seed of its own that every draw starts from."""
        return str(seed) if self.whole else f"{seed}/{self.index}/{self.count}"


WHOLE = SetPart()


@dataclass(frozen=True)
class Shard(SetPart):
    """The examples that are made together, by their numbers in the set."""

    train: range = range(0)
    heldout: range = range(0)

    def numbers(self, split: Split) -> range:
        """The numbers of its examples of a split: `range(5000, 10000)`."""
        return self.train if split == "train" else self.heldout

    @property
    def size(self) -> int:
        """How many examples it has."""
        return len(self.train) + len(self.heldout)
