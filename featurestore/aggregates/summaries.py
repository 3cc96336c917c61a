"""What is enough of rows that later labels see all of: their totals, and the rows that answer for all.

Sums and counts need the totals; functions that pick values answer for all rows what they answer for
those that they pick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates.arrays import Integers
from featurestore.aggregates.chunk import Aggregate, Chunk, Totals
from featurestore.aggregates.counts import counted, groups_of
from featurestore.aggregates.extremes import order_of
from featurestore.aggregates.ranges import Labels, Rows, Timeline
from featurestore.aggregates.sums import (
    finite_doubles,
    finite_squares,
    limb_sums,
    odd_counts,
    whole_numbers,
)

# A time after that of every row.
_AFTER = int(np.iinfo(np.int64).max) // 4


def totals_of(
    rows: Rows,
    *,
    columns: Sequence[pa.Array],
    conditions: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
) -> Totals:
    """Return what rows of one key add to aggregates over one column and condition.

    >>> rows = Rows(np.array([0, 0]), np.array([1, 5]))
    >>> totals_of(rows, columns=[pa.array([1.5, 2.0])], conditions=[],
    ...           aggregates=[Aggregate("mean", 0, over=5)])
    Totals(count=2, sums={'doubles': Fraction(7, 2)}, above=0, below=0, nothing=0)
    """
    # One label that sees them all.
    after = Labels(np.zeros(1, np.int64), np.array([_AFTER]))
    chunk = Chunk(Timeline(rows, after, keys=1), rows, columns, conditions)
    found = Totals()
    for given in aggregates:
        each = replace(given, over=None, offset=0)
        kind = columns[each.values].type
        is_whole = not pat.is_floating(kind)
        sums: dict[str, Fraction] = {}
        if each.function in ("sum", "mean") and is_whole:
            total = limb_sums(chunk, each, "whole numbers", whole_numbers)
            sums["whole numbers"] = total.exactly(0)
        elif each.function != "count":
            sums["doubles"] = limb_sums(chunk, each, "doubles", finite_doubles).exactly(0)
        if each.function in ("std", "var"):
            sums["squares"] = limb_sums(chunk, each, "squares", finite_squares).exactly(0)
        odd = [0, 0, 0]
        if each.function != "count" and not is_whole:
            odd = [int(counts[0]) for counts in odd_counts(chunk, each)]
        count = int(counted(chunk, each)[0])
        found = Totals(count, {**found.sums, **sums}, *map(max, odd, found.odds))
    return found


def rows_that_answer(
    columns: Sequence[pa.Array],
    conditions: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
) -> Integers:
    """Return numbers of rows that answer for all: whoever sees all may be shown these alone.

    The rows are of one key and in their order; of the functions those that pick values, not sums.

    >>> rows_that_answer([pa.array([3, 1, 1, 2])], [],
    ...                  [Aggregate("max", 0, over=5), Aggregate("last", 0, over=5)]).tolist()
    [0, 3]
    """
    count = len(columns[0])
    rows = Rows(np.zeros(count, np.int64), np.arange(count))
    nobody = Labels(np.zeros(0, np.int64), np.zeros(0, np.int64))
    chunk = Chunk(Timeline(rows, nobody, keys=1), rows, columns, conditions)
    picked = [np.zeros(0, np.int64)]
    for each in aggregates:
        present = np.flatnonzero(chunk.present(each))
        if len(present):
            picked.append(present[_PICKS[each.function](chunk, each, present)])
    return np.unique(np.concatenate(picked))


def _pick_extreme(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    order = order_of(chunk, each)
    choose = np.argmax if each.function == "max" else np.argmin
    return np.array([choose(order[present])])


def _pick_distinct(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    groups = chunk.of_column(each, "groups", lambda: groups_of(chunk, each))
    return np.unique(groups[present], return_index=True)[1].astype(np.int64)


def _pick_edge(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    """Return the first row, or the last ones."""
    count = len(present)
    if each.function == "first":
        return np.zeros(1, np.int64)
    return np.arange(max(count - max(each.n, 1), 0), count)


_PICKS: dict[str, Callable[[Chunk, Aggregate, Integers], Integers]] = {
    "all": _pick_distinct,
    "any": _pick_distinct,
    "count_distinct": _pick_distinct,
    "first": _pick_edge,
    "last": _pick_edge,
    "last_n": _pick_edge,
    "max": _pick_extreme,
    "min": _pick_extreme,
}
# Functions that some of the rows can answer for all of them.
PICKING = frozenset(_PICKS)
