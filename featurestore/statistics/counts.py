"""Mergeable counts of a column over all rows, including value counts if there are few values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.model.statistics import Kind
from featurestore.statistics.moments import (
    TOO_LARGE,
    Moments,
    Twofold,
    add_twofold,
    multiply_exactly,
    sum_integers,
    sum_twofold,
)
from featurestore.statistics.values import Values, is_float, text_prefix, value_lengths

ValueCounts = dict[Any, int]
Extreme = int | float | str | None
Total = int | Twofold
# Values are not counted in columns with more distinct values; the sample is used instead.
MAX_VALUES = 1_000
# The number of leading values that are checked before all values are counted.
PROBED_ROWS = 4 * MAX_VALUES
# Most columns with many distinct values are recognized by this number of leading values.
_FIRST_PROBE = MAX_VALUES + 10
MAX_TEXT_LENGTH = 256
# For longer strings, dictionary encoding takes as long as measuring all lengths.
_MAX_MEAN_BYTES = 64
# Minimum and maximum of longer strings are stored as prefixes, which preserve the order.
_MAX_EXTREME_LENGTH = MAX_TEXT_LENGTH + 1
# The mean string size in bytes above which only prefixes are compared, as Arrow copies extremes.
_LONG_MEAN_BYTES = 1 << 16


@dataclass
class ColumnCounts:
    """Counts, exact sums, extremes and lengths of one column.

    ``total`` is an exact integer for integers, booleans and times, and a twofold for floats. Times
    are days or microseconds since 1970. ``values`` maps each distinct value to its count, or is
    None if there are too many.
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
        """Return the merged counts."""
        merged = ColumnCounts(
            rows=self.rows + added.rows,
            nulls=self.nulls + added.nulls,
            nan=self.nan + added.nan,
            infinite=self.infinite + added.infinite,
            total=_add_totals(self.total, added.total),
            moments=self.moments.merge(added.moments),
            length=self.length + added.length,
            values=merge_value_counts(self.values, added.values),
        )
        for side in (self, added):
            merged.extend_extremes(side.minimum, side.maximum)
            merged.extend_lengths(side.shortest, side.longest)
        return merged

    def extend_extremes(self, minimum: Extreme, maximum: Extreme) -> None:
        """Extend the extremes to include others; None means no values."""
        if minimum is None or maximum is None:
            return
        if self.minimum is None or minimum < self.minimum:  # type: ignore[operator]
            self.minimum = minimum
        if self.maximum is None or maximum > self.maximum:  # type: ignore[operator]
            self.maximum = maximum

    def extend_lengths(self, shortest: int | None, longest: int | None) -> None:
        """Extend the extreme lengths to include others; None means no values."""
        if shortest is None or longest is None:
            return
        if self.shortest is None or shortest < self.shortest:
            self.shortest = shortest
        if self.longest is None or longest > self.longest:
            self.longest = longest


def count_values(data: pa.Array, value_kind: Kind, *, counts_distinct: bool) -> ColumnCounts:
    """Count a non-numeric column; with ``counts_distinct`` also count each distinct value."""
    if pat.is_dictionary(data.type):
        return _count_dictionary(data, counts_distinct=counts_distinct)
    counts = ColumnCounts(rows=len(data), nulls=data.null_count)
    if value_kind != "struct":
        _count_lengths(counts, value_lengths(data))
    if value_kind == "text" and counts.nulls < counts.rows:
        counts.extend_extremes(*_extreme_strings(data))
    counts.values = None
    if value_kind == "text" and counts_distinct:
        counts.values = count_texts(data, longest=counts.longest)
    return counts


def count_measured(values: Values, *, counts_distinct: bool) -> ColumnCounts:
    """Count a column of numbers, booleans or times.

    The moments are not computed here, because the caller may derive them from the co-moments.
    """
    counts = ColumnCounts(len(values.numbers), values.nulls, values.nan, values.infinite)
    # Without finite values, the value counts stay empty instead of None, which would mean too many
    # distinct values in all later merges.
    if values.extremes is None:
        return counts
    counts.extend_extremes(*[extreme.item() for extreme in values.extremes])
    counts.values = None
    if counts_distinct:
        counts.values = count_numbers(values)
    counts.total = _exact_sum(values, counts.values)
    return counts


def _exact_sum(values: Values, value_counts: ValueCounts | None) -> Total:
    """Return the sum of all finite values, exact for integers and a twofold for floats."""
    low, high = values.extremes or (0, 0)
    if not is_float(values.numbers):
        if value_counts is not None:
            return sum(value * count for value, count in value_counts.items())
        return sum_integers(values.numbers) - values.missing * int(values.pivot)
    largest = max(float(high), -float(low))
    if largest > TOO_LARGE or not values.missing:
        return sum_twofold(values.finite, largest=largest)
    # Missing values contain the pivot. Subtracting the pivots from the sum of all numbers avoids a
    # copy of the finite values.
    total = sum_twofold(values.numbers, largest=largest)
    return add_twofold(total, multiply_exactly(-values.missing, float(values.pivot)))


