"""Extremes, the first, the last and the last ``n`` values: functions that pick rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from featurestore.aggregates.arrays import Integers
from featurestore.aggregates.chunk import Aggregate, Chunk
from featurestore.aggregates.column_codes import codes_in_order, flags_of, ranks_of, values_of_codes
from featurestore.aggregates.counts import counted

_LEAST, _MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def _max(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.maximum, neutral=_LEAST)


def _min(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.minimum, neutral=_MOST)


def _extreme(
    chunk: Chunk, each: Aggregate, choose: Callable[..., Integers], *, neutral: int
) -> pa.Array:
    """Return the greatest or smallest value."""
    column = chunk.columns[each.values]
    codes = _codes(chunk, each)
    empty = counted(chunk, each) == 0
    window, present = chunk.window(each), chunk.present(each)
    if codes is not None:
        found = window.extremes(codes, present, choose, neutral=neutral)
        return values_of_codes(found, empty, column.type)
    ranks = _ranks(chunk, each)
    found = window.extremes(ranks, present, choose, neutral=neutral)
    valid = np.flatnonzero(flags_of(column.is_valid()))
    one_row_of_rank = np.zeros(int(ranks.max(initial=0)) + 1, np.int64)
    one_row_of_rank[ranks[valid]] = valid
    return _taken(column, one_row_of_rank, found, neutral=neutral)


def order_of(chunk: Chunk, each: Aggregate) -> Integers:
    """Return integers in the order of the values."""
    codes = _codes(chunk, each)
    return _ranks(chunk, each) if codes is None else codes


def _codes(chunk: Chunk, each: Aggregate) -> Integers | None:
    column = chunk.columns[each.values]
    found: Integers | None = chunk.of_column(each, "codes", lambda: codes_in_order(column))
    return found


def _ranks(chunk: Chunk, each: Aggregate) -> Integers:
    column = chunk.columns[each.values]
    found: Integers = chunk.of_column(each, "ranks", lambda: ranks_of(column))
    return found


def _taken(column: pa.Array, rows: Integers, found: Integers, *, neutral: int) -> pa.Array:
    """Return the values of rows by the numbers found; null where nothing was."""
    empty = found == neutral
    numbers = np.zeros(len(found), np.int64)
    if len(rows):
        numbers = rows[np.where(empty, 0, found)]
    return column.take(pa.array(numbers, mask=empty))


def _last(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _at_the_edge(chunk, each, np.maximum, neutral=_LEAST)


def _first(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _at_the_edge(chunk, each, np.minimum, neutral=_MOST)


def _at_the_edge(
    chunk: Chunk, each: Aggregate, choose: Callable[..., Integers], *, neutral: int
) -> pa.Array:
    """Return the value of the newest or oldest row; rows are in the order of their times."""
    column = chunk.columns[each.values]
    numbers = np.arange(len(column))
    found = chunk.window(each).extremes(numbers, chunk.present(each), choose, neutral=neutral)
    return _taken(column, numbers, found, neutral=neutral)


def _last_n(chunk: Chunk, each: Aggregate) -> pa.Array:
    """Return the newest values, the newest last; nulls come first where there are fewer."""
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
