"""The assignment of rows to splits and shards.

A rule assigns rows to splits by row hash, by columns, by time, or by rank within a class. Within a
split, hash boundaries determine the shard of a row.
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
        """The columns that the rule needs in addition to the key."""
        if isinstance(self.rule, TimeSplit):
            return (self.rule.column, *self.split_columns, *self.stratify)
        return (*self.split_columns, *self.stratify)

    def to_json(self) -> dict[str, Any]:
        """Convert the rule to JSON for the manifest."""
        if isinstance(self.rule, TimeSplit):
            ranges = {
                name: [_format_time(start), _format_time(end)]
                for name, start, end in self.rule.ranges
            }
            return {"time": self.rule.column, "ranges": ranges}
        return {
            "fractions": [[name, fraction] for name, fraction in self.rule.fractions],
            "split_by": list(self.split_columns),
            "stratify": list(self.stratify),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SplitRule:
        """Parse the JSON that ``to_json`` returned."""
        if "time" in data:
            ranges = {name: (start, end) for name, (start, end) in data["ranges"].items()}
            return cls(TimeSplit(data["time"], ranges))
        fractions = tuple((name, fraction) for name, fraction in data["fractions"])
        return cls(FractionSplit(fractions), tuple(data["split_by"]), tuple(data["stratify"]))


def build_split_rule(
    splits: Mapping[str, float] | TimeSplit | None,
    *,
    split_by: str | Sequence[str] | None,
    stratify: str | Sequence[str] | None,
    schema: pa.Schema,
) -> SplitRule:
    """Build the split rule from the arguments of ``create_training_dataset``.

    Raises:
        InvalidSplit: Arguments are mutually exclusive, or fractions are invalid.
        InvalidArgument: Columns do not exist or are not times.

    >>> schema = pa.schema([("user", pa.int64())])
    >>> build_split_rule({"train": 0.8, "test": 0.2}, split_by="user", stratify=None, schema=schema).names
    ('train', 'test')
    """
    split_columns, stratify_columns = to_column_names(split_by), to_column_names(stratify)
    if split_columns and stratify_columns:
        raise InvalidSplit("split_by and stratify cannot be combined.", hint="pass only one")
    if isinstance(splits, TimeSplit) and (split_columns or stratify_columns):
        raise InvalidSplit(
            "TimeSplit does not support split_by or stratify.",
            hint="omit split_by= and stratify=",
        )
    rule = SplitRule(_parse_splits(splits), split_columns, stratify_columns)
    check_columns(split_columns, schema=schema, argument="split_by")
    check_columns(stratify_columns, schema=schema, argument="stratify")
    check_columns(rule.columns, schema=schema, argument="splits")
    if isinstance(splits, TimeSplit):
        time_type = schema.field(splits.column).type
        if not pa.types.is_temporal(time_type):
            raise InvalidArgument(
                f"TimeSplit column {splits.column!r} has type {time_type}, not a time."
            )
    return rule


def _parse_splits(splits: Mapping[str, float] | TimeSplit | None) -> FractionSplit | TimeSplit:
    if splits is None:
        return FractionSplit((("train", 1.0),))
    if isinstance(splits, TimeSplit):
        return splits
    if isinstance(splits, Mapping):
        return FractionSplit(tuple(splits.items()))
    raise InvalidSplit(
        f"splits={splits!r} is not a split rule.", hint="splits={'train': 0.8, 'test': 0.2}"
    )


def to_column_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Convert a column name or a sequence of names to a tuple.

    >>> to_column_names("user"), to_column_names(None)
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
            f"Unknown columns in {argument}: {listing(absent)}. "
            f"Available: {listing(schema.names)}.",
            hint=did_you_mean(absent[0], schema.names, write=f"{argument}={{!r}}")
            or "column names are case-sensitive",
        )


def assign_groups(batch: pa.RecordBatch, *, rule: SplitRule, hashes: UInt64s, seed: int) -> Int64s:
    """Return the group of each row: the split number, or the class number with ``stratify``.

    Rows outside all ranges of a TimeSplit get ``UNCOVERED``.
    """
    if isinstance(rule.rule, TimeSplit):
        return _groups_by_time(batch, rule.rule)
    if rule.stratify:
        # Seed 0: a class is only a group of rows, and its number must not depend on the seed of the
        # split.
        return row_hash(batch, columns=rule.stratify, seed=0).view(np.int64)
    if len(rule.names) == 1:
        return np.zeros(len(hashes), dtype=np.int64)
    # Rows with equal split_by values get equal hashes, and so the same split.
    if rule.split_columns:
        hashes = row_hash(batch, columns=rule.split_columns, seed=seed)
    return np.searchsorted(split_thresholds(rule.rule), hashes, side="right").astype(np.int64)


def split_thresholds(rule: FractionSplit) -> UInt64s:
    """Return the first hash of each split but the first: cumulative fractions of 2**64.

    >>> split_thresholds(FractionSplit((("train", 0.5), ("test", 0.5)))).tolist() == [2**63]
    True
    """
    # 2**64 exceeds 64 bits, and rounding may reach it for fractions close to 1.
    starts = [min(round(end * 2**64), 2**64 - 1) for end in _cumulative_fractions(rule)]
    return np.array(starts, dtype=np.uint64)


def split_end_ranks(rows: int, rule: SplitRule) -> list[int]:
    """Return the rank at which each split but the last ends within a class.

    >>> split_end_ranks(11, SplitRule(FractionSplit((("train", 0.75), ("test", 0.25)))))
    [8]
    """
    if isinstance(rule.rule, TimeSplit):
        raise InvalidSplit("TimeSplit has no classes.")
    return [round(end * rows) for end in _cumulative_fractions(rule.rule)]


def _cumulative_fractions(rule: FractionSplit) -> list[float]:
    """Return the cumulative fractions of all splits but the last."""
    fractions = [fraction for _, fraction in rule.fractions]
    return list(accumulate(fractions))[:-1]


def _groups_by_time(batch: pa.RecordBatch, split: TimeSplit) -> Int64s:
    """Return the number of the time range of each row, or ``UNCOVERED``."""
    column = batch.column(batch.schema.get_field_index(split.column))
    present = pc.is_valid(column).to_numpy(zero_copy_only=False)
    times = pc.cast(pc.cast(column, pa.timestamp("us", tz="UTC")), pa.int64())
    # fill_null(0) gives nulls a valid integer; ``present`` excludes them below.
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


def _format_time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


@dataclass(frozen=True)
class ClassSplits:
    """The first hash of each split but the first, within a class.

    Rows with the same hash are in the same split.
    """

    starts: tuple[int, ...]


@dataclass(frozen=True)
class ShardStarts:
    """The start boundaries of all shards of a split but the first, as arrays."""

    hashes: UInt64s
    offsets: Int64s

    @classmethod
    def from_boundaries(cls, boundaries: Sequence[Boundary]) -> ShardStarts:
        """Convert a sequence of boundaries to arrays."""
        hashes = np.array([boundary.hash for boundary in boundaries], dtype=np.uint64)
        return cls(hashes, np.array([boundary.offset for boundary in boundaries], dtype=np.int64))

    def shard_range(self, hashes: UInt64s) -> tuple[Int64s, Int64s]:
        """Return the first and last shard (within the split) that may contain each hash."""
        first = np.searchsorted(self.hashes, hashes, side="left")
        last = first.copy()
        if not len(self.hashes):
            return first, last
        # Hashes that are not boundaries are in exactly one shard.
        nearest = self.hashes[np.minimum(first, len(self.hashes) - 1)]
        equal = np.flatnonzero(nearest == hashes)
        last[equal] = np.searchsorted(self.hashes, hashes[equal], side="right")
        # If a shard begins with the first row of a hash, the previous shard has no rows of that
        # hash.
        first[equal] += self.offsets[first[equal]] == 0
        return first, last


@dataclass(frozen=True)
class Assignment:
    """A function that maps hashed rows to shards, which are numbered over all splits.

    The split of a row is its group or, with classes, the split of ``classes[group]`` that contains
    its hash. ``boundaries[s]`` are the boundaries between the shards of split s, whose first shard
    has the number ``first_shard[s]``. If a boundary divides rows with the same hash, every shard
    that may contain some of these rows receives all of them, and its writer selects its own rows.
    """

    first_shard: tuple[int, ...]
    boundaries: tuple[tuple[Boundary, ...], ...]
    classes: Mapping[int, ClassSplits] | None = None

    @cached_property
    def _shard_starts(self) -> tuple[ShardStarts, ...]:
        return tuple(map(ShardStarts.from_boundaries, self.boundaries))

    def find_splits(self, groups: Int64s, hashes: UInt64s) -> Int64s:
        """Return the split of each row, or -1 if no split contains it."""
        if self.classes is None:
            return groups
        splits = np.full(len(groups), -1, dtype=np.int64)
        for group in np.unique(groups).tolist():
            in_group = groups == group
            starts = np.array(self.classes[group].starts, dtype=np.uint64)
            splits[in_group] = np.searchsorted(starts, hashes[in_group], side="right")
        return splits

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the group of each row by its shard number; drop rows that no split contains."""
        groups, hashes = groups_and_hashes(batch)
        splits = self.find_splits(groups, hashes)
        numbers = np.full(len(hashes), -1, dtype=np.int64)
        shared_rows: list[Int64s] = []
        shared_numbers: list[Int64s] = []
        for split, starts in enumerate(self._shard_starts):
            split_rows = np.flatnonzero(splits == split)
            first, last = starts.shard_range(hashes[split_rows])
            numbers[split_rows] = self.first_shard[split] + first
            # A hash that equals a boundary may belong to several shards; each further shard gets a
            # copy of its rows.
            for further in range(1, int((last - first).max(initial=0)) + 1):
                is_shared = first + further <= last
                shared_rows.append(split_rows[is_shared])
                shared_numbers.append(self.first_shard[split] + first[is_shared] + further)
        plain = batch.select([name for name in batch.schema.names if name != GROUP])
        # The common case needs no copy of the rows.
        if not shared_rows and (numbers >= 0).all():
            return _replace_group_by_shard(plain, numbers)
        covered = np.flatnonzero(numbers >= 0)
        rows = np.concatenate([covered, *shared_rows])
        return _replace_group_by_shard(
            plain.take(pa.array(rows)), np.concatenate([numbers[covered], *shared_numbers])
        )


def _replace_group_by_shard(batch: pa.RecordBatch, numbers: Int64s) -> pa.RecordBatch:
    schema = batch.schema.append(pa.field(SHARD, pa.int32()))
    column = pa.array(numbers.astype(np.int32))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)
