"""Distribution of a sampled column: quantiles, distinct and frequent values, histogram, ranks.

Every value is weighted by the copies of its row, so all figures are exact while the sample is
complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featurestore.model.statistics import PROBABILITIES
from featurestore.statistics.bins import bin_counts, bin_edges
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import CountedColumn
from featurestore.statistics.values import Values

Words = NDArray[np.uint64]
_WORD = 64
_SIGN = np.uint64(1 << 63)


def ascending(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the positions of numbers in ascending order, and the numbers in this order.

    >>> ascending(np.array([30, 10, 20]))
    (array([1, 2, 0]), array([10, 20, 30]))
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), values
    bits = len(values).bit_length()
    words = _sortable_words(values)
    dropped_bits = int(words.max()).bit_length() + bits - _WORD
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


def _sortable_words(values: NDArray[Any]) -> Words:
    """Return words in the order of the values, 0 for the minimum."""
    if values.dtype.kind == "f":
        words = _float_words(values)
    elif values.dtype.kind == "u":
        words = values.astype(np.uint64)
    else:
        words = values.astype(np.int64).view(np.uint64) ^ _SIGN
    words -= words.min()
    return words


def _float_words(values: NDArray[Any]) -> Words:
    """Return words in the order of the floats: their bits, inverted for negative values.

    float32 is used if it represents all values: it needs fewer bits.
    """
    with np.errstate(over="ignore"):
        short = values.astype(np.float32)
    if np.array_equal(short, values):
        short += np.float32(0.0)  # -0.0 and 0.0 are one value
        bits = short.view(np.int32).astype(np.int64)
        bits ^= (bits >> np.int64(31)) & np.int64(0x7FFFFFFF)
    else:
        bits = (values.astype(np.float64) + 0.0).view(np.int64)
        bits ^= (bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)
    return bits.view(np.uint64) ^ _SIGN


def _sort_ties(order: NDArray[np.int64], words: Words, values: NDArray[Any]) -> None:
    """Sort the positions of values with equal words, in place."""
    is_equal = words[1:] == words[:-1]
    tied = np.flatnonzero(np.append(is_equal, False) | np.append(False, is_equal))
    positions = order[tied]
    order[tied] = positions[np.lexsort((values[positions], words[tied]))]


# All values of columns with up to this many are listed, which makes drift of categories exact.
MAX_TOP = 100
_TOP = 20


@dataclass(frozen=True)
class Distribution:
    """Distribution of the sampled values of a column. ``ranks`` are the mid-ranks of its rows."""

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
        """Estimate the distinct values in a table of ``rows`` rows.

        The estimator is the first-order jackknife of Haas et al., 1995.
        """
        if not self.rows:
            return 0
        sampled_share = self.rows / max(rows, self.rows)
        unseen_share = (1 - sampled_share) * self.singletons / self.rows
        return min(rows, round(self.distinct / (1 - unseen_share)))


def distribution_of_texts(
    data: pa.Array, weights: NDArray[np.int64], column_counts: ColumnCounts
) -> Distribution:
    """Return the distribution of texts; ``column_counts`` are the counts of all rows."""
    if column_counts.values is not None:
        return _from_text_counts(column_counts.values)
    return _from_sampled_texts(data, weights)


def distribution_of_numbers(
    column: CountedColumn, values: Values, weights: NDArray[np.int64], column_counts: ColumnCounts
) -> Distribution:
    """Return the distribution of numbers, booleans or times.

    ``column_counts`` are the counts of all rows: the extremes, and each distinct value's count
    unless there are too many.
    """
    if values.present is not None:
        weights = weights[values.present]
    if column_counts.values is not None:
        unique, counts, ranks = _ranked_by_counts(values.finite, weights, column_counts.values)
    else:
        unique, counts, ranks = _ranked_by_sorting(values.finite, weights)
    if not len(unique):
        return Distribution(0, 0, 0, (), True, ranks=_ranks_as_values(ranks, values))
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
        ranks=_ranks_as_values(ranks, values),
    )


def _ranks_as_values(ranks: Floats, values: Values) -> Values:
    """Return ranks as a column that is missing where the values are."""
    pivot = 0.0
    if len(ranks):
        pivot = float(ranks.mean())
    if values.present is not None:
        all_ranks = np.full(len(values.numbers), pivot)
        all_ranks[values.present] = ranks
        ranks = all_ranks
    return Values(ranks, values.present, pivot, None, values.missing)


def _ranked_by_sorting(
    values: NDArray[Any], weights: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """Return the distinct values, their counts, and the mid-rank of each row."""
    order, ordered = ascending(values)
    if not len(ordered):
        return ordered, np.empty(0, dtype=np.int64), np.empty(0)
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    runs = np.diff(first, append=len(ordered))
    counts = runs
    if not (weights == 1).all():
        counts = np.add.reduceat(weights[order], first)
    middles = _mid_ranks(counts)
    if len(middles) < len(order):
        middles = np.repeat(middles, runs)
    ranks = np.empty(len(order))
    ranks[order] = middles
    return ordered[first], counts, ranks


def _ranked_by_counts(
    values: NDArray[Any], weights: NDArray[np.int64], value_counts: Mapping[Any, int]
) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """Return the same from the counts of all rows; the ranks are within the sample."""
    unique = np.array(sorted(value_counts), dtype=_python_dtype(values.dtype))
    counts = np.array([value_counts[value] for value in unique.tolist()], dtype=np.int64)
    positions = np.searchsorted(unique, values)
    sampled = np.bincount(positions, weights=weights, minlength=len(unique)).astype(np.int64)
    return unique, counts, _mid_ranks(sampled)[positions]


def _python_dtype(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that represents the Python values of a dtype exactly."""
    if kind.kind == "f":
        return np.dtype(np.float64)
    return kind


