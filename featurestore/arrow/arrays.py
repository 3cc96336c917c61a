"""Conversion between array cells, fixed-size lists and numpy arrays of the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.numpy_columns import plain_array
from featurestore.arrow.odd_columns import Unstorable
from featurestore.arrow.shapes import items_of, shape_of, shaped_type
from featurestore.arrow.types import is_nested
from featurestore.errors import UnsupportedType

UNEQUAL_SHAPES_HINT = "pad or resize them to one shape, or keep the encoded bytes (PNG, JPEG, .npy)"


def from_numpy(values: Any, *, valid: Any = None) -> pa.Array:
    """Return an array of shape (rows, ...) as a column; ``valid`` is False where rows are null.

    >>> from_numpy(np.zeros((3, 8, 6), np.uint8)).type == shaped_type(pa.uint8(), (8, 6))
    True
    """
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    shape = values.shape[1:]
    for depth in reversed(range(1, len(shape))):
        column = pa.FixedSizeListArray.from_arrays(column, shape[depth])
    column_type = shaped_type(items_of(column.type), shape)
    bitmap = None
    null_count = 0
    if valid is not None and not valid.all():
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        null_count = int(len(valid) - valid.sum())
    return pa.Array.from_buffers(column_type, len(values), [bitmap], null_count, children=[column])


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return a chunked array as one array.

    >>> combine_chunks(pa.chunked_array([[1], [2]])).to_pylist()
    [1, 2]
    """
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return pa.concat_arrays(column.chunks)


def flat_items(column: pa.Array) -> pa.Array:
    """Return the values of fixed-size lists, including those of null rows.

    >>> flat_items(pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)).slice(1)).to_pylist()
    [3, 4]
    """
    for size in shape_of(column.type):
        column = column.values.slice(column.offset * size, len(column) * size)
    return column


def to_cells(column: pa.Array) -> list[Any]:
    """Return one numpy array per row, or None for null rows.

    >>> to_cells(from_numpy(np.arange(6).reshape(1, 2, 3)))
    [array([[0, 1, 2],
           [3, 4, 5]])]
    """
    items = flat_items(column).to_numpy(zero_copy_only=False)
    cells: list[Any] = list(items.reshape(len(column), *shape_of(column.type)))
    if column.null_count:
        for row in np.flatnonzero(np.asarray(column.is_null())):
            cells[row] = None
    return cells


def column_of_arrays(cells: Sequence[Any], *, name: str) -> pa.Array | None:
    """Return numeric arrays and lists as a column of one shape.

    Returns None for items other than numbers and for vectors of different lengths.

    >>> str(column_of_arrays([np.array([1, 2]), None, [3, 4]], name="x").type)
    'fixed_size_list<item: int64>[2]'

    Raises:
        UnsupportedType: Arrays of two or more dimensions differ in shape; names the rows.
    """
    arrays = _arrays_by_row(cells)
    if any(array.ndim == 0 for array in arrays.values()):
        return None
    if not all(map(_is_plain, arrays.values())):
        return None
    shape = _common_shape(arrays, name=name)
    if shape is None or 0 in shape:
        return None
    dtypes = {array.dtype for array in arrays.values()}
    values = np.zeros((len(cells), *shape), np.result_type(*dtypes))
    valid = np.zeros(len(cells), dtype=bool)
    for row, array in arrays.items():
        values[row] = array
        valid[row] = True
        if array.dtype.kind in "iu" and values.dtype.kind == "f":
            _check_not_rounded(array, values[row], row=row)
    return from_numpy(plain_array(values), valid=valid)


def first_shape_mismatch(
    column: pa.Array, target_type: pa.DataType
) -> tuple[int, tuple[int, ...]] | None:
    """Return the first row whose array does not have the shape of a type, and its shape.

    Returns None if all rows have the shape, or if the type has no shape.

    >>> first_shape_mismatch(pa.array([[1, 2], [3]]), pa.list_(pa.int64(), 2))
    (1, (1,))
    """
    target_shape = shape_of(target_type)
    if not target_shape or not is_nested(column.type) or shape_of(column.type) == target_shape:
        return None
    rows = np.flatnonzero(np.asarray(column.is_valid()))
    if len(target_shape) == 1 and pat.is_list(column.type):
        sizes = np.asarray(pc.fill_null(pc.list_value_length(column), target_shape[0]))
        rows = np.flatnonzero(sizes != target_shape[0])
    for row in rows:
        row_shape = _shape_of_row(column[int(row)])
        if row_shape != target_shape:
            return int(row), row_shape
    return None


def from_tensors(column: Any) -> pa.Array:
    """Return fixed-shape tensors as fixed-size lists, in logical order of the axes."""
    kind = column.type
    shape = tuple(kind.shape)
    storage = column.storage
    flat = flat_items(storage).to_numpy(zero_copy_only=False).reshape(len(column), *shape)
    if kind.permutation is not None:
        axes = [0]
        for axis in kind.permutation:
            axes.append(axis + 1)
        flat = flat.transpose(axes)
    return from_numpy(flat, valid=np.asarray(storage.is_valid()))


def _arrays_by_row(cells: Sequence[Any]) -> dict[int, Any]:
    """Return the arrays by row number, without missing cells."""
    arrays = {}
    for row, cell in enumerate(cells):
        if isinstance(cell, np.ndarray):
            arrays[row] = cell
        elif not _is_missing(cell):
            arrays[row] = np.asarray(cell)
    return arrays


def _check_not_rounded(array: Any, rounded: Any, *, row: int) -> None:
    """Refuse integers that the common float type cannot represent."""
    if (rounded.astype(array.dtype) != array).any():
        raise Unstorable(
            f"mixes arrays of {array.dtype} and of floats, which would round row {row}",
            expression="{v}.tolist()",
        )


def _common_shape(arrays: Mapping[int, Any], *, name: str) -> tuple[int, ...] | None:
    """Return the common shape; None if vectors differ in length."""
    first = next(iter(arrays))
    shape: tuple[int, ...] = arrays[first].shape
    for row, array in arrays.items():
        if array.shape == shape:
            continue
        if max(array.ndim, len(shape)) < 2:
            return None
        raise UnsupportedType(
            f"The arrays of column {name!r} differ in shape: row {first} has {shape}, "
            f"row {row} has {array.shape}.",
            hint=UNEQUAL_SHAPES_HINT,
        )
    return shape


def _shape_of_row(scalar: Any) -> tuple[int, ...]:
    """Return the shape of one list, by the lengths of its first items."""
    shape = []
    while is_nested(scalar.type) and not pat.is_struct(scalar.type):
        shape.append(len(scalar))
        if len(scalar) == 0:
            break
        scalar = scalar[0]
    return tuple(shape)


def _is_missing(cell: Any) -> bool:
    if cell is None:
        return True
    is_nan = isinstance(cell, float) and cell != cell
    return is_nan or type(cell).__name__ in ("NAType", "NaTType")


def _is_plain(array: Any) -> bool:
    """Return True if an array holds numbers or booleans without a mask."""
    return array.dtype.kind in "biuf" and not isinstance(array, np.ma.MaskedArray)
