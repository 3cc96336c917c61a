"""How often each value of a column occurs, over all rows, while there are few different ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# Beyond so many different values only the sample tells of them.
MOST_VALUES = 1_000
# The first values of a batch tell that there are many.
LOOKED_AT = 4 * MOST_VALUES
LONGEST_TEXT = 256

ValueCounts = dict[Any, int]


def counts_of_numbers(values: NDArray[Any]) -> ValueCounts | None:
    """Return the counts of finite numbers, None where too many are different.

    >>> counts_of_numbers(np.array([3, 1, 3], dtype=np.int8))
    {1: 1, 3: 2}
    """
    if values.dtype.itemsize == 1:
        counts = _counts_of_bytes(values.view(np.uint8))
        found = np.flatnonzero(counts).astype(np.uint8)
        named = zip(found.view(values.dtype).tolist(), counts[found].tolist(), strict=True)
        return dict(sorted(named))
    if values.dtype.kind == "f":
        if len(np.unique(values[:LOOKED_AT])) > MOST_VALUES:
            return None
        values = values + 0.0  # -0.0 and 0.0 are one value
    return _counts(pa.array(values))


def counts_of_texts(texts: pa.Array, *, longest: int | None) -> ValueCounts | None:
    """Return the counts of texts, None where too many are different or one is long.

    >>> counts_of_texts(pa.array(["b", None, "b"]), longest=1)
    {'b': 2}
    """
    if longest is not None and longest > LONGEST_TEXT:
        return None
    return _counts(texts)


def merged_counts(left: ValueCounts | None, right: ValueCounts | None) -> ValueCounts | None:
    """Return the counts of both, None where too many values are different."""
    if left is None or right is None:
        return None
    if not left or not right:
        return left or right
    both = dict(left)
    for value, count in right.items():
        both[value] = both.get(value, 0) + count
    if len(both) > MOST_VALUES:
        return None
    return both


def to_lists(counts: Mapping[Any, int] | None) -> list[list[Any]] | None:
    """Return counts as JSON can hold them, in the order of the values."""
    if counts is None:
        return None
    ordered = sorted(counts)
    return [ordered, [counts[value] for value in ordered]]


def from_lists(data: list[list[Any]] | None) -> ValueCounts | None:
    """Return the counts that ``to_lists`` was given."""
    if data is None:
        return None
    values, counts = data
    return dict(zip(values, counts, strict=True))


def _counts_of_bytes(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    if values.max(initial=0) > 1:
        return np.bincount(values, minlength=256)
    ones = np.count_nonzero(values)
    return np.array([len(values) - ones, ones])


def _counts(array: pa.Array) -> ValueCounts | None:
    if pc.count_distinct(array.slice(0, LOOKED_AT)).as_py() > MOST_VALUES:
        return None
    pairs = pc.value_counts(array)
    if len(pairs) > MOST_VALUES + 1:
        return None
    values, counts = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    found = dict(zip(values, counts, strict=True))
    found.pop(None, None)
    if len(found) > MOST_VALUES:
        return None
    return found