def _mid_ranks(counts: NDArray[np.int64]) -> Floats:
    """Return the mid-rank of each distinct value."""
    return np.asarray(np.cumsum(counts) - (counts - 1) / 2.0)


def _from_text_counts(value_counts: Mapping[str, int]) -> Distribution:
    values = pa.array(list(value_counts), pa.string())
    counts = np.array(list(value_counts.values()), dtype=np.int64)
    top, complete = _top_texts(values, counts)
    return Distribution(int(counts.sum()), len(values), int((counts == 1).sum()), top, complete)


def _from_sampled_texts(data: pa.Array, weights: NDArray[np.int64]) -> Distribution:
    encoded = data.dictionary_encode()
    codes = encoded.indices
    if codes.null_count:
        weights = weights[codes.is_valid().to_numpy(zero_copy_only=False)]
        codes = codes.drop_null()
    values = encoded.dictionary
    counts = np.bincount(codes.to_numpy(), weights=weights, minlength=len(values)).astype(np.int64)
    top, complete = _top_texts(values, counts)
    return Distribution(int(counts.sum()), len(values), int((counts == 1).sum()), top, complete)


def _top_texts(
    values: pa.Array, counts: NDArray[np.int64]
) -> tuple[tuple[tuple[str, int], ...], bool]:
    """Return the most frequent texts, and whether these are all texts.

    Texts that occur once are listed only if all texts are.
    """
    table = pa.table({"value": values, "count": counts})
    few = len(values) <= MAX_TOP
    limit = MAX_TOP
    if not few:
        table = table.filter(pc.greater(table["count"], 1))
        limit = _TOP
    if not table.num_rows:
        return (), few
    order = [("count", "descending"), ("value", "ascending")]
    top_rows = table.take(pc.select_k_unstable(table, k=limit, sort_keys=order))
    return tuple(
        zip(top_rows["value"].to_pylist(), top_rows["count"].to_pylist(), strict=True)
    ), few


def _top_values(
    unique: NDArray[Any], counts: NDArray[np.int64]
) -> tuple[tuple[tuple[Any, int], ...], bool]:
    """Return the most frequent values, and whether these are all values.

    Values that occur once are listed only if all values are.
    """
    few = len(unique) <= MAX_TOP
    limit = MAX_TOP
    candidates = np.arange(len(unique))
    if not few:
        limit = _TOP
        candidates = np.flatnonzero(counts > 1)
        if len(candidates) > _TOP:
            min_count = np.partition(counts[candidates], -_TOP)[-_TOP]
            candidates = candidates[counts[candidates] >= min_count]
    # Stable: equal counts stay in the order of their values.
    top_candidates = candidates[np.argsort(-counts[candidates], kind="stable")][:limit]
    return tuple(
        zip(unique[top_candidates].tolist(), counts[top_candidates].tolist(), strict=True)
    ), few


def _quantiles(unique: NDArray[Any], ends: NDArray[np.int64]) -> tuple[float, ...]:
    """Return the quantiles with linear interpolation, as numpy computes them from all copies."""
    positions = np.array(PROBABILITIES) * (ends[-1] - 1)
    below = np.floor(positions).astype(np.int64)
    above = np.minimum(below + 1, ends[-1] - 1)
    lower = unique[np.searchsorted(ends, below, side="right")]
    upper = unique[np.searchsorted(ends, above, side="right")]
    share = positions - below
    low, high = lower.astype(np.float64), upper.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        between = low + (high - low) * share
    is_value = (share == 0) | (lower == upper) | ~np.isfinite(between)
    return tuple(np.where(is_value, low, between).tolist())
