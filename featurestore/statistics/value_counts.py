"""Counts of the distinct values of columns with few of them, over all rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.statistics.values import Values

# Encoding a longer text takes as long as measuring it.
_MAX_MEAN_BYTES = 64


# Columns with more distinct values are described by the sample only.
MAX_VALUES = 1_000
# Values at the start of a batch that are checked before a complete count.
PROBED_ROWS = 4 * MAX_VALUES
# In most columns with many values, the first ones are all distinct.
_FIRST_PROBE = MAX_VALUES + 10
MAX_TEXT_LENGTH = 256

ValueCounts = dict[Any, int]


def with_dictionaries(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Dictionary-encode those of the named columns that have few distinct values."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in names and _has_few_values(column):
            column = column.dictionary_encode()
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def count_occurrences(data: pa.DictionaryArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the values that occur in a dictionary array, and their counts."""
    counts = np.bincount(dictionary_codes(data.indices.drop_null()), minlength=len(data.dictionary))
    values = data.dictionary
    if not counts.all():
        values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
    return values, counts


def dictionary_codes(indices: pa.Array) -> NDArray[np.int32]:
    """Return dictionary indices as numpy, without a copy where possible; 0 for nulls."""
    if indices.null_count:
        indices = indices.fill_null(0)
    return np.asarray(indices.to_numpy(zero_copy_only=False))


def _has_few_values(column: pa.Array) -> bool:
    if not pat.is_string(column.type) or column.nbytes > _MAX_MEAN_BYTES * len(column):
        return False
    probe = column.slice(0, PROBED_ROWS)
    max_distinct = min(MAX_VALUES, len(probe) // 4)
    return int(pc.count_distinct(probe).as_py()) <= max_distinct


def count_numbers(values: Values) -> ValueCounts | None:
    """Return the counts of finite numbers, None if there are too many distinct ones.

    >>> from featurestore.statistics.values import measured_values
    >>> count_numbers(measured_values(pa.array([3, 1, None, 3], pa.int8())))
    {1: 1, 3: 2}
    """
    numbers = values.numbers
    if numbers.dtype.itemsize == 1:
        value_counts = _count_bytes(numbers)
    elif _has_many_values(pa.array(numbers[:PROBED_ROWS])):
        return None
    else:
        if numbers.dtype.kind == "f":
            numbers = numbers + 0.0  # -0.0 and 0.0 are one value
        array_counts = _count_array(pa.array(numbers))
        if array_counts is None:
            return None
        value_counts = array_counts
    if values.missing:
        value_counts[values.pivot] -= values.missing
        if not value_counts[values.pivot]:
            del value_counts[values.pivot]
    if len(value_counts) > MAX_VALUES:
        return None
    return value_counts


def count_texts(texts: pa.Array, *, longest: int | None) -> ValueCounts | None:
    """Return the counts of texts, None if there are too many distinct ones or one is too long.

    >>> count_texts(pa.array(["b", None, "b"]), longest=1)
    {'b': 2}
    """
    if longest is not None and longest > MAX_TEXT_LENGTH:
        return None
    if _has_many_values(texts):
        return None
    value_counts = _count_array(texts)
    if value_counts is None or len(value_counts) > MAX_VALUES:
        return None
    return value_counts


def merged_counts(first: ValueCounts | None, second: ValueCounts | None) -> ValueCounts | None:
    """Return the sums of two counts, None if there are too many distinct values."""
    if first is None or second is None:
        return None
    if not first or not second:
        return first or second
    merged = dict(first)
    for value, count in second.items():
        merged[value] = merged.get(value, 0) + count
    if len(merged) > MAX_VALUES:
        return None
    return merged


def counts_to_lists(counts: Mapping[Any, int] | None) -> list[list[Any]] | None:
    """Convert counts to a list of values and a list of counts for JSON, sorted by value."""
    if counts is None:
        return None
    ordered = sorted(counts)
    return [ordered, [counts[value] for value in ordered]]


def counts_from_lists(data: list[list[Any]] | None) -> ValueCounts | None:
    """Convert the lists of ``counts_to_lists`` back to counts."""
    if data is None:
        return None
    values, counts = data
    return dict(zip(values, counts, strict=True))


def _has_many_values(array: pa.Array) -> bool:
    """Return True if the first values contain too many distinct ones."""
    for probed_rows in (_FIRST_PROBE, PROBED_ROWS):
        if pc.count_distinct(array.slice(0, probed_rows)).as_py() > MAX_VALUES + 1:
            return True
    return False


def _count_bytes(numbers: NDArray[Any]) -> ValueCounts:
    """Return the counts of one-byte numbers, in ascending order."""
    if numbers.max(initial=0) <= 1 and numbers.min(initial=0) >= 0:
        ones = np.count_nonzero(numbers)
        counts = np.array([len(numbers) - ones, ones])
    else:
        counts = np.bincount(numbers.view(np.uint8), minlength=256)
    occurring = np.flatnonzero(counts).astype(np.uint8)
    pairs = zip(occurring.view(numbers.dtype).tolist(), counts[occurring].tolist(), strict=True)
    return dict(sorted(pairs))


def _count_array(array: pa.Array) -> ValueCounts | None:
    """Return the counts of the values of an array, None if there are too many."""
    pairs = pc.value_counts(array)
    if len(pairs) > MAX_VALUES + 1:
        return None
    values, counts = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    value_counts = dict(zip(values, counts, strict=True))
    value_counts.pop(None, None)
    return value_counts
