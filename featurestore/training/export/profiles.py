"""What layouts need to know of the columns, counted over Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.shapes import shape_of
from featurestore.plugins.engine import Accumulator
from featurestore.plugins.format import ColumnProfile


@dataclass
class RunningProfile:
    """The running profile of one column; the fields are those of ``ColumnProfile``."""

    rows: int = 0
    nulls: int = 0
    minimum: int | None = None
    maximum: int | None = None
    longest: int = 0
    total_length: int = 0
    inner_nulls: int = 0
    longest_item: int = 0
    longest_bytes: int = 0

    def count(self, array: Any) -> None:
        """Take in the values of an array."""
        self.rows += len(array)
        self.nulls += array.null_count
        kind = array.type
        if pat.is_string(kind) or pat.is_binary(kind):
            self._measure(pc.binary_length(array))
        elif pat.is_list(kind):
            self._measure(pc.list_value_length(array))
        if pat.is_list(kind) or pat.is_fixed_size_list(kind):
            self._measure_items(array)
        while pat.is_list(array.type) or pat.is_fixed_size_list(array.type):
            array = array.flatten()
            self.inner_nulls += array.null_count
        extremes = _extremes(array)
        if extremes is not None:
            self._widen(*extremes)

    def merge(self, other: RunningProfile) -> None:
        """Take in the profile of other rows."""
        self.rows += other.rows
        self.nulls += other.nulls
        self.longest = max(self.longest, other.longest)
        self.total_length += other.total_length
        self.inner_nulls += other.inner_nulls
        self.longest_item = max(self.longest_item, other.longest_item)
        self.longest_bytes = max(self.longest_bytes, other.longest_bytes)
        if other.minimum is not None and other.maximum is not None:
            self._widen(other.minimum, other.maximum)

    def _measure(self, lengths: Any) -> None:
        self.longest = max(self.longest, pc.max(lengths).as_py() or 0)
        self.total_length += pc.sum(lengths).as_py() or 0

    def _measure_items(self, array: Any) -> None:
        """Take in the bytes of the strings and binaries of lists."""
        items = array
        while pat.is_list(items.type) or pat.is_fixed_size_list(items.type):
            items = items.flatten()
        if not (pat.is_string(items.type) or pat.is_binary(items.type)) or len(items) == 0:
            return
        lengths = pc.fill_null(pc.binary_length(items), 0).to_numpy()
        self.longest_item = max(self.longest_item, int(lengths.max()))
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
        rows = np.append(0, np.cumsum(_item_counts(array)))
        self.longest_bytes = max(self.longest_bytes, int(np.diff(ends[rows]).max()))

    def _widen(self, minimum: int, maximum: int) -> None:
        if self.minimum is None or minimum < self.minimum:
            self.minimum = minimum
        if self.maximum is None or maximum > self.maximum:
            self.maximum = maximum


def _item_counts(array: Any) -> npt.NDArray[np.int64]:
    """Return how many items each row has, none of nulls."""
    if pat.is_list(array.type):
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        return counts.astype(np.int64) * prod(shape_of(array.type.value_type))
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return valid.astype(np.int64) * prod(shape_of(array.type))


@dataclass(frozen=True)
class ProfileAccumulator(Accumulator[list[RunningProfile], tuple[ColumnProfile, ...]]):
    """Counts rows, nulls, extremes of whole numbers and lengths of each column."""

    columns: tuple[str, ...]

    def start(self) -> list[RunningProfile]:
        """Return the profile of no rows."""
        return [RunningProfile() for _ in self.columns]

    def update(self, state: list[RunningProfile], batch: pa.RecordBatch) -> list[RunningProfile]:
        """Add the rows of a batch."""
        for name, counts in zip(self.columns, state, strict=True):
            counts.count(batch.column(batch.schema.get_field_index(name)))
        return state

    def merge(
        self, left: list[RunningProfile], right: list[RunningProfile]
    ) -> list[RunningProfile]:
        """Put two profiles together."""
        for counts, other in zip(left, right, strict=True):
            counts.merge(other)
        return left

    def finish(self, state: list[RunningProfile]) -> tuple[ColumnProfile, ...]:
        """Return the profiles that formats take."""
        profiles = []
        for name, counts in zip(self.columns, state, strict=True):
            profiles.append(ColumnProfile(name, **vars(counts)))
        return tuple(profiles)


def every_profile(
    columns: Sequence[str], profiles: Sequence[ColumnProfile], *, rows: int
) -> tuple[ColumnProfile, ...]:
    """Return a profile for each column; of those that nobody looked at, only the rows are known."""
    known = {each.name: each for each in profiles}
    found = []
    for name in columns:
        found.append(known.get(name) or ColumnProfile(name, rows, 0))
    return tuple(found)


def _extremes(array: Any) -> tuple[int, int] | None:
    """Return the least and the greatest whole number, day or microsecond; None without any."""
    if pat.is_date32(array.type):
        array = array.view(pa.int32())
    elif pat.is_date(array.type) or pat.is_timestamp(array.type):
        array = array.view(pa.int64())
    if not pat.is_integer(array.type):
        return None
    found = pc.min_max(array).as_py()
    if found["min"] is None:
        return None
    return found["min"], found["max"]
