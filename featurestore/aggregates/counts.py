"""Counts: of values, of different ones, and of those that are true."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.arrays import Flags, Integers
from featurestore.aggregates.chunk import Aggregate, Chunk
from featurestore.aggregates.column_codes import flags_of, nulls_where, one_zero
from featurestore.aggregates.windows import Summands


def counted(chunk: Chunk, each: Aggregate) -> Integers:
    """Return how many values each label sees."""

    def compute() -> Integers:
        flags = chunk.of_column(each, "counts", lambda: ones(chunk.present(each)))
        return chunk.window(each).totals(flags) + chunk.totals(each).count

    found: Integers = chunk.in_window(each, "count", compute)
    return found


def ones(flags: Flags) -> Summands:
    """Return one for each flagged row, to be added."""
    return Summands(flags.astype(np.int64))


def _count(chunk: Chunk, each: Aggregate) -> pa.Array:
    return pa.array(counted(chunk, each), pa.int64())


def _count_distinct(chunk: Chunk, each: Aggregate) -> pa.Array:
    groups = chunk.of_column(each, "groups", lambda: groups_of(chunk, each))
    found = chunk.window(each).distinct(groups, chunk.present(each))
    return pa.array(found, pa.int64())


def groups_of(chunk: Chunk, each: Aggregate) -> Integers:
    """Return a number for each pair of key and value; equal pairs have equal ones."""
    values = one_zero(chunk.columns[each.values])
    indices = values.dictionary_encode(null_encoding="encode").indices
    codes = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = codes + chunk.rows.key * (int(codes.max(initial=0)) + 1)
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _any(chunk: Chunk, each: Aggregate) -> pa.Array:
    true = _counted_true(chunk, each)
    return nulls_where(true > 0, counted(chunk, each) == 0, pa.bool_())


def _all(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = counted(chunk, each)
    return nulls_where(_counted_true(chunk, each) == count, count == 0, pa.bool_())


def _counted_true(chunk: Chunk, each: Aggregate) -> Integers:
    def compute() -> Summands:
        values = flags_of(pc.fill_null(chunk.columns[each.values], False))
        return ones(values & chunk.present(each))

    return chunk.window(each).totals(chunk.of_column(each, "true", compute))


FUNCTIONS: dict[str, Callable[[Chunk, Aggregate], pa.Array]] = {
    "all": _all,
    "any": _any,
    "count": _count,
    "count_distinct": _count_distinct,
}
