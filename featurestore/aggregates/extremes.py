"""Functions that select rows: minimum, maximum, first, last and the last ``n`` values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from featurestore.aggregates.chunk import Aggregate, Chunk
from featurestore.aggregates.column_codes import (
    Integers,
    decode_ordered,
    dense_ranks,
    ordered_codes,
    to_flags,
)
from featurestore.aggregates.counts import value_counts

_MIN_INT64, _MAX_INT64 = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def _max(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.maximum, neutral=_MIN_INT64)


def _min(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.minimum, neutral=_MAX_INT64)


def _extreme(
    chunk: Chunk, each: Aggregate, choose: Callable[..., Integers], *, neutral: int
) -> pa.Array:
    """Return the maximum or minimum value."""
    column = chunk.columns[each.values]
    codes = _codes(chunk, each)
    empty = value_counts(chunk, each) == 0
    window, present = chunk.window(each), chunk.present(each)
    if codes is not None:
        extremes = window.extremes(codes, present, choose, neutral=neutral)
        return decode_ordered(extremes, empty, column.type)
    ranks = _ranks(chunk, each)
    extremes = window.extremes(ranks, present, choose, neutral=neutral)
    valid = np.flatnonzero(to_flags(column.is_valid()))
    one_row_of_rank = np.zeros(int(ranks.max(initial=0)) + 1, np.int64)
    one_row_of_rank[ranks[valid]] = valid
    return _take_rows(column, one_row_of_rank, extremes, neutral=neutral)


def sort_codes(chunk: Chunk, each: Aggregate) -> Integers:
    """Return integers in the order of the values, codes or else ranks."""
    codes = _codes(chunk, each)
    return _ranks(chunk, each) if codes is None else codes


def _codes(chunk: Chunk, each: Aggregate) -> Integers | None:
    column = chunk.columns[each.values]
    codes: Integers | None = chunk.cached_for_column(each, "codes", lambda: ordered_codes(column))
    return codes


def _ranks(chunk: Chunk, each: Aggregate) -> Integers:
    column = chunk.columns[each.values]
    ranks: Integers = chunk.cached_for_column(each, "ranks", lambda: dense_ranks(column))
    return ranks


def _take_rows(column: pa.Array, rows: Integers, codes: Integers, *, neutral: int) -> pa.Array:
    """Return the values of the rows of codes; null for the neutral code."""
    empty = codes == neutral
    row_numbers = np.zeros(len(codes), np.int64)
    if len(rows):
        row_numbers = rows[np.where(empty, 0, codes)]
    return column.take(pa.array(row_numbers, mask=empty))


def _last(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _newest_or_oldest(chunk, each, np.maximum, neutral=_MIN_INT64)


def _first(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _newest_or_oldest(chunk, each, np.minimum, neutral=_MAX_INT64)


def _newest_or_oldest(
    chunk: Chunk, each: Aggregate, choose: Callable[..., Integers], *, neutral: int
) -> pa.Array:
    """Return the value of the newest or oldest row; rows are in time order."""
    column = chunk.columns[each.values]
    numbers = np.arange(len(column))
    edge_rows = chunk.window(each).extremes(numbers, chunk.present(each), choose, neutral=neutral)
    return _take_rows(column, numbers, edge_rows, neutral=neutral)


def _last_n(chunk: Chunk, each: Aggregate) -> pa.Array:
    """Return the newest values, the newest last, padded with nulls at the front."""
    column = chunk.columns[each.values]
    newest = chunk.window(each).newest(chunk.present(each), each.n)
    flat = newest.ravel()
    values = column.take(pa.array(np.maximum(flat, 0), mask=flat < 0))
    return pa.FixedSizeListArray.from_arrays(values, each.n)


FUNCTIONS: dict[str, Callable[[Chunk, Aggregate], pa.Array]] = {
    "first": _first,
    "last": _last,
    "last_n": _last_n,
    "max": _max,
    "min": _min,
}
