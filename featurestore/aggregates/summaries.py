"""Summaries of rows that all later labels contain: totals, and the rows that suffice.

Sums and counts need the totals. Functions that select values return the same for all rows as for
the rows that they select.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates.chunk import Aggregate, Chunk, Totals
from featurestore.aggregates.column_codes import Integers
from featurestore.aggregates.counts import value_counts, value_groups
from featurestore.aggregates.extremes import sort_codes
from featurestore.aggregates.ranges import Labels, Rows, Timeline
from featurestore.aggregates.sums import (
    finite_doubles,
    finite_squares,
    limb_sums,
    non_finite_counts,
    to_integers,
)

# A label time after all rows.
_LABEL_TIME = int(np.iinfo(np.int64).max) // 4


def sum_totals(
    rows: Rows,
    *,
    columns: Sequence[pa.Array],
    conditions: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
) -> Totals:
    """Return the totals of rows of one key for aggregates over one column and condition.

    >>> rows = Rows(np.array([0, 0]), np.array([1, 5]))
    >>> sum_totals(rows, columns=[pa.array([1.5, 2.0])], conditions=[],
    ...           aggregates=[Aggregate("mean", 0, over=5)])
    Totals(count=2, sums={'doubles': Fraction(7, 2)}, positive_infinities=0, negative_infinities=0, nans=0)
    """
    # A single label whose window contains all rows.
    last_label = Labels(np.zeros(1, np.int64), np.array([_LABEL_TIME]))
    chunk = Chunk(Timeline(rows, last_label, keys=1), rows, columns, conditions)
    totals = Totals()
    for windowed in aggregates:
        each = replace(windowed, over=None, offset=0)
        kind = columns[each.values].type
        is_integer = not pat.is_floating(kind)
        sums: dict[str, Fraction] = {}
        if each.function in ("sum", "mean") and is_integer:
            total = limb_sums(chunk, each, "whole numbers", to_integers)
            sums["whole numbers"] = total.as_fraction(0)
        elif each.function != "count":
            sums["doubles"] = limb_sums(chunk, each, "doubles", finite_doubles).as_fraction(0)
        if each.function in ("std", "var"):
            sums["squares"] = limb_sums(chunk, each, "squares", finite_squares).as_fraction(0)
        non_finite = [0, 0, 0]
        if each.function != "count" and not is_integer:
            non_finite = [int(counts[0]) for counts in non_finite_counts(chunk, each)]
        count = int(value_counts(chunk, each)[0])
        totals = Totals(
            count, {**totals.sums, **sums}, *map(max, non_finite, totals.non_finite_counts)
        )
    return totals


def select_rows(
    columns: Sequence[pa.Array],
    conditions: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
) -> Integers:
    """Return the numbers of rows that suffice: functions over them equal those over all rows.

    The rows have one key and are in order; the functions select values.

    >>> select_rows([pa.array([3, 1, 1, 2])], [],
    ...                  [Aggregate("max", 0, over=5), Aggregate("last", 0, over=5)]).tolist()
    [0, 3]
    """
    count = len(columns[0])
    rows = Rows(np.zeros(count, np.int64), np.arange(count))
    no_labels = Labels(np.zeros(0, np.int64), np.zeros(0, np.int64))
    chunk = Chunk(Timeline(rows, no_labels, keys=1), rows, columns, conditions)
    selected = [np.zeros(0, np.int64)]
    for each in aggregates:
        present = np.flatnonzero(chunk.present(each))
        if len(present):
            selected.append(present[_SELECTORS[each.function](chunk, each, present)])
    return np.unique(np.concatenate(selected))


def _select_extreme(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    order = sort_codes(chunk, each)
    choose = np.argmax if each.function == "max" else np.argmin
    return np.array([choose(order[present])])


def _select_distinct(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    groups = chunk.cached_for_column(each, "groups", lambda: value_groups(chunk, each))
    return np.unique(groups[present], return_index=True)[1].astype(np.int64)


def _select_edge(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    """Return the first row, or the last rows."""
    count = len(present)
    if each.function == "first":
        return np.zeros(1, np.int64)
    return np.arange(max(count - max(each.n, 1), 0), count)


_SELECTORS: dict[str, Callable[[Chunk, Aggregate, Integers], Integers]] = {
    "all": _select_distinct,
    "any": _select_distinct,
    "count_distinct": _select_distinct,
    "first": _select_edge,
    "last": _select_edge,
    "last_n": _select_edge,
    "max": _select_extreme,
    "min": _select_extreme,
}
# Functions that depend on the selected rows only.
SELECTING = frozenset(_SELECTORS)
