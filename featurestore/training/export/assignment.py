"""The assignment of rows to splits and shards.

A rule assigns rows to splits: by row hash, by columns, by time, or by rank in a class. Inside a
split, the boundaries between hashes decide the shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import (
    InvalidArgument,
    InvalidSplit,
    did_you_mean,
    listing,
)
from featurestore.hashing import row_hash
from featurestore.model.requests import FractionSplit, TimeSplit
from featurestore.model.times import to_micros
from featurestore.training.export.boundaries import GROUP, Boundary, groups_and_hashes

SHARD = "__fs_shard"
UNCOVERED = -1
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SplitRule:
    """A split rule: fractions or time ranges, with the columns of ``split_by`` and ``stratify``."""

    rule: FractionSplit | TimeSplit
    split_columns: tuple[str, ...] = ()
    stratify: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the splits, in order."""
        if isinstance(self.rule, TimeSplit):
            return tuple(name for name, _, _ in self.rule.ranges)
        return tuple(name for name, _ in self.rule.fractions)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rule reads in addition to the key."""
        if isinstance(self.rule, TimeSplit):
            return (self.rule.column, *self.split_columns, *self.stratify)
        return (*self.split_columns, *self.stratify)

    def to_json(self) -> dict[str, Any]:
        """Return the rule for the manifest."""
        if isinstance(self.rule, TimeSplit):
            ranges = {
                name: [_time_json(start), _time_json(end)] for name, start, end in self.rule.ranges
            }
            return {"time": self.rule.column, "ranges": ranges}
        return {
            "fractions": [[name, fraction] for name, fraction in self.rule.fractions],
            "split_by": list(self.split_columns),
            "stratify": list(self.stratify),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SplitRule:
        """Return the rule that ``to_json`` wrote."""
        if "time" in data:
            ranges = {name: (start, end) for name, (start, end) in data["ranges"].items()}
            return cls(TimeSplit(data["time"], ranges))
        fractions = tuple((name, fraction) for name, fraction in data["fractions"])
        return cls(FractionSplit(fractions), tuple(data["split_by"]), tuple(data["stratify"]))


def make_rule(
    splits: Mapping[str, float] | TimeSplit | None,
    *,
    split_by: str | Sequence[str] | None,
    stratify: str | Sequence[str] | None,
    schema: pa.Schema,
) -> SplitRule:
    """Return the rule of a ``create_training_dataset`` call.

    Raises:
        InvalidSplit: Arguments exclude each other, or fractions are invalid.
        InvalidArgument: Columns do not exist or are not times.

    >>> schema = pa.schema([("user", pa.int64())])
    >>> make_rule({"train": 0.8, "test": 0.2}, split_by="user", stratify=None, schema=schema).names
    ('train', 'test')
    """
    split_columns, stratify_columns = as_columns(split_by), as_columns(stratify)
    if split_columns and stratify_columns:
        raise InvalidSplit("split_by and stratify exclude each other.", hint="pass one of them")
    if isinstance(splits, TimeSplit) and (split_columns or stratify_columns):
        raise InvalidSplit(
            "TimeSplit does not support split_by or stratify.",
            hint="omit split_by= and stratify=",
        )
    rule = SplitRule(_rule(splits), split_columns, stratify_columns)
    check_columns(split_columns, schema=schema, argument="split_by")
    check_columns(stratify_columns, schema=schema, argument="stratify")
    check_columns(rule.columns, schema=schema, argument="splits")
    if isinstance(splits, TimeSplit):
        kind = schema.field(splits.column).type
        if not pa.types.is_temporal(kind):
            raise InvalidArgument(
                f"TimeSplit column {splits.column!r} has type {kind}, not a time."
            )
    return rule


def _rule(splits: Mapping[str, float] | TimeSplit | None) -> FractionSplit | TimeSplit:
    if splits is None:
        return FractionSplit((("train", 1.0),))
    if isinstance(splits, TimeSplit):
        return splits
    if isinstance(splits, Mapping):
        return FractionSplit(tuple(splits.items()))
    raise InvalidSplit(
        f"splits={splits!r} is not a split rule.", hint="splits={'train': 0.8, 'test': 0.2}"
    )


def as_columns(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return a name or a sequence of names as a tuple.

    >>> as_columns("user"), as_columns(None)
    (('user',), ())
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(value)


def check_columns(columns: Sequence[str], *, schema: pa.Schema, argument: str) -> None:
    """Raise InvalidArgument if columns are not in the schema."""
    absent = [name for name in columns if name not in schema.names]
    if absent:
        raise InvalidArgument(
            f"{argument} names columns that the data does not have: {listing(absent)}. "
            f"It has {listing(schema.names)}.",
            hint=did_you_mean(absent[0], schema.names, write=f"{argument}={{!r}}")
            or "column names are case-sensitive",
        )


def assign_groups(batch: pa.RecordBatch, *, rule: SplitRule, hashes: UInt64s, seed: int) -> Int64s:
    """Return the group of each row: the number of its split, or with ``stratify`` its class.

    Rows outside all ranges of a TimeSplit get ``UNCOVERED``.
    """
    if isinstance(rule.rule, TimeSplit):
        return _groups_by_time(batch, rule.rule)
    if rule.stratify:
        return row_hash(batch, columns=rule.stratify, seed=0).view(np.int64)
    if len(rule.names) == 1:
        return np.zeros(len(hashes), dtype=np.int64)
    if rule.split_columns:
        hashes = row_hash(batch, columns=rule.split_columns, seed=seed)
    return np.searchsorted(thresholds(rule.rule), hashes, side="right").astype(np.int64)


def thresholds(rule: FractionSplit) -> UInt64s:
    """Return the hashes at which the second and later splits begin: cumulative fractions of 2**64.

    >>> thresholds(FractionSplit((("train", 0.5), ("test", 0.5)))).tolist() == [2**63]
    True
    """
    starts = [min(round(end * 2**64), 2**64 - 1) for end in _ends(rule)]
    return np.array(starts, dtype=np.uint64)


def class_ends(rows: int, rule: SplitRule) -> list[int]:
    """Return the rank at which each split of a class ends, except the last.

    >>> class_ends(11, SplitRule(FractionSplit((("train", 0.75), ("test", 0.25)))))
    [8]
    """
    if isinstance(rule.rule, TimeSplit):
        raise InvalidSplit("TimeSplit has no classes.")
    return [round(end * rows) for end in _ends(rule.rule)]


def _ends(rule: FractionSplit) -> list[float]:
    """Return the cumulative fractions of the splits, except the last."""
    fractions = [fraction for _, fraction in rule.fractions]
    return list(accumulate(fractions))[:-1]


def _groups_by_time(batch: pa.RecordBatch, split: TimeSplit) -> Int64s:
    column = batch.column(batch.schema.get_field_index(split.column))
    present = pc.is_valid(column).to_numpy(zero_copy_only=False)
    times = pc.cast(pc.cast(column, pa.timestamp("us", tz="UTC")), pa.int64())
    micros = times.fill_null(0).to_numpy(zero_copy_only=False)
    groups = np.full(batch.num_rows, UNCOVERED, dtype=np.int64)
    for number, (_, start, end) in enumerate(split.ranges):
        inside = present.copy()
        if start is not None:
            inside &= micros >= to_micros(start)
        if end is not None:
            inside &= micros < to_micros(end)
        groups[inside] = number
    return groups


def _time_json(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


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
