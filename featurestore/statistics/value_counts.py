"""How often each value of a column occurs, over all rows, while there are few different ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featurestore.statistics.values import Values

# Beyond so many different values only the sample tells of them.
MOST_VALUES = 1_000
# The first values of a batch tell that there are many.
LOOKED_AT = 4 * MOST_VALUES
# All different in most columns of many values.
_FIRST_LOOK = MOST_VALUES + 10
LONGEST_TEXT = 256

ValueCounts = dict[Any, int]


def counts_of_numbers(values: Values) -> ValueCounts | None:
    """Return the counts of finite numbers, None where too many are different.

    >>> from featurestore.statistics.values import measured_values
    >>> counts_of_numbers(measured_values(pa.array([3, 1, None, 3], pa.int8())))
    {1: 1, 3: 2}
    """
    numbers = values.numbers
    if numbers.dtype.itemsize == 1:
        found = _counts_of_bytes(numbers)
    elif _are_many(pa.array(numbers[:LOOKED_AT])):
        return None
    else:
        if numbers.dtype.kind == "f":
            numbers = numbers + 0.0  # -0.0 and 0.0 are one value
        counted = _counts(pa.array(numbers))
        if counted is None:
            return None
        found = counted
    if values.missing:
        found[values.pivot] -= values.missing
        if not found[values.pivot]:
            del found[values.pivot]
    if len(found) > MOST_VALUES:
        return None
    return found


def counts_of_texts(texts: pa.Array, *, longest: int | None) -> ValueCounts | None:
    """Return the counts of texts, None where too many are different or one is long.

    >>> counts_of_texts(pa.array(["b", None, "b"]), longest=1)
    {'b': 2}
    """
    if longest is not None and longest > LONGEST_TEXT:
        return None
    if _are_many(texts):
        return None
    found = _counts(texts)
    if found is None or len(found) > MOST_VALUES:
        return None
    return found


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


def _are_many(array: pa.Array) -> bool:
    """Tell whether the first values show that too many are different."""
    for looked_at in (_FIRST_LOOK, LOOKED_AT):
        if pc.count_distinct(array.slice(0, looked_at)).as_py() > MOST_VALUES + 1:
            return True
    return False


def _counts_of_bytes(numbers: NDArray[Any]) -> ValueCounts:
    """Return the counts of numbers of one byte, in their order."""
    if numbers.max(initial=0) <= 1 and numbers.min(initial=0) >= 0:
        ones = np.count_nonzero(numbers)
        counts = np.array([len(numbers) - ones, ones])
    else:
        counts = np.bincount(numbers.view(np.uint8), minlength=256)
    found = np.flatnonzero(counts).astype(np.uint8)
    named = zip(found.view(numbers.dtype).tolist(), counts[found].tolist(), strict=True)
    return dict(sorted(named))


def _counts(array: pa.Array) -> ValueCounts | None:
    """Return the counts of the values of an array, None where there are far too many."""
    pairs = pc.value_counts(array)
    if len(pairs) > MOST_VALUES + 1:
        return None
    values, counts = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    found = dict(zip(values, counts, strict=True))
    found.pop(None, None)
    return found
