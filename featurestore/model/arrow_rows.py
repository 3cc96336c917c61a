"""Rows of Arrow arrays and batches by their numbers, right on every release of pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.model.arrow_bytes import has_many_bytes, joined_bytes

# Batches of so many bytes are not worth putting together: that copies them.
_MANY_BYTES = 1 << 20


def values_at(array: Any, positions: Any, *, pool: pa.MemoryPool | None = None) -> Any:
    """Return the values at positions, in memory of Arrow's pool or another one.

    From a slice of lists of a fixed size within such lists pyarrow 26 takes other rows, silently.

    >>> values_at(pa.array([1, 2, 3]).slice(1), [1, 0]).to_pylist()
    [3, 2]
    """
    indices = _indices(positions)
    rows = _numbers_in_rows(array)
    if rows is None or indices.null_count:
        return pc.take(_from_the_start(array), indices, memory_pool=pool)
    # Row by row: pyarrow takes lists of a fixed size item by item.
    return _lists_of_rows(np.take(rows, indices.to_numpy(), axis=0), array.type)


def joined(arrays: Sequence[Any]) -> Any:
    """Return the values of arrays of one type as one array.

    >>> joined([pa.array([1]), pa.array([2, 3])]).to_pylist()
    [1, 2, 3]
    """
    if len(arrays) == 1:
        return arrays[0]
    if has_many_bytes(arrays):
        return joined_bytes(arrays)
    return pa.concat_arrays(arrays)


def rows_at(batch: pa.RecordBatch, positions: Any) -> pa.RecordBatch:
    """Return the rows at positions.

    >>> rows_at(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), [2, 0]).to_pydict()
    {'a': [3, 1]}
    """
    indices = _indices(positions)
    columns = [values_at(column, indices) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def joined_batches(batches: Iterable[pa.RecordBatch], *, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, small batches joined until they have ``rows`` or many bytes.

    >>> few = pa.RecordBatch.from_pydict({"a": [1]})
    >>> [batch.num_rows for batch in joined_batches([few, few, few], rows=2)]
    [2, 1]
    """
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_rows += batch.num_rows
        held_bytes += batch.nbytes
        if held_rows >= rows or held_bytes >= _MANY_BYTES:
            yield from _in_one_piece(held)
            held, held_rows, held_bytes = [], 0, 0
    yield from _in_one_piece(held)


def without_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in which no struct that holds structs is a slice, as DuckDB requires.

    >>> rows = pa.record_batch([pa.array([{"x": {"y": 1}}, {"x": {"y": 2}}])], ["s"])
    >>> without_offsets(rows.slice(1)).column(0).offset
    0
    """
    if not any(map(_holds_struct_in_struct, batch.schema.types)):
        return batch
    columns = list(batch.columns)
    for index, column in enumerate(columns):
        if _holds_struct_in_struct(column.type):
            columns[index] = _copied(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _in_one_piece(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    # Columns of more than 2 GiB stay in several pieces.
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _indices(positions: Any) -> pa.Array:
    if isinstance(positions, pa.Array):
        return positions
    return pa.array(positions)


def _numbers_in_rows(array: Any) -> Any | None:
    """Return lists of a fixed size as (rows, items); None where nulls or other items are in them."""
    if not isinstance(array, pa.FixedSizeListArray) or array.null_count:
        return None
    inner, items = array, 1
    while pat.is_fixed_size_list(inner.type):
        size = inner.type.list_size
        inner, items = inner.values.slice(inner.offset * size, len(inner) * size), items * size
        if inner.null_count:
            return None
    if items == 0 or not (pat.is_integer(inner.type) or pat.is_floating(inner.type)):
        return None
    return inner.to_numpy().reshape(len(array), items)


def _lists_of_rows(rows: Any, kind: pa.DataType) -> Any:
    """Return numbers of shape (rows, items) as lists of a fixed size, nested as their type is."""
    kinds = []
    while pat.is_fixed_size_list(kind):
        kinds.append(kind)
        kind = kind.value_type
    lengths = [len(rows)]
    for each in kinds[:-1]:
        lengths.append(lengths[-1] * each.list_size)
    values = pa.array(rows.reshape(-1), kind)
    for each, length in zip(reversed(kinds), reversed(lengths), strict=True):
        values = pa.Array.from_buffers(each, length, [None], 0, children=[values])
    return values


def _from_the_start(array: Any) -> Any:
    """Return an array that is no slice, where that makes a difference."""
    if array.offset and _is_deep(array.type):
        return _copied(array)
    return array


def _copied(array: Any) -> Any:
    """Return a copy of what an array holds, no part of which is a slice."""
    # Arrays that are joined are copied, unless there is but one.
    return pa.concat_arrays([array, array.slice(0, 0)])


def _is_deep(kind: pa.DataType) -> bool:
    """Tell whether lists of a fixed size hold such lists, here or further inside."""
    if pat.is_fixed_size_list(kind) and pat.is_fixed_size_list(kind.value_type):
        return True
    return any(_is_deep(kind.field(index).type) for index in range(kind.num_fields))


def _holds_struct_in_struct(kind: pa.DataType, *, inside: bool = False) -> bool:
    """Tell whether a struct holds structs, directly or in lists."""
    is_struct = pat.is_struct(kind)
    if is_struct and inside:
        return True
    for index in range(kind.num_fields):
        if _holds_struct_in_struct(kind.field(index).type, inside=inside or is_struct):
            return True
    return False
