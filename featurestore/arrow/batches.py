"""Selection and concatenation of Arrow rows, and serialization of batch streams.

Some functions work around pyarrow bugs or slow paths; their docstrings name the reason.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

# From this size on, numpy uses huge pages.
_LARGE_BYTES = 1 << 22
_MAX_BYTES = 2**31 - 1  # the range of 32-bit offsets

# Larger batches are not coalesced: the copy costs more than it saves.
_BATCH_BYTES = 1 << 20


def select_rows(batch: pa.RecordBatch, positions: Any) -> pa.RecordBatch:
    """Select the rows at the given positions.

    >>> select_rows(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), [2, 0]).to_pydict()
    {'a': [3, 1]}
    """
    indices = _to_indices(positions)
    columns = [take_values(column, indices) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def take_values(array: Any, positions: Any, *, pool: pa.MemoryPool | None = None) -> Any:
    """Select the values at the given positions, allocated from ``pool``.

    pyarrow 26 takes wrong rows from a slice of nested fixed-size lists, without an error.

    >>> take_values(pa.array([1, 2, 3]).slice(1), [1, 0]).to_pylist()
    [3, 2]
    """
    indices = _to_indices(positions)
    rows = _to_matrix(array)
    # NumPy's ``take`` has no nulls.
    if rows is None or indices.null_count:
        if array.offset and _has_nested_fixed_lists(array.type):
            array = _copy_array(array)
        return pc.take(array, indices, memory_pool=pool)
    # pyarrow takes fixed-size lists item by item, which is slower.
    return _matrix_to_lists(np.take(rows, indices.to_numpy(), axis=0), array.type)


def without_hidden_values(array: Any) -> Any:
    """Return an equal array whose buffers depend neither on its offset nor on values under nulls.

    >>> without_hidden_values(pa.array([1, None, 3]).slice(1)).offset
    0
    """
    rows = pa.array(np.arange(len(array)))
    if array.null_count:
        # Rows that are taken with a null index are zeros.
        rows = pc.if_else(array.is_valid(), rows, None)
    return take_values(array, rows)


def concat_arrays(arrays: Sequence[Any]) -> Any:
    """Concatenate arrays of one type.

    >>> concat_arrays([pa.array([1]), pa.array([2, 3])]).to_pylist()
    [1, 2, 3]
    """
    if len(arrays) == 1:
        return arrays[0]
    if _is_large_binary(arrays):
        return _concat_binaries(arrays)
    return pa.concat_arrays(arrays)


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
            yield from _combine_batches(buffered_batches)
            buffered_batches, buffered_rows, buffered_bytes = [], 0, 0
    yield from _combine_batches(buffered_batches)


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
            columns[index] = _copy_array(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def ipc_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the bytes of an IPC stream: schema and first batch, other batches, end marker.

    >>> import pyarrow as pa
    >>> table = pa.table({"n": [1, 2]})
    >>> parts = list(ipc_chunks(table.schema, table.to_batches()))
    >>> len(parts), pa.ipc.open_stream(b"".join(parts)).read_all().num_rows
    (2, 2)
    """
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield _drain(buffer)
    yield _drain(buffer)


