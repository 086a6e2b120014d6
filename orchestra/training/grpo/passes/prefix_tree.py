"""Rows that begin alike as one packed sequence: every token is computed once for all rows that share it.

Episodes of a group share their prompt, and often the first turn and the reply to it. Position t of a row is shared by
the rows whose first t + 2 tokens are equal: they have its input and its label in common, so that one log-probability
serves them all and its gradient is the sum of theirs. Such positions form a tree; a segment is a run of them without a
branch, and attends to itself and to the segments on the way to the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

IGNORED = -100
"""The label of positions that no row asks for."""
ALONE = 1 << 22
"""Scores (queries x keys) from which a segment is attended by itself, without a mask that would be as large."""
OVERHEAD = 1 << 14
"""Scores that may be padding before another product is cheaper."""


@dataclass(frozen=True)
class Segment:
    """Positions `start` to `end` of the sorted rows `first` to `last`, the last not included."""

    first: int
    last: int
    start: int
    end: int


@dataclass(frozen=True)
class Bucket:
    """Segments of about the same shape, attended in one product."""

    queries: torch.Tensor
    """(segments x width,) packed index of each query; 0 where there is none."""
    keys: torch.Tensor
    """(segments x reach,) packed index of each key from the root on; 0 behind the segment's end."""
    segments: int
    mask: torch.Tensor | None
    """(segments, 1, width, reach): 0, or minus infinity behind the query; None: one segment, causal from its end."""
    inside: torch.Tensor | None
    """(tokens,) places of real queries among the padded ones; None: all are."""


@dataclass(frozen=True)
class Paths:
    """All segments in one product without padding, for a kernel that takes lengths: each is causal from its end."""

    keys: torch.Tensor
    """(keys,) packed index of each segment's keys from the root on, one segment after another, as the queries are."""
    query_ends: torch.Tensor
    """(segments + 1,) int32: 0, then where each segment's queries end."""
    key_ends: torch.Tensor
    """The same of `keys`."""
    width: int
    """Most queries of a segment."""
    reach: int
    """Most keys of one."""


@dataclass(frozen=True)
class PrefixTree:
    """A batch as one sequence of `tokens` positions, in the order of the groups."""

    ids: torch.Tensor
    """(1, tokens)."""
    positions: torch.Tensor
    """(1, tokens)."""
    labels: torch.Tensor
    """(1, tokens): the token after each position, -100 where no completion asks for it."""
    where: torch.Tensor
    """(rows, width): the packed position that predicts each token of each completion; 0 in padding."""
    present: torch.Tensor
    """(rows, width) bool: False in padding."""
    groups: Sequence[Sequence[Segment]]
    """Segments of about the same shape."""
    packed: Ints
    """(rows, time): the packed position of each token of the sorted rows."""

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """One for each group."""
        return tuple(_bucket(group, self.packed, self.ids.device) for group in self.groups)

    @cached_property
    def paths(self) -> Paths:
        """Of all segments."""
        segments = [one for group in self.groups for one in group]
        widths, reaches = [one.end - one.start for one in segments], [one.end for one in segments]
        keys = np.concatenate([self.packed[one.first, : one.end] for one in segments])
        device = self.ids.device
        query_ends, key_ends = (
            torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device) for sizes in (widths, reaches)
        )
        return Paths(torch.from_numpy(keys).to(device), query_ends, key_ends, max(widths), max(reaches))

    def by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Values of packed positions (tokens,) as those of the completions' tokens (rows, width); 0 in padding."""
        found = values.index_select(0, self.where.flatten()).view(self.where.shape)
        return found.masked_fill(~self.present, 0.0)


