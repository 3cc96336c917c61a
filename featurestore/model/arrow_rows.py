"""Rows of Arrow arrays and batches by their numbers, right on every release of pyarrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat


def values_at(array: Any, places: Any) -> Any:
    """Return the values at places.

    From a slice of lists of a fixed size within such lists pyarrow 26 takes other rows, silently.

    >>> values_at(pa.array([1, 2, 3]).slice(1), [1, 0]).to_pylist()
    [3, 2]
    """
    return _from_the_start(array).take(places if isinstance(places, pa.Array) else pa.array(places))


def rows_at(batch: pa.RecordBatch, places: Any) -> pa.RecordBatch:
    """Return the rows at places."""
    indices = places if isinstance(places, pa.Array) else pa.array(places)
    return pa.RecordBatch.from_arrays(
        [values_at(column, indices) for column in batch.columns], schema=batch.schema
    )


def _from_the_start(array: Any) -> Any:
    """Return an array that is no slice, where that makes a difference: a copy of what the slice holds."""
    # Arrays that are joined are copied, unless there is but one.
    return (
        pa.concat_arrays([array, array.slice(0, 0)])
        if array.offset and _is_deep(array.type)
        else array
    )


def _is_deep(kind: pa.DataType) -> bool:
    """Tell whether lists of a fixed size hold such lists, here or further inside."""
    if pat.is_fixed_size_list(kind) and pat.is_fixed_size_list(kind.value_type):
        return True
    return any(_is_deep(kind.field(index).type) for index in range(kind.num_fields))
