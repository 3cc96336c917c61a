"""The assignment of rows to shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.training.export.boundaries import Boundary
from featurestore.training.export.hash_columns import GROUP, groups_and_hashes

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

SHARD = "__fs_shard"


@dataclass(frozen=True)
class ClassSplits:
    """The hashes at which the second and later splits of a class begin.

    Rows with the same hash are in the same split.
    """

    starts: tuple[int, ...]


@dataclass(frozen=True)
class ShardStarts:
    """The boundaries of the second and later shards of a split, as arrays."""

    hashes: UInt64s
    offsets: Int64s

    @classmethod
    def from_boundaries(cls, boundaries: Sequence[Boundary]) -> ShardStarts:
        """Return the arrays of a sequence of boundaries."""
        hashes = np.array([each.hash for each in boundaries], dtype=np.uint64)
        return cls(hashes, np.array([each.offset for each in boundaries], dtype=np.int64))

    def shard_range(self, hashes: UInt64s) -> tuple[Int64s, Int64s]:
        """Return the first and last shard (within the split) that may hold each hash."""
        first = np.searchsorted(self.hashes, hashes, side="left")
        last = first.copy()
        if not len(self.hashes):
            return first, last
        nearest = self.hashes[np.minimum(first, len(self.hashes) - 1)]
        equal = np.flatnonzero(nearest == hashes)
        last[equal] = np.searchsorted(self.hashes, hashes[equal], side="right")
        # If a shard begins with the first row of a hash, the previous shard has no row of that hash.
        first[equal] += self.offsets[first[equal]] == 0
        return first, last


@dataclass(frozen=True)
class Assignment:
    """Maps hashed rows to shards, numbered over all splits.

    The split of a row is its group, or with classes the split of ``classes[group]`` that contains
    its hash. ``boundaries[s]`` are the boundaries between the shards of split s, whose first shard
    has the number ``first_shard[s]``. If a boundary divides the rows of one hash, all of these rows
    go to every shard that may hold some of them, and each shard writer takes its own.
    """

    first_shard: tuple[int, ...]
    boundaries: tuple[tuple[Boundary, ...], ...]
    classes: Mapping[int, ClassSplits] | None = None

    @cached_property
    def _starts(self) -> tuple[ShardStarts, ...]:
        return tuple(map(ShardStarts.from_boundaries, self.boundaries))

    def split_of(self, groups: Int64s, hashes: UInt64s) -> Int64s:
        """Return the split of each row, -1 for uncovered ones."""
        if self.classes is None:
            return groups
        splits = np.full(len(groups), -1, dtype=np.int64)
        for group in np.unique(groups).tolist():
            in_group = groups == group
            starts = np.array(self.classes[group].starts, dtype=np.uint64)
            splits[in_group] = np.searchsorted(starts, hashes[in_group], side="right")
        return splits

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with their shard number instead of the group, without uncovered rows."""
        groups, hashes = groups_and_hashes(batch)
        splits = self.split_of(groups, hashes)
        numbers = np.full(len(hashes), -1, dtype=np.int64)
        shared_rows: list[Int64s] = []
        shared_numbers: list[Int64s] = []
        for split, starts in enumerate(self._starts):
            split_rows = np.flatnonzero(splits == split)
            first, last = starts.shard_range(hashes[split_rows])
            numbers[split_rows] = self.first_shard[split] + first
            for further in range(1, int((last - first).max(initial=0)) + 1):
                is_shared = first + further <= last
                shared_rows.append(split_rows[is_shared])
                shared_numbers.append(self.first_shard[split] + first[is_shared] + further)
        plain = batch.select([name for name in batch.schema.names if name != GROUP])
        if not shared_rows and (numbers >= 0).all():
            return _with_shards(plain, numbers)
        covered = np.flatnonzero(numbers >= 0)
        rows = np.concatenate([covered, *shared_rows])
        return _with_shards(
            plain.take(pa.array(rows)), np.concatenate([numbers[covered], *shared_numbers])
        )


def _with_shards(batch: pa.RecordBatch, numbers: Int64s) -> pa.RecordBatch:
    schema = batch.schema.append(pa.field(SHARD, pa.int32()))
    column = pa.array(numbers.astype(np.int32))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)
