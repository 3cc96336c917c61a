"""Mergeable counts of one column over all rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.statistics.exactsum import (
    TOO_LARGE,
    Twofold,
    add_twofold,
    product,
    sum_integers,
    sum_twofold,
)
from featurestore.statistics.kinds import CountedColumn
from featurestore.statistics.moments import Moments
from featurestore.statistics.value_counts import (
    MAX_TEXT_LENGTH,
    MAX_VALUES,
    ValueCounts,
    count_numbers,
    count_occurrences,
    count_texts,
    merged_counts,
)
from featurestore.statistics.values import Values, text_prefix, value_lengths

Extreme = int | float | str | None
# Extremes of longer texts are prefixes, which have the same order as the texts.
_MAX_EXTREME_LENGTH = MAX_TEXT_LENGTH + 1
# Mean bytes of a text above which prefixes are compared: Arrow would copy the extremes.
_LONG_MEAN_BYTES = 1 << 16
Total = int | Twofold


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

    def merge(self, other: ColumnCounts) -> ColumnCounts:
        """Return the counts of both."""
        merged = ColumnCounts(
            rows=self.rows + other.rows,
            nulls=self.nulls + other.nulls,
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
            total=_add_totals(self.total, other.total),
            moments=self.moments.merge(other.moments),
            length=self.length + other.length,
            values=merged_counts(self.values, other.values),
        )
        for side in (self, other):
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