def create_item_rows(rows: int, max_items: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a structured array of ``rows`` empty lists with room for ``max_items`` items each.

    ``length`` is the number of valid ``items`` in a row; the remaining items are arbitrary. Rows
    can be selected, concatenated and assigned like those of any array.

    >>> lists = create_item_rows(2, 3, np.dtype(np.int64))
    >>> lists[0] = 2, [7, 8, 0]
    >>> lists["length"].tolist(), lists["items"].shape
    ([2, 0], (2, 3))
    """
    return np.zeros(rows, dtype=[("length", np.int64), ("items", dtype, (max_items,))])


def is_item_rows(rows: npt.NDArray[Any]) -> bool:
    """Return whether an array was created by ``create_item_rows``."""
    return rows.dtype.names is not None


def split_item_rows(
    rows: npt.NDArray[Any],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the concatenated items of all rows, and the number of items in each row.

    >>> lists = create_item_rows(2, 3, np.dtype(np.int64))
    >>> lists[0] = 2, [7, 8, 0]
    >>> split_item_rows(lists)[0].tolist()
    [7, 8]
    """
    # A field of a structured array has a stride, unlike the result of this function.
    lengths: npt.NDArray[np.int64] = np.ascontiguousarray(rows["length"])
    items = rows["items"]
    # A mask selects in row-major order, so the items of a row stay together and in order.
    return items[np.arange(items.shape[1]) < lengths[:, None]], lengths


def _to_indices(positions: Any) -> pa.Array:
    if isinstance(positions, pa.Array):
        return positions
    return pa.array(positions)


def _to_matrix(array: Any) -> Any | None:
    """Return fixed-size lists of numbers as a matrix (rows, items), or None."""
    if not isinstance(array, pa.FixedSizeListArray) or array.null_count:
        return None
    inner, items = array, 1
    while pat.is_fixed_size_list(inner.type):
        size = inner.type.list_size
        inner, items = inner.values.slice(inner.offset * size, len(inner) * size), items * size
        # NumPy has no null items.
        if inner.null_count:
            return None
    if items == 0 or not (pat.is_integer(inner.type) or pat.is_floating(inner.type)):
        return None
    return inner.to_numpy().reshape(len(array), items)


def _has_nested_fixed_lists(dtype: pa.DataType) -> bool:
    """Return whether a type contains fixed-size lists of fixed-size lists."""
    if pat.is_fixed_size_list(dtype) and pat.is_fixed_size_list(dtype.value_type):
        return True
    return any(
        _has_nested_fixed_lists(dtype.field(index).type) for index in range(dtype.num_fields)
    )


def _copy_array(array: Any) -> Any:
    """Copy an array so that it has no offset."""
    # Arrow returns a single array unchanged: a second, empty array forces the copy.
    return pa.concat_arrays([array, array.slice(0, 0)])


def _matrix_to_lists(rows: Any, dtype: pa.DataType) -> Any:
    """Convert a matrix (rows, items) to nested fixed-size lists of a type."""
    kinds = []
    while pat.is_fixed_size_list(dtype):
        kinds.append(dtype)
        dtype = dtype.value_type
    lengths = [len(rows)]
    for list_type in kinds[:-1]:
        lengths.append(lengths[-1] * list_type.list_size)
    values = pa.array(rows.reshape(-1), dtype)
    for list_type, length in zip(reversed(kinds), reversed(lengths), strict=True):
        values = pa.Array.from_buffers(list_type, length, [None], 0, children=[values])
    return values


def _is_large_binary(arrays: Sequence[Any]) -> bool:
    """Return whether ``_concat_binaries`` is faster than Arrow's concatenation.

    >>> _is_large_binary([pa.array([b"few"])])
    False
    """
    if not pat.is_binary(arrays[0].type):
        return False
    return _LARGE_BYTES <= sum(map(_data_bytes, arrays)) <= _MAX_BYTES


def _data_bytes(array: Any) -> int:
    offsets = _offsets(array)
    return int(offsets[-1]) - int(offsets[0])


def _offsets(array: Any) -> npt.NDArray[np.int32]:
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def _concat_binaries(arrays: Sequence[Any]) -> Any:
    """Concatenate binary arrays.

    >>> _concat_binaries([pa.array([b"ab", None]), pa.array([b"c"])]).to_pylist()
    [b'ab', None, b'c']
    """
    lengths = np.concatenate([np.diff(_offsets(array)) for array in arrays])
    data, end = np.empty(int(lengths.sum()), np.uint8), 0
    for array in arrays:
        begin, end = end, end + _data_bytes(array)
        data[begin:end] = _data_buffer(array)
    valid = None
    if any(array.null_count for array in arrays):
        valid = pa.concat_arrays([array.is_valid() for array in arrays])
    return _build_binary(lengths, data, valid)


def _data_buffer(array: Any) -> npt.NDArray[np.uint8]:
    first, data = int(_offsets(array)[0]), array.buffers()[2]
    if data is None:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8, _data_bytes(array), first)


def _build_binary(
    lengths: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], valid: pa.Array | None
) -> Any:
    """Build a binary array from the concatenated values."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bits = None
    if valid is not None:
        bits = valid.buffers()[1]
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _combine_batches(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    # Columns of more than 2 GiB remain in several chunks.
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _has_nested_structs(dtype: pa.DataType, *, inside: bool = False) -> bool:
    """Return whether a type contains structs within structs."""
    is_struct = pat.is_struct(dtype)
    if is_struct and inside:
        return True
    for index in range(dtype.num_fields):
        if _has_nested_structs(dtype.field(index).type, inside=inside or is_struct):
            return True
    return False


def _drain(buffer: io.BytesIO) -> bytes:
    """Return the contents of a buffer and clear it."""
    content = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return content
