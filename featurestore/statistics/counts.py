"""Mergeable counts of one column over all rows, with those of its values if there are few."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.statistics.moments import (
    TOO_LARGE,
    Moments,
    Twofold,
    add_twofold,
    product,
    sum_integers,
    sum_twofold,
)
from featurestore.statistics.values import CountedColumn, Values, text_prefix, value_lengths

ValueCounts = dict[Any, int]
Extreme = int | float | str | None
Total = int | Twofold
# Columns with more distinct values are described by the sample only.
MAX_VALUES = 1_000
# Values at the start of a batch that are checked before a complete count.
PROBED_ROWS = 4 * MAX_VALUES
# In most columns with many values, the first ones are all distinct.
_FIRST_PROBE = MAX_VALUES + 10
MAX_TEXT_LENGTH = 256
# Encoding a longer text takes as long as measuring it.
_MAX_MEAN_BYTES = 64
# Extremes of longer texts are prefixes, which have the same order as the texts.
_MAX_EXTREME_LENGTH = MAX_TEXT_LENGTH + 1
# Mean bytes of a text above which prefixes are compared: Arrow would copy the extremes.
_LONG_MEAN_BYTES = 1 << 16


@dataclass
class ColumnCounts:
    """Counts, exact sums, extremes and lengths of one column.

    ``total`` is an exact integer for integers, booleans and times, a twofold for floats. Times are
    days or microseconds since 1970. ``values`` are the counts of each distinct value, None once
    there are too many.
    """

    rows: int = 0
    nulls: int = 0
    nan: int = 0
    infinite: int = 0
    total: Total = 0
    minimum: Extreme = None
    maximum: Extreme = None
    moments: Moments = field(default_factory=Moments)
    shortest: int | None = None
    longest: int | None = None
    length: int = 0
    values: ValueCounts | None = field(default_factory=dict)

    def merge(self, added: ColumnCounts) -> ColumnCounts:
        """Return the counts of both."""
        merged = ColumnCounts(
            rows=self.rows + added.rows,
            nulls=self.nulls + added.nulls,
            nan=self.nan + added.nan,
            infinite=self.infinite + added.infinite,
            total=_add_totals(self.total, added.total),
            moments=self.moments.merge(added.moments),
            length=self.length + added.length,
            values=merged_counts(self.values, added.values),
        )
        for side in (self, added):
            merged.widen(side.minimum, side.maximum)
            merged.widen_lengths(side.shortest, side.longest)
        return merged

    def widen(self, minimum: Extreme, maximum: Extreme) -> None:
        """Include the extremes of more values; None if there were no values."""
        if minimum is None or maximum is None:
            return
        if self.minimum is None or minimum < self.minimum:  # type: ignore[operator]
            self.minimum = minimum
        if self.maximum is None or maximum > self.maximum:  # type: ignore[operator]
            self.maximum = maximum

    def widen_lengths(self, shortest: int | None, longest: int | None) -> None:
        """Include the extreme lengths of more values; None if there were no values."""
        if shortest is None or longest is None:
            return
        if self.shortest is None or shortest < self.shortest:
            self.shortest = shortest
        if self.longest is None or longest > self.longest:
            self.longest = longest


def count_values(column: CountedColumn, data: pa.Array, *, few_values: bool) -> ColumnCounts:
    """Count a column that is not numeric; each distinct value too if ``few_values``."""
    if pat.is_dictionary(data.type):
        return _count_dictionary(data, few_values=few_values)
    counts = ColumnCounts(rows=len(data), nulls=data.null_count)
    if column.has_length:
        _count_lengths(counts, value_lengths(data))
    if column.kind == "text" and counts.nulls < counts.rows:
        counts.widen(*_extreme_texts(data))
    counts.values = None
    if column.kind == "text" and few_values:
        counts.values = count_texts(data, longest=counts.longest)
    return counts


def count_measured(values: Values, *, few_values: bool) -> ColumnCounts:
    """Count a column of numbers, booleans or times, without the moments.

    The caller adds the moments: it may get them from the co-moments.
    """
    counts = ColumnCounts(len(values.numbers), values.nulls, values.nan, values.infinite)
    if values.extremes is None:
        return counts
    counts.widen(*[each.item() for each in values.extremes])
    counts.values = None
    if few_values:
        counts.values = count_numbers(values)
    counts.total = _exact_sum(values, counts.values)
    return counts


def _exact_sum(values: Values, value_counts: ValueCounts | None) -> Total:
    low, high = values.extremes or (0, 0)
    if values.numbers.dtype.kind != "f":
        if value_counts is not None:
            return sum(value * count for value, count in value_counts.items())
        return sum_integers(values.numbers) - values.missing * int(values.pivot)
    largest = max(float(high), -float(low))
    if largest > TOO_LARGE or not values.missing:
        return sum_twofold(values.finite, largest=largest)
    total = sum_twofold(values.numbers, largest=largest)
    return add_twofold(total, product(-values.missing, float(values.pivot)))


def _count_dictionary(data: pa.DictionaryArray, *, few_values: bool) -> ColumnCounts:
    """Count dictionary-encoded texts."""
    counts = ColumnCounts(rows=len(data), nulls=data.null_count)
    values, occurrences = count_occurrences(data)
    if len(values):
        counts.widen(*_extreme_texts(values))
        lengths = value_lengths(values)
        _count_lengths(counts, lengths)
        counts.length = int(lengths @ occurrences)
    counts.values = None
    if few_values and len(values) <= MAX_VALUES and (counts.longest or 0) <= MAX_TEXT_LENGTH:
        counts.values = dict(zip(values.to_pylist(), occurrences.tolist(), strict=True))
    return counts


def _extreme_texts(texts: pa.Array) -> tuple[str, str]:
    """Return the minimum and maximum text, or their prefixes; at least one text is not null."""
    if texts.nbytes > _LONG_MEAN_BYTES * len(texts):
        prefixes = [text_prefix(text, _MAX_EXTREME_LENGTH) for text in texts if text.is_valid]
        return min(prefixes), max(prefixes)
    extremes = pc.min_max(texts)
    first, last = extremes["min"], extremes["max"]
    return text_prefix(first, _MAX_EXTREME_LENGTH), text_prefix(last, _MAX_EXTREME_LENGTH)


def _count_lengths(counts: ColumnCounts, lengths: NDArray[np.int64]) -> None:
    if len(lengths):
        counts.shortest, counts.longest = int(lengths.min()), int(lengths.max())
        counts.length = int(lengths.sum())


def _add_totals(first: Total, second: Total) -> Total:
    """Return the sum of two totals; the total of no rows is the integer 0 for every type."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return add_twofold(_as_twofold(first), _as_twofold(second))


