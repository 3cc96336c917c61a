"""What the sample tells of one column: quantiles, distinct and frequent values, a histogram, ranks.

Every value counts as often as its row has copies, so below the limit of the sample all of this is
exact.
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
from featurestore.statistics.bins import counts_between, edges_of
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import CountedColumn
from featurestore.statistics.sorting import ascending
from featurestore.statistics.values import Values

# Columns of up to so many values keep them all, which makes drift of categories exact.
MOST_TOP = 100
_TOP = 20


@dataclass(frozen=True)
class Distribution:
    """The sampled values of a column.

    ``ranks`` are the mid-ranks of its rows.
    """

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
        """Return the distinct values of a table of so many rows.

        The estimate is the first-order jackknife of Haas and others, 1995.
        """
        if not self.rows:
            return 0
        seen = self.rows / max(rows, self.rows)
        unseen_share = (1 - seen) * self.singletons / self.rows
        return min(rows, round(self.distinct / (1 - unseen_share)))


def distribution_of_texts(
    data: pa.Array, weights: NDArray[np.int64], counted: ColumnCounts
) -> Distribution:
    """Return the distribution of texts; ``counted`` is what all rows are known to hold."""
    if counted.values is not None:
        return _counted_texts(counted.values)
    return _texts(data, weights)


def distribution_of_numbers(
    column: CountedColumn, values: Values, weights: NDArray[np.int64], counted: ColumnCounts
) -> Distribution:
    """Return the distribution of numbers, booleans or times.

    ``counted`` is what all rows are known to hold: the extremes, and each value's count where there
    are few.
    """
    if values.present is not None:
        weights = weights[values.present]
    if counted.values is not None:
        unique, counts, ranks = _of_few(values.finite, weights, counted.values)
    else:
        unique, counts, ranks = _of_sorted(values.finite, weights)
    if not len(unique):
        return Distribution(0, 0, 0, (), True, ranks=_as_values(ranks, values))
    ends = np.cumsum(counts)
    edges = edges_of(column, unique, low=counted.minimum, high=counted.maximum)
    bins = None
    if edges is not None:
        bins = counts_between(unique, ends, edges)
    top, complete = _top(unique, counts)
    return Distribution(
        rows=int(ends[-1]),
        distinct=len(unique),
        singletons=int((counts == 1).sum()),
        top=top,
        top_complete=complete,
        quantiles=_quantiles(unique, ends),
        edges=edges,
        bins=bins,
        ranks=_as_values(ranks, values),
    )


def _as_values(ranks: Floats, values: Values) -> Values:
    """Return the ranks of the rows that have a value as those of a column."""
    pivot = 0.0
    if len(ranks):
        pivot = float(ranks.mean())
    if values.present is not None:
        of_all = np.full(len(values.numbers), pivot)
        of_all[values.present] = ranks
        ranks = of_all
    return Values(ranks, values.present, pivot, None, values.missing)


def _of_sorted(
    values: NDArray[Any], weights: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """Return the different values, their counts, and the mid-rank of each row."""
    order, ordered = ascending(values)
    if not len(ordered):
        return ordered, np.empty(0, dtype=np.int64), np.empty(0)
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    runs = np.diff(first, append=len(ordered))
    counts = runs
    if not (weights == 1).all():
        counts = np.add.reduceat(weights[order], first)
    middles = _middles(counts)
    if len(middles) < len(order):
        middles = np.repeat(middles, runs)
    ranks = np.empty(len(order))
    ranks[order] = middles
    return ordered[first], counts, ranks


def _of_few(
    values: NDArray[Any], weights: NDArray[np.int64], counted: Mapping[Any, int]
) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """Return the same from the counts of all rows; the ranks are those within the sample."""
    unique = np.array(sorted(counted), dtype=_plain(values.dtype))
    counts = np.array([counted[value] for value in unique.tolist()], dtype=np.int64)
    places = np.searchsorted(unique, values)
    sampled = np.bincount(places, weights=weights, minlength=len(unique)).astype(np.int64)
    return unique, counts, _middles(sampled)[places]


def _plain(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that holds what Python makes of values of a type."""
    if kind.kind == "f":
        return np.dtype(np.float64)
    return kind


def _middles(counts: NDArray[np.int64]) -> Floats:
    """Return the rank that the rows of each value share: the middle of theirs."""
    return np.asarray(np.cumsum(counts) - (counts - 1) / 2.0)


def _counted_texts(counted: Mapping[str, int]) -> Distribution:
    values = pa.array(list(counted), pa.string())
    counts = np.array(list(counted.values()), dtype=np.int64)
    top, complete = _top_texts(values, counts)
    return Distribution(int(counts.sum()), len(values), int((counts == 1).sum()), top, complete)


def _texts(data: pa.Array, weights: NDArray[np.int64]) -> Distribution:
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
    """Return the most frequent texts, all of them when they are few.

    Texts seen once only say nothing.
    """
    table = pa.table({"value": values, "count": counts})
    few = len(values) <= MOST_TOP
    most = MOST_TOP
    if not few:
        table = table.filter(pc.greater(table["count"], 1))
        most = _TOP
    if not table.num_rows:
        return (), few
    order = [("count", "descending"), ("value", "ascending")]
    chosen = table.take(pc.select_k_unstable(table, k=most, sort_keys=order))
    return tuple(zip(chosen["value"].to_pylist(), chosen["count"].to_pylist(), strict=True)), few


def _top(
    unique: NDArray[Any], counts: NDArray[np.int64]
) -> tuple[tuple[tuple[Any, int], ...], bool]:
    """Return the most frequent values, all of them when they are few.

    Values seen once only say nothing.
    """
    few = len(unique) <= MOST_TOP
    most = MOST_TOP
    candidates = np.arange(len(unique))
    if not few:
        most = _TOP
        candidates = np.flatnonzero(counts > 1)
        if len(candidates) > _TOP:
            least = np.partition(counts[candidates], -_TOP)[-_TOP]
            candidates = candidates[counts[candidates] >= least]
    # Stable: equal counts stay in the order of their values.
    chosen = candidates[np.argsort(-counts[candidates], kind="stable")][:most]
    return tuple(zip(unique[chosen].tolist(), counts[chosen].tolist(), strict=True)), few


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