def prefix_tree(ids: torch.Tensor, mask: torch.Tensor, width: int) -> PrefixTree:
    """The tree of rows (rows, time) whose prompts are padded on the left, the last `width` columns on the right."""
    device, split = ids.device, ids.shape[1] - width
    prompts, completions = (part.sum(1).cpu().numpy() for part in (mask[:, :split], mask[:, split:]))
    rows, order = sorted_rows(ids, mask)
    segments = _segments([rows[r] for r in order])
    groups = _alike(segments)
    where: Ints = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    packed, base = [segment for group in groups for segment in group], 0
    for one in packed:
        where[order[one.first : one.last], one.start : one.end] = base + np.arange(one.end - one.start)
        base += one.end - one.start
    of = [(rows[order[one.first]], one) for one in packed]
    labels = np.full(base, IGNORED, dtype=np.int64)
    scored = np.zeros((len(rows), width), dtype=np.int64)
    for r, row in enumerate(rows):
        places = where[r, prompts[r] - 1 : prompts[r] + completions[r] - 1]
        labels[places] = row[prompts[r] :]
        scored[r, : completions[r]] = places

    def tensor(values: Ints) -> torch.Tensor:
        return torch.from_numpy(values).to(device)

    return PrefixTree(
        ids=tensor(np.concatenate([row[one.start : one.end] for row, one in of])[None]),
        positions=tensor(np.concatenate([np.arange(one.start, one.end) for _, one in of])[None]),
        labels=tensor(labels[None]),
        where=tensor(scored),
        present=torch.from_numpy(np.arange(width) < completions[:, None]).to(device),
        groups=groups,
        packed=where[order],
    )


def sorted_rows(ids: torch.Tensor, mask: torch.Tensor) -> tuple[list[Ints], list[int]]:
    """Each row without its padding, and an order in which rows that begin alike are neighbours."""
    table, kept = ids.cpu().numpy(), mask.cpu().numpy().astype(bool)
    rows = [np.ascontiguousarray(row[chosen]) for row, chosen in zip(table, kept, strict=True)]
    return rows, sorted(range(len(rows)), key=lambda row: rows[row].tobytes())


def _segments(rows: Sequence[Ints]) -> list[Segment]:
    """Of sorted rows; a row's last token predicts nothing, so it is in none."""
    ends = [len(row) - 1 for row in rows]
    # Positions that neighbours share: one less than the tokens, since the token after it is the position's label.
    alike = [max(0, equal_length(a, b) - 1) for a, b in pairwise(rows)]
    found, open_ = [], [(0, len(rows), 0)]
    while open_:
        first, last, start = open_.pop()
        end = min(alike[first : last - 1]) if last - first > 1 else ends[first]
        if end > start:
            found.append(Segment(first, last, start, end))
        if last - first == 1:
            continue
        cuts = [first, *(i + 1 for i in range(first, last - 1) if alike[i] == end), last]
        open_ += [(a, b, end) for a, b in pairwise(cuts)]
    return found


def equal_length(one: Ints, other: Ints) -> int:
    """How many tokens both begin with."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def _alike(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Segments in groups whose products are little larger than their parts; the longest first."""
    groups: list[list[Segment]] = []
    width = reach = scores = 0
    for one in sorted(segments, key=lambda s: (s.start - s.end, -s.end)):
        own = (one.end - one.start) * one.end
        padded = (len(groups[-1]) + 1) * width * max(reach, one.end) if groups else 0
        if not groups or padded > 1.3 * (scores + own) + OVERHEAD or padded > ALONE:
            groups.append([])
            width, reach, scores = one.end - one.start, 0, 0
        groups[-1].append(one)
        reach, scores = max(reach, one.end), scores + own
    return groups


def _bucket(group: Sequence[Segment], packed: Ints, device: torch.device) -> Bucket:
    width, reach = max(one.end - one.start for one in group), max(one.end for one in group)
    starts, ends = np.array([one.start for one in group]), np.array([one.end for one in group])
    paths = packed[[one.first for one in group], :reach]
    keys = np.where(np.arange(reach) < ends[:, None], paths, 0)
    at = starts[:, None] + np.arange(width)
    real = at < ends[:, None]
    queries = np.where(real, np.take_along_axis(paths, np.minimum(at, reach - 1), axis=1), 0)
    mask = None
    if len(group) > 1:
        # A query that is padding looks at keys all the same: a row of nothing but minus infinity has no softmax.
        hidden = np.where(np.arange(reach) <= at[:, :, None], np.float32(0), np.float32(-np.inf))
        mask = torch.from_numpy(hidden[:, None]).to(device)
    inside = None if real.all() else torch.from_numpy(np.flatnonzero(real)).to(device)
    flat = [torch.from_numpy(part.ravel()).to(device) for part in (queries, keys)]
    return Bucket(flat[0], flat[1], len(group), mask, inside)
