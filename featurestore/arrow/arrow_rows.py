"""Selection and concatenation of Arrow rows, with workarounds for bugs of pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrow_bytes import concat_binaries, is_large_binary

# Larger batches are not coalesced: the copy costs more than it saves.
_BATCH_BYTES = 1 << 20


def take_values(array: Any, positions: Any, *, pool: pa.MemoryPool | None = None) -> Any:
    """Return the values at positions, allocated from ``pool``.

    pyarrow 26 takes wrong rows from a slice of nested fixed-size lists, without an error.

    >>> take_values(pa.array([1, 2, 3]).slice(1), [1, 0]).to_pylist()
    [3, 2]
    """
    indices = _indices(positions)
    rows = _as_matrix(array)
    if rows is None or indices.null_count:
        return pc.take(_without_deep_offset(array), indices, memory_pool=pool)
    # pyarrow takes fixed-size lists item by item, which is slower.
    return _lists_from_matrix(np.take(rows, indices.to_numpy(), axis=0), array.type)


def concat_arrays(arrays: Sequence[Any]) -> Any:
    """Concatenate arrays of one type.

    >>> concat_arrays([pa.array([1]), pa.array([2, 3])]).to_pylist()
    [1, 2, 3]
    """
    if len(arrays) == 1:
        return arrays[0]
    if is_large_binary(arrays):
        return concat_binaries(arrays)
    return pa.concat_arrays(arrays)


def select_rows(batch: pa.RecordBatch, positions: Any) -> pa.RecordBatch:
    """Return the rows at positions.

    >>> select_rows(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), [2, 0]).to_pydict()
    {'a': [3, 1]}
    """
    indices = _indices(positions)
    columns = [take_values(column, indices) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def coalesce_batches(batches: Iterable[pa.RecordBatch], *, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at least ``rows`` rows or 1 MiB.

    >>> few = pa.RecordBatch.from_pydict({"a": [1]})
    >>> [batch.num_rows for batch in coalesce_batches([few, few, few], rows=2)]
    [2, 1]
    """
    buffered_batches: list[pa.RecordBatch] = []
    buffered_rows = buffered_bytes = 0
    for batch in batches:
        buffered_batches.append(batch)
        buffered_rows += batch.num_rows
        buffered_bytes += batch.nbytes
        if buffered_rows >= rows or buffered_bytes >= _BATCH_BYTES:
            yield from _combined(buffered_batches)
            buffered_batches, buffered_rows, buffered_bytes = [], 0, 0
    yield from _combined(buffered_batches)


def copy_sliced_structs(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy sliced structs that contain structs, which DuckDB cannot read.

    >>> rows = pa.record_batch([pa.array([{"x": {"y": 1}}, {"x": {"y": 2}}])], ["s"])
    >>> copy_sliced_structs(rows.slice(1)).column(0).offset
    0
    """
    if not any(map(_has_nested_structs, batch.schema.types)):
        return batch
    columns = list(batch.columns)
    for index, column in enumerate(columns):
        if _has_nested_structs(column.type):
            columns[index] = _copy(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _combined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    # Columns of more than 2 GiB remain in several chunks.
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _indices(positions: Any) -> pa.Array:
    if isinstance(positions, pa.Array):
        return positions
    return pa.array(positions)


def _as_matrix(array: Any) -> Any | None:
    """Return fixed-size lists of numbers as a matrix (rows, items); None for others or nulls."""
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


def _lists_from_matrix(rows: Any, kind: pa.DataType) -> Any:
    """Return a matrix (rows, items) as nested fixed-size lists of a type."""
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


def _without_deep_offset(array: Any) -> Any:
    """Copy a slice of nested fixed-size lists."""
    if array.offset and _has_nested_fixed_lists(array.type):
        return _copy(array)
    return array


def _copy(array: Any) -> Any:
    """Return a copy without offsets."""
    # Arrow returns a single array as is: a second, empty one forces the copy.
    return pa.concat_arrays([array, array.slice(0, 0)])


def _has_nested_fixed_lists(kind: pa.DataType) -> bool:
    """Return whether a type contains fixed-size lists of fixed-size lists."""
    if pat.is_fixed_size_list(kind) and pat.is_fixed_size_list(kind.value_type):
        return True
    return any(_has_nested_fixed_lists(kind.field(index).type) for index in range(kind.num_fields))


def _has_nested_structs(kind: pa.DataType, *, inside: bool = False) -> bool:
    """Return whether a type contains structs within structs."""
    is_struct = pat.is_struct(kind)
    if is_struct and inside:
        return True
    for index in range(kind.num_fields):
        if _has_nested_structs(kind.field(index).type, inside=inside or is_struct):
            return True
    return False
