"""Counts of values, of distinct values and of true values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.chunk import Aggregate, Chunk
from featurestore.aggregates.column_codes import (
    Flags,
    Integers,
    masked_array,
    normalize_floats,
    to_flags,
)
from featurestore.aggregates.windows import Summands


def value_counts(chunk: Chunk, each: Aggregate) -> Integers:
    """Return the number of values in the window of each label."""

    def compute() -> Integers:
        flags = chunk.cached_for_column(each, "counts", lambda: as_summands(chunk.present(each)))
        return chunk.window(each).totals(flags) + chunk.totals(each).count

    counts: Integers = chunk.cached_for_window(each, "count", compute)
    return counts


def as_summands(flags: Flags) -> Summands:
    """Return summands of 1 for flagged rows and 0 for others."""
    return Summands(flags.astype(np.int64))


def _count(chunk: Chunk, each: Aggregate) -> pa.Array:
    return pa.array(value_counts(chunk, each), pa.int64())


def _count_distinct(chunk: Chunk, each: Aggregate) -> pa.Array:
    groups = chunk.cached_for_column(each, "groups", lambda: value_groups(chunk, each))
    counts = chunk.window(each).distinct(groups, chunk.present(each))
    return pa.array(counts, pa.int64())


def value_groups(chunk: Chunk, each: Aggregate) -> Integers:
    """Return an integer for each row; rows with the same key and value have the same one."""
    values = normalize_floats(chunk.columns[each.values])
    indices = values.dictionary_encode(null_encoding="encode").indices
    codes = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = codes + chunk.rows.key * (int(codes.max(initial=0)) + 1)
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _any(chunk: Chunk, each: Aggregate) -> pa.Array:
    true_counts = _true_counts(chunk, each)
    return masked_array(true_counts > 0, value_counts(chunk, each) == 0, pa.bool_())


def _all(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = value_counts(chunk, each)
    return masked_array(_true_counts(chunk, each) == count, count == 0, pa.bool_())


def _true_counts(chunk: Chunk, each: Aggregate) -> Integers:
    def compute() -> Summands:
        values = to_flags(pc.fill_null(chunk.columns[each.values], False))
        return as_summands(values & chunk.present(each))

    return chunk.window(each).totals(chunk.cached_for_column(each, "true", compute))


FUNCTIONS: dict[str, Callable[[Chunk, Aggregate], pa.Array]] = {
    "all": _all,
    "any": _any,
    "count": _count,
    "count_distinct": _count_distinct,
}