def _as_twofold(total: Total) -> Twofold:
    return (float(total), 0.0) if isinstance(total, int) else total


def with_dictionaries(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Dictionary-encode those of the named columns that have few distinct values."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in names and _has_few_values(column):
            column = column.dictionary_encode()
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def count_occurrences(data: pa.DictionaryArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the values that occur in a dictionary array, and their counts."""
    counts = np.bincount(dictionary_codes(data.indices.drop_null()), minlength=len(data.dictionary))
    values = data.dictionary
    if not counts.all():
        values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
    return values, counts


def dictionary_codes(indices: pa.Array) -> NDArray[np.int32]:
    """Return dictionary indices as numpy, without a copy where possible; 0 for nulls."""
    if indices.null_count:
        indices = indices.fill_null(0)
    return np.asarray(indices.to_numpy(zero_copy_only=False))


def _has_few_values(column: pa.Array) -> bool:
    if not pat.is_string(column.type) or column.nbytes > _MAX_MEAN_BYTES * len(column):
        return False
    probe = column.slice(0, PROBED_ROWS)
    max_distinct = min(MAX_VALUES, len(probe) // 4)
    return int(pc.count_distinct(probe).as_py()) <= max_distinct


def count_numbers(values: Values) -> ValueCounts | None:
    """Return the counts of finite numbers, None if there are too many distinct ones.

    >>> from featurestore.statistics.values import measured_values
    >>> count_numbers(measured_values(pa.array([3, 1, None, 3], pa.int8())))
    {1: 1, 3: 2}
    """
    numbers = values.numbers
    if numbers.dtype.itemsize == 1:
        value_counts = _count_bytes(numbers)
    elif _has_many_values(pa.array(numbers[:PROBED_ROWS])):
        return None
    else:
        if numbers.dtype.kind == "f":
            numbers = numbers + 0.0  # -0.0 and 0.0 are one value
        array_counts = _count_array(pa.array(numbers))
        if array_counts is None:
            return None
        value_counts = array_counts
    if values.missing:
        value_counts[values.pivot] -= values.missing
        if not value_counts[values.pivot]:
            del value_counts[values.pivot]
    if len(value_counts) > MAX_VALUES:
        return None
    return value_counts


def count_texts(texts: pa.Array, *, longest: int | None) -> ValueCounts | None:
    """Return the counts of texts, None if there are too many distinct ones or one is too long.

    >>> count_texts(pa.array(["b", None, "b"]), longest=1)
    {'b': 2}
    """
    if longest is not None and longest > MAX_TEXT_LENGTH:
        return None
    if _has_many_values(texts):
        return None
    value_counts = _count_array(texts)
    if value_counts is None or len(value_counts) > MAX_VALUES:
        return None
    return value_counts


def merged_counts(first: ValueCounts | None, second: ValueCounts | None) -> ValueCounts | None:
    """Return the sums of two counts, None if there are too many distinct values."""
    if first is None or second is None:
        return None
    if not first or not second:
        return first or second
    merged = dict(first)
    for value, count in second.items():
        merged[value] = merged.get(value, 0) + count
    if len(merged) > MAX_VALUES:
        return None
    return merged


def counts_to_lists(counts: Mapping[Any, int] | None) -> list[list[Any]] | None:
    """Convert counts to a list of values and a list of counts for JSON, sorted by value."""
    if counts is None:
        return None
    ordered = sorted(counts)
    return [ordered, [counts[value] for value in ordered]]


def counts_from_lists(data: list[list[Any]] | None) -> ValueCounts | None:
    """Convert the lists of ``counts_to_lists`` back to counts."""
    if data is None:
        return None
    values, counts = data
    return dict(zip(values, counts, strict=True))


def _has_many_values(array: pa.Array) -> bool:
    """Return True if the first values contain too many distinct ones."""
    for probed_rows in (_FIRST_PROBE, PROBED_ROWS):
        if pc.count_distinct(array.slice(0, probed_rows)).as_py() > MAX_VALUES + 1:
            return True
    return False


def _count_bytes(numbers: NDArray[Any]) -> ValueCounts:
    """Return the counts of one-byte numbers, in ascending order."""
    if numbers.max(initial=0) <= 1 and numbers.min(initial=0) >= 0:
        ones = np.count_nonzero(numbers)
        counts = np.array([len(numbers) - ones, ones])
    else:
        counts = np.bincount(numbers.view(np.uint8), minlength=256)
    occurring = np.flatnonzero(counts).astype(np.uint8)
    pairs = zip(occurring.view(numbers.dtype).tolist(), counts[occurring].tolist(), strict=True)
    return dict(sorted(pairs))


def _count_array(array: pa.Array) -> ValueCounts | None:
    """Return the counts of the values of an array, None if there are too many."""
    pairs = pc.value_counts(array)
    if len(pairs) > MAX_VALUES + 1:
        return None
    values, counts = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    value_counts = dict(zip(values, counts, strict=True))
    value_counts.pop(None, None)
    return value_counts
