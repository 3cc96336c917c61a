"""Distribution of a sampled column: quantiles, distinct and frequent values, histogram, ranks.

Values are weighted by the copy counts of their rows, so results are exact if the sample contains
all rows.

Histogram bins have equal width and cover equal numbers of possible values. If bins covered unequal
numbers of integers (for example, bins of 1.7 years for ages), the histogram would show a comb
pattern that is not in the data. The same applies to prices in cents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featurestore.model.statistics import PROBABILITIES
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.moments import Floats
from featurestore.statistics.state import CountedColumn
from featurestore.statistics.values import Values, is_float

Words = NDArray[np.uint64]
BINS = 30
# If there are at most this many distinct values, all are listed, so categorical drift is exact.
MAX_TOP = 100
_TOP = 20
# If a range contains more possible values, a difference of one value between bins is not visible.
_MANY_VALUES = 3_000
_STEPS = (1.0, 0.1, 0.01)
# The relative tolerance for multiples of a step, since float32 has seven digits.
_TOLERANCE = 2.0**-22
# Up to this magnitude, float64 represents the bin edges halfway between integers exactly.
_MAX_STEPPED = 2.0**51
# With fewer values, their differences may have a common divisor by chance.
_MIN_VALUES_FOR_STEP = 8
_PROBED_VALUES = 1_000
_WORD = 64
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class Distribution:
    """The distribution of a sampled column; ``ranks`` has the mid-rank of each row."""

    rows: int
    distinct: int
    singletons: int
    top: tuple[tuple[Any, int], ...]
    top_complete: bool
    quantiles: tuple[float, ...] = ()
    edges: tuple[float, ...] | None = None
    bins: NDArray[np.int64] | None = None
    ranks: Values | None = None

    def estimate_distinct(self, rows: int) -> int:
        """Estimate the number of distinct values in a table of ``rows`` rows.

        The estimator is the first-order jackknife of Haas et al., 1995.
        """
        if not self.rows:
            return 0
        sampled_share = self.rows / max(rows, self.rows)
        unseen_share = (1 - sampled_share) * self.singletons / self.rows
        return min(rows, round(self.distinct / (1 - unseen_share)))


def string_distribution(
    data: pa.Array, weights: NDArray[np.int64], column_counts: ColumnCounts
) -> Distribution:
    """Return the distribution of strings; ``column_counts`` covers all rows of the table."""
    if column_counts.values is not None:
        value_counts = column_counts.values
        values = pa.array(list(value_counts), pa.string())
        counts = np.array(list(value_counts.values()), dtype=np.int64)
        top, complete = _top_strings(values, counts)
        return Distribution(int(counts.sum()), len(values), int((counts == 1).sum()), top, complete)
    return _sampled_string_distribution(data, weights)


def number_distribution(
    column: CountedColumn, values: Values, weights: NDArray[np.int64], column_counts: ColumnCounts
) -> Distribution:
    """Return the distribution of numbers, booleans or times.

    ``column_counts`` covers all rows of the table. It provides the extremes, and the value counts
    unless there are too many distinct values.
    """
    if values.present is not None:
        weights = weights[values.present]
    if column_counts.values is not None:
        unique, counts, ranks = _rank_by_counts(values.finite, weights, column_counts.values)
    else:
        unique, counts, ranks = _rank_by_sorting(values.finite, weights)
    if not len(unique):
        return Distribution(0, 0, 0, (), True, ranks=_ranks_to_values(ranks, values))
    ends = np.cumsum(counts)
    edges = bin_edges(column, unique, low=column_counts.minimum, high=column_counts.maximum)
    bins = None
    if edges is not None:
        bins = bin_counts(unique, ends, edges)
    top, is_complete = _top_values(unique, counts)
    return Distribution(
        rows=int(ends[-1]),
        distinct=len(unique),
        singletons=int((counts == 1).sum()),
        top=top,
        top_complete=is_complete,
        quantiles=_quantiles(unique, ends),
        edges=edges,
        bins=bins,
        ranks=_ranks_to_values(ranks, values),
    )


def _ranks_to_values(ranks: Floats, values: Values) -> Values:
    """Return ranks as a column that is missing in the same rows as the values."""
    pivot = 0.0
    if len(ranks):
        pivot = float(ranks.mean())
    if values.present is not None:
        all_ranks = np.full(len(values.numbers), pivot)
        all_ranks[values.present] = ranks
        ranks = all_ranks
    return Values(ranks, values.present, pivot, None, values.missing)


def _rank_by_sorting(
    values: NDArray[Any], weights: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """Return the distinct values, their counts, and the mid-rank of each row, by sorting."""
    order, ordered = sort_ascending(values)
    if not len(ordered):
        return ordered, np.empty(0, dtype=np.int64), np.empty(0)
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    runs = np.diff(first, append=len(ordered))
    # Rows without duplicates have the weight 1, so the run lengths are the counts.
    counts = runs
    if not (weights == 1).all():
        counts = np.add.reduceat(weights[order], first)
    middles = _mid_ranks(counts)
    if len(middles) < len(order):
        middles = np.repeat(middles, runs)
    ranks = np.empty(len(order))
    ranks[order] = middles
    return ordered[first], counts, ranks


def _rank_by_counts(
    values: NDArray[Any], weights: NDArray[np.int64], value_counts: Mapping[Any, int]
) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """Return distinct values and counts over all rows, and the mid-ranks within the sample."""
    # The counted values are Python's, whose floats have 64 bits.
    dtype = np.dtype(np.float64) if is_float(values) else values.dtype
    unique = np.array(sorted(value_counts), dtype=dtype)
    counts = np.array([value_counts[value] for value in unique.tolist()], dtype=np.int64)
    positions = np.searchsorted(unique, values)
    sampled = np.bincount(positions, weights=weights, minlength=len(unique)).astype(np.int64)
    return unique, counts, _mid_ranks(sampled)[positions]


def _mid_ranks(counts: NDArray[np.int64]) -> Floats:
    """Return the mid-rank of each distinct value."""
    return np.asarray(np.cumsum(counts) - (counts - 1) / 2.0)


def _sampled_string_distribution(data: pa.Array, weights: NDArray[np.int64]) -> Distribution:
    """Return the distribution of sampled strings, weighted by the copy counts of their rows."""
    encoded = data.dictionary_encode()
    codes = encoded.indices
    if codes.null_count:
        weights = weights[codes.is_valid().to_numpy(zero_copy_only=False)]
        codes = codes.drop_null()
    values = encoded.dictionary
    counts = np.bincount(codes.to_numpy(), weights=weights, minlength=len(values)).astype(np.int64)
    top, complete = _top_strings(values, counts)
    return Distribution(int(counts.sum()), len(values), int((counts == 1).sum()), top, complete)


def _top_strings(
    values: pa.Array, counts: NDArray[np.int64]
) -> tuple[tuple[tuple[str, int], ...], bool]:
    """Return the most frequent strings, and whether these are all distinct strings.

    Strings that occur once are listed only if all distinct strings are listed.
    """
    table = pa.table({"value": values, "count": counts})
    few = len(values) <= MAX_TOP
    limit = MAX_TOP
    if not few:
        table = table.filter(pc.greater(table["count"], 1))
        limit = _TOP
    if not table.num_rows:
        return (), few
    # The selection is unstable, so the value is a second sort key that makes the result
    # deterministic.
    order = [("count", "descending"), ("value", "ascending")]
    top_rows = table.take(pc.select_k_unstable(table, k=limit, sort_keys=order))
    return tuple(
        zip(top_rows["value"].to_pylist(), top_rows["count"].to_pylist(), strict=True)
    ), few


def _top_values(
    unique: NDArray[Any], counts: NDArray[np.int64]
) -> tuple[tuple[tuple[Any, int], ...], bool]:
    """Return the most frequent values, and whether these are all distinct values.

    Values that occur once are listed only if all distinct values are listed.
    """
    few = len(unique) <= MAX_TOP
    limit = MAX_TOP
    candidates = np.arange(len(unique))
    if not few:
        limit = _TOP
        candidates = np.flatnonzero(counts > 1)
        if len(candidates) > _TOP:
            # Partitioning takes linear time, so that only the most frequent values are sorted.
            min_count = np.partition(counts[candidates], -_TOP)[-_TOP]
            candidates = candidates[counts[candidates] >= min_count]
    # The sort must be stable, so that equal counts are ordered by value.
    top_candidates = candidates[np.argsort(-counts[candidates], kind="stable")][:limit]
    return tuple(
        zip(unique[top_candidates].tolist(), counts[top_candidates].tolist(), strict=True)
    ), few


def _quantiles(unique: NDArray[Any], ends: NDArray[np.int64]) -> tuple[float, ...]:
    """Return linearly interpolated quantiles, like numpy for values repeated by their counts."""
    positions = np.array(PROBABILITIES) * (ends[-1] - 1)
    below = np.floor(positions).astype(np.int64)
    above = np.minimum(below + 1, ends[-1] - 1)
    lower = unique[np.searchsorted(ends, below, side="right")]
    upper = unique[np.searchsorted(ends, above, side="right")]
    share = positions - below
    low, high = lower.astype(np.float64), upper.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        # The difference of two numbers near the limits of float64 overflows; the lower number is
        # returned then.
        between = low + (high - low) * share
    is_value = (share == 0) | (lower == upper) | ~np.isfinite(between)
    return tuple(np.where(is_value, low, between).tolist())


_MIN_BINS, _MAX_BINS = 15, 60


def bin_edges(
    column: CountedColumn, unique: NDArray[Any], *, low: Any, high: Any
) -> tuple[float, ...] | None:
    """Return the bin edges of a column, or None if float64 cannot represent distinct edges.

    ``unique`` has the distinct sampled values; ``low`` and ``high`` are the extremes of all rows.
    """
    if low is None or high is None or not math.isfinite(float(high) - float(low)):
        return None
    if low == high:
        return (low - 0.5, high + 0.5)
    step = _value_step(column, unique, float(low), float(high))
    if step is not None:
        # Numbers are centered in their bin; days start at the left edge of their bin.
        shift = 0.0 if column.value_kind == "time" else 0.5
        return stepped_edges(float(low), float(high), step=step, shift=shift)
    edges = np.linspace(float(low), float(high), BINS + 1)
    if not np.all(np.diff(edges) > 0):
        return None
    return tuple(edges.tolist())


def stepped_edges(
    low: float, high: float, *, step: float = 1.0, shift: float = 0.5
) -> tuple[float, ...]:
    """Return bin edges for multiples of a step; all bins except the last cover equally many values.

    >>> stepped_edges(1, 3)
    (0.5, 1.5, 2.5, 3.5)
    >>> edges = stepped_edges(50, 101)
    >>> (edges[:3], edges[-1], len(edges) - 1)
    ((49.5, 51.5, 53.5), 101.5, 26)
    """
    values = round((high - low) / step) + 1
    width = _values_per_bin(values)
    bins = math.ceil(values / width)
    return tuple((low + step * (width * np.arange(bins + 1) - shift)).tolist())


def bin_counts(
    unique: NDArray[Any], ends: NDArray[np.int64], edges: tuple[float, ...]
) -> NDArray[np.int64]:
    """Return the number of rows in each bin [left, right), like ``numpy.histogram``.

    The last bin includes its right edge.
    """
    values: Floats = unique.astype(np.float64)
    positions = np.searchsorted(values, edges)
    positions[-1] = np.searchsorted(values, edges[-1], side="right")
    return np.diff(np.where(positions > 0, ends[positions - 1], 0))


def _values_per_bin(value_count: int) -> int:
    """Return the number of values per bin, for about thirty bins of which the last is nearly full."""
    if value_count <= BINS:
        return 1
    if value_count > _MANY_VALUES:
        return math.ceil(value_count / BINS)
    best_width, best_score = 1, math.inf
    for width in range(math.ceil(value_count / _MAX_BINS), math.ceil(value_count / _MIN_BINS) + 1):
        bins = math.ceil(value_count / width)
        score = (bins * width - value_count) / width + abs(bins - BINS) / BINS
        if score < best_score:
            best_width, best_score = width, score
    return best_width


def _value_step(
    column: CountedColumn, unique: NDArray[Any], low: float, high: float
) -> float | None:
    """Return the step of which all values are multiples, or None for continuous values."""
    if max(abs(low), abs(high)) > _MAX_STEPPED:
        return None
    if not is_float(unique):
        step = float(_common_divisor(unique.astype(np.int64)))
        is_optional = column.value_kind == "time"
    else:
        step = _decimal_step(unique)
        is_optional = True
    # Integers always have integer bins; for other types the step matters only in small ranges.
    if not step or (is_optional and (high - low) / step > _MANY_VALUES):
        return None
    return step


def _decimal_step(unique: Floats) -> float:
    """Return the step of floats with up to two decimal places, or 0 for other floats."""
    for step in _STEPS:
        # For continuous values, the test usually fails within the first few values.
        if _to_step_multiples(unique[:_PROBED_VALUES], step) is None:
            continue
        steps = _to_step_multiples(unique, step)
        if steps is not None:
            return step * _common_divisor(steps.astype(np.int64))
    return 0.0


def _to_step_multiples(values: Floats, step: float) -> Floats | None:
    """Convert values to multiples of a step, or return None if a value is not a multiple."""
    steps = values / step
    rounded: Floats = np.round(steps)
    is_whole = np.abs(steps - rounded) <= np.abs(steps) * _TOLERANCE
    if is_whole.all():
        return rounded
    return None


def _common_divisor(values: NDArray[np.int64]) -> int:
    """Return the greatest common divisor of all differences; 1 for fewer than eight values."""
    if len(values) < _MIN_VALUES_FOR_STEP:
        return 1
    differences = np.diff(values)
    first = int(np.gcd.reduce(differences[:_PROBED_VALUES]))
    if first <= 1:
        return 1
    return max(int(np.gcd.reduce(differences)), 1)


def sort_ascending(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sort numbers in ascending order, and return their positions and the sorted numbers.

    >>> sort_ascending(np.array([30, 10, 20]))
    (array([1, 2, 0]), array([10, 20, 30]))
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), values
    # Each word has the value in its upper bits and the position in its lower bits, so that one
    # in-place sort of integers yields both order and values.
    bits = len(values).bit_length()
    words = _to_sortable_words(values)
    dropped_bits = int(words.max()).bit_length() + bits - _WORD
    # If value and position do not fit into one word, the lowest bits of the values are dropped, and
    # values that become equal are sorted afterwards.
    if dropped_bits > 0:
        words >>= np.uint64(dropped_bits)
    words <<= np.uint64(bits)
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    order = (words & np.uint64((1 << bits) - 1)).view(np.int64)
    ordered = values[order]
    if dropped_bits > 0 and (ordered[1:] < ordered[:-1]).any():
        _sort_ties(order, words >> np.uint64(bits), values)
        ordered = values[order]
    return order, ordered


def _to_sortable_words(values: NDArray[Any]) -> Words:
    """Map values to unsigned integers with the same order; the minimum is mapped to 0."""
    if is_float(values):
        words = _floats_to_sortable_words(values)
    elif np.issubdtype(values.dtype, np.unsignedinteger):
        words = values.astype(np.uint64)
    else:
        words = values.astype(np.int64).view(np.uint64) ^ _SIGN
    # Smaller words leave more bits for the position.
    words -= words.min()
    return words


def _floats_to_sortable_words(values: NDArray[Any]) -> Words:
    """Map floats to unsigned integers with the same order, based on their bits.

    float32 is used if it represents all values exactly, because it has fewer bits to sort.
    """
    with np.errstate(over="ignore"):
        short = values.astype(np.float32)
    if np.array_equal(short, values):
        short += np.float32(0.0)  # -0.0 and 0.0 are one value
        bits = short.view(np.int32).astype(np.int64)
        # The bits of negative floats are in descending order, so all bits except the sign are
        # inverted.
        bits ^= (bits >> np.int64(31)) & np.int64(0x7FFFFFFF)
    else:
        bits = (values.astype(np.float64) + 0.0).view(np.int64)
        bits ^= (bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)
    return bits.view(np.uint64) ^ _SIGN


def _sort_ties(order: NDArray[np.int64], words: Words, values: NDArray[Any]) -> None:
    """Break ties: sort the positions of equal integers by value, in place."""
    is_equal = words[1:] == words[:-1]
    tied = np.flatnonzero(np.append(is_equal, False) | np.append(False, is_equal))
    positions = order[tied]
    order[tied] = positions[np.lexsort((values[positions], words[tied]))]
