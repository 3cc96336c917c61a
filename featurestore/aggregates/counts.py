"""Aggregate functions that count values or select rows.

Counts of values, distinct values and true values; minimum, maximum, first, last and the last ``n``
values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates import arrays
from featurestore.aggregates.arrays import Flags, Integers, Summands
from featurestore.aggregates.chunk import Aggregate, Chunk

_MIN_INT64, _MAX_INT64 = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def count_values(chunk: Chunk, aggregate: Aggregate) -> Integers:
    """Return the number of values in each label's window."""

    def compute() -> Integers:
        flags = chunk.cache_per_column(
            aggregate, "counts", lambda: to_summands(chunk.present(aggregate))
        )
        return chunk.window(aggregate).totals(flags) + chunk.totals(aggregate).count

    counts: Integers = chunk.cache_per_window(aggregate, "count", compute)
    return counts


def to_summands(flags: Flags) -> Summands:
    """Convert flags to summands of 0 and 1."""
    return Summands(flags.astype(np.int64))


def _count(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    return pa.array(count_values(chunk, aggregate), pa.int64())


def _count_distinct(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    groups = chunk.cache_per_column(
        aggregate, "groups", lambda: encode_value_groups(chunk, aggregate)
    )
    counts = chunk.window(aggregate).distinct(groups, chunk.present(aggregate))
    return pa.array(counts, pa.int64())


def encode_value_groups(chunk: Chunk, aggregate: Aggregate) -> Integers:
    """Return a group number per row; rows with the same key and value have the same number."""
    values = arrays.normalize_floats(chunk.columns[aggregate.values])
    indices = values.dictionary_encode(null_encoding="encode").indices
    codes = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    # The group of a pair is its key and value, so that one pass counts the values of all keys.
    pairs = codes + chunk.rows.key * (int(codes.max(initial=0)) + 1)
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _any(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    true_counts = _true_counts(chunk, aggregate)
    return arrays.to_masked_array(true_counts > 0, count_values(chunk, aggregate) == 0, pa.bool_())


def _all(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    count = count_values(chunk, aggregate)
    # Without values both counts are 0, so the mask decides between true and null.
    return arrays.to_masked_array(_true_counts(chunk, aggregate) == count, count == 0, pa.bool_())


def _true_counts(chunk: Chunk, aggregate: Aggregate) -> Integers:
    def compute() -> Summands:
        values = arrays.to_flags(pc.fill_null(chunk.columns[aggregate.values], False))
        return to_summands(values & chunk.present(aggregate))

    return chunk.window(aggregate).totals(chunk.cache_per_column(aggregate, "true", compute))


def _extreme(
    chunk: Chunk, aggregate: Aggregate, *, choose: Callable[..., Integers], neutral: int
) -> pa.Array:
    """Return the maximum or minimum value in each window."""
    column = chunk.columns[aggregate.values]
    codes = _encode_values(chunk, aggregate)
    empty = count_values(chunk, aggregate) == 0
    window, present = chunk.window(aggregate), chunk.present(aggregate)
    if codes is not None:
        extremes = window.extremes(codes, present, choose, neutral=neutral)
        return arrays.decode_ordered(extremes, empty, column.type)
    ranks = _rank_values(chunk, aggregate)
    extremes = window.extremes(ranks, present, choose, neutral=neutral)
    # Ranks of nulls are arbitrary and must not replace the row of a value.
    valid = np.flatnonzero(arrays.to_flags(column.is_valid()))
    one_row_of_rank = np.zeros(int(ranks.max(initial=0)) + 1, np.int64)
    one_row_of_rank[ranks[valid]] = valid
    return _take_rows(column, one_row_of_rank, extremes, neutral=neutral)


def sort_codes(chunk: Chunk, aggregate: Aggregate) -> Integers:
    """Encode values as integers of the same order: ordered codes if possible, otherwise ranks."""
    codes = _encode_values(chunk, aggregate)
    return _rank_values(chunk, aggregate) if codes is None else codes


def _encode_values(chunk: Chunk, aggregate: Aggregate) -> Integers | None:
    column = chunk.columns[aggregate.values]
    codes: Integers | None = chunk.cache_per_column(
        aggregate, "codes", lambda: arrays.encode_ordered(column)
    )
    return codes


def _rank_values(chunk: Chunk, aggregate: Aggregate) -> Integers:
    column = chunk.columns[aggregate.values]
    ranks: Integers = chunk.cache_per_column(aggregate, "ranks", lambda: arrays.dense_ranks(column))
    return ranks


def _take_rows(column: pa.Array, rows: Integers, codes: Integers, *, neutral: int) -> pa.Array:
    """Return the values of the rows with these codes, with null for the neutral code."""
    empty = codes == neutral
    row_numbers = np.zeros(len(codes), np.int64)
    if len(rows):
        # The neutral code is not a valid index; the mask replaces these values with null.
        row_numbers = rows[np.where(empty, 0, codes)]
    return column.take(pa.array(row_numbers, mask=empty))


def _select_edge_value(
    chunk: Chunk, aggregate: Aggregate, *, choose: Callable[..., Integers], neutral: int
) -> pa.Array:
    """Return the value of the newest or oldest row; rows are in time order."""
    column = chunk.columns[aggregate.values]
    numbers = np.arange(len(column))
    edge_rows = chunk.window(aggregate).extremes(
        numbers, chunk.present(aggregate), choose, neutral=neutral
    )
    return _take_rows(column, numbers, edge_rows, neutral=neutral)


def _last_n(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    """Return the newest values, newest last, padded with nulls at the front."""
    column = chunk.columns[aggregate.values]
    newest = chunk.window(aggregate).newest(chunk.present(aggregate), aggregate.n)
    flat = newest.ravel()
    # -1 marks missing rows, which the mask replaces with null.
    values = column.take(pa.array(np.maximum(flat, 0), mask=flat < 0))
    return pa.FixedSizeListArray.from_arrays(values, aggregate.n)


FUNCTIONS: dict[str, Callable[[Chunk, Aggregate], pa.Array]] = {
    "all": _all,
    "any": _any,
    "count": _count,
    "count_distinct": _count_distinct,
    "first": partial(_select_edge_value, choose=np.minimum, neutral=_MAX_INT64),
    "last": partial(_select_edge_value, choose=np.maximum, neutral=_MIN_INT64),
    "last_n": _last_n,
    "max": partial(_extreme, choose=np.maximum, neutral=_MIN_INT64),
    "min": partial(_extreme, choose=np.minimum, neutral=_MAX_INT64),
}