def _count_dictionary(data: pa.DictionaryArray, *, counts_distinct: bool) -> ColumnCounts:
    """Count a dictionary-encoded string column."""
    counts = ColumnCounts(rows=len(data), nulls=data.null_count)
    values, occurrences = count_occurrences(data)
    if len(values):
        counts.extend_extremes(*_extreme_strings(values))
        lengths = value_lengths(values)
        _count_lengths(counts, lengths)
        # Lengths are measured once for each distinct string, and weighted by its occurrences.
        counts.length = int(lengths @ occurrences)
    counts.values = None
    if counts_distinct and len(values) <= MAX_VALUES and (counts.longest or 0) <= MAX_TEXT_LENGTH:
        counts.values = dict(zip(values.to_pylist(), occurrences.tolist(), strict=True))
    return counts


def _extreme_strings(strings: pa.Array) -> tuple[str, str]:
    """Return the minimum and maximum string or their prefixes; not all strings may be null."""
    if strings.nbytes > _LONG_MEAN_BYTES * len(strings):
        prefixes = [text_prefix(text, _MAX_EXTREME_LENGTH) for text in strings if text.is_valid]
        return min(prefixes), max(prefixes)
    extremes = pc.min_max(strings)
    first, last = extremes["min"], extremes["max"]
    return text_prefix(first, _MAX_EXTREME_LENGTH), text_prefix(last, _MAX_EXTREME_LENGTH)


def _count_lengths(counts: ColumnCounts, lengths: NDArray[np.int64]) -> None:
    if len(lengths):
        counts.shortest, counts.longest = int(lengths.min()), int(lengths.max())
        counts.length = int(lengths.sum())


def _add_totals(first: Total, second: Total) -> Total:
    """Return the sum of two totals; an empty total is the integer 0 for every type."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return add_twofold(_to_twofold(first), _to_twofold(second))


def _to_twofold(total: Total) -> Twofold:
    return (float(total), 0.0) if isinstance(total, int) else total


def dictionary_encode(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Dictionary-encode the named columns if they have few distinct values."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in names and _has_few_values(column):
            column = column.dictionary_encode()
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def count_occurrences(data: pa.DictionaryArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the distinct values of a dictionary array and their counts."""
    counts = np.bincount(dictionary_codes(data.indices.drop_null()), minlength=len(data.dictionary))
    values = data.dictionary
    # The dictionary of a slice or a filtered array contains values that do not occur.
    if not counts.all():
        values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
    return values, counts


def dictionary_codes(indices: pa.Array) -> NDArray[np.int32]:
    """Return dictionary indices as a numpy array, with 0 for nulls; copied only if necessary."""
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
    """Return the counts of distinct finite numbers, or None if there are too many.

    >>> from featurestore.statistics.values import measured_values
    >>> count_numbers(measured_values(pa.array([3, 1, None, 3], pa.int8())))
    {1: 1, 3: 2}
    """
    numbers = values.numbers
    if numbers.dtype.itemsize == 1:
        value_counts = _count_bytes(numbers)
    elif _has_many_distinct_values(pa.array(numbers[:PROBED_ROWS])):
        return None
    else:
        if is_float(numbers):
            numbers = numbers + 0.0  # -0.0 and 0.0 are one value
        array_counts = _count_array(pa.array(numbers))
        if array_counts is None:
            return None
        value_counts = array_counts
    if values.missing:
        # Missing rows contain the pivot, so they were counted as its occurrences.
        value_counts[values.pivot] -= values.missing
        if not value_counts[values.pivot]:
            del value_counts[values.pivot]
    if len(value_counts) > MAX_VALUES:
        return None
    return value_counts


def count_texts(texts: pa.Array, *, longest: int | None) -> ValueCounts | None:
    """Return the counts of distinct strings, or None if there are too many or one is too long.

    >>> count_texts(pa.array(["b", None, "b"]), longest=1)
    {'b': 2}
    """
    if longest is not None and longest > MAX_TEXT_LENGTH:
        return None
    if _has_many_distinct_values(texts):
        return None
    value_counts = _count_array(texts)
    if value_counts is None or len(value_counts) > MAX_VALUES:
        return None
    return value_counts


def merge_value_counts(first: ValueCounts | None, second: ValueCounts | None) -> ValueCounts | None:
    """Return the merged value counts, or None if there are too many distinct values."""
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


def _has_many_distinct_values(array: pa.Array) -> bool:
    """Return True if the leading values already contain too many distinct values."""
    # One more value is allowed, because the pivot in missing rows may be an additional number.
    for probed_rows in (_FIRST_PROBE, PROBED_ROWS):
        if pc.count_distinct(array.slice(0, probed_rows)).as_py() > MAX_VALUES + 1:
            return True
    return False


def _count_bytes(numbers: NDArray[Any]) -> ValueCounts:
    """Return the value counts of one-byte integers, ascending by value."""
    # Booleans need only the number of ones.
    if numbers.max(initial=0) <= 1 and numbers.min(initial=0) >= 0:
        ones = np.count_nonzero(numbers)
        counts = np.array([len(numbers) - ones, ones])
    else:
        # bincount rejects negative integers, so they are counted as 128 to 255 and converted back
        # below.
        counts = np.bincount(numbers.view(np.uint8), minlength=256)
    occurring = np.flatnonzero(counts).astype(np.uint8)
    pairs = zip(occurring.view(numbers.dtype).tolist(), counts[occurring].tolist(), strict=True)
    return dict(sorted(pairs))


def _count_array(array: pa.Array) -> ValueCounts | None:
    """Return the counts of distinct values in an array, or None if there are too many."""
    pairs = pc.value_counts(array)
    if len(pairs) > MAX_VALUES + 1:
        return None
    values, counts = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    value_counts = dict(zip(values, counts, strict=True))
    value_counts.pop(None, None)
    return value_counts
