"""What layouts need to know of the columns, counted over Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.plugins.engine import Accumulator
from featurestore.plugins.format import ColumnProfile


@dataclass
class Extremes:
    """The running profile of one column."""

    rows: int = 0
    nulls: int = 0
    minimum: int | None = None
    maximum: int | None = None
    longest: int = 0
    total_length: int = 0
    inner_nulls: int = 0


@dataclass(frozen=True)
class ProfileAccumulator(Accumulator[list[Extremes], tuple[ColumnProfile, ...]]):
    """Counts rows, nulls, extremes of whole numbers and lengths per column; state: one Extremes a column."""

    columns: tuple[str, ...]

    def start(self) -> list[Extremes]:
        """Return the profile of no rows."""
        return [Extremes() for _ in self.columns]

    def update(self, state: list[Extremes], batch: pa.RecordBatch) -> list[Extremes]:
        """Add the rows of a batch."""
        for name, extremes in zip(self.columns, state, strict=True):
            _add(extremes, batch.column(batch.schema.get_field_index(name)))
        return state

    def merge(self, left: list[Extremes], right: list[Extremes]) -> list[Extremes]:
        """Put two profiles together."""
        for mine, other in zip(left, right, strict=True):
            mine.rows += other.rows
            mine.nulls += other.nulls
            mine.longest = max(mine.longest, other.longest)
            mine.total_length += other.total_length
            mine.inner_nulls += other.inner_nulls
            _widen(mine, other.minimum, other.maximum)
        return left

    def finish(self, state: list[Extremes]) -> tuple[ColumnProfile, ...]:
        """Return the profiles that formats take."""
        return finish_profiles(self.columns, state)


def finish_profiles(columns: Sequence[str], state: Sequence[Extremes]) -> tuple[ColumnProfile, ...]:
    """Return the profiles that formats take."""
    return tuple(
        ColumnProfile(
            name,
            each.rows,
            each.nulls,
            each.minimum,
            each.maximum,
            each.longest,
            each.total_length,
            each.inner_nulls,
        )
        for name, each in zip(columns, state, strict=True)
    )


def every_profile(
    columns: Sequence[str], found: Sequence[ColumnProfile], *, rows: int
) -> tuple[ColumnProfile, ...]:
    """Return a profile for each column; of those that nobody looked at, only the rows are known."""
    known = {each.name: each for each in found}
    return tuple(known.get(name) or ColumnProfile(name, rows, 0) for name in columns)


def _add(extremes: Extremes, array: Any) -> None:
    extremes.rows += len(array)
    extremes.nulls += array.null_count
    kind = array.type
    if pat.is_string(kind) or pat.is_binary(kind):
        _measure(extremes, pc.binary_length(array))
    elif pat.is_list(kind):
        _measure(extremes, pc.list_value_length(array))
    while pat.is_list(array.type) or pat.is_fixed_size_list(array.type):
        array = array.flatten()
        extremes.inner_nulls += array.null_count
    _add_whole_numbers(extremes, array)


def _add_whole_numbers(extremes: Extremes, array: Any) -> None:
    kind = array.type
    if pat.is_date(kind) or pat.is_timestamp(kind):
        array = array.view(pa.int32() if pat.is_date32(kind) else pa.int64())
    if pat.is_integer(array.type):
        found = pc.min_max(array).as_py()
        _widen(extremes, found["min"], found["max"])


def _measure(extremes: Extremes, lengths: Any) -> None:
    extremes.longest = max(extremes.longest, pc.max(lengths).as_py() or 0)
    extremes.total_length += pc.sum(lengths).as_py() or 0


def _widen(extremes: Extremes, minimum: int | None, maximum: int | None) -> None:
    if minimum is not None:
        extremes.minimum = minimum if extremes.minimum is None else min(extremes.minimum, minimum)
    if maximum is not None:
        extremes.maximum = maximum if extremes.maximum is None else max(extremes.maximum, maximum)
