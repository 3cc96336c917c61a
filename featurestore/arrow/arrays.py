"""Conversion between array cells, numpy arrays, and fixed-size lists of the same shape.

Arrow reads numpy arrays that have the native byte order and units that Arrow supports. Other arrays
are converted without loss, or refused. Variable-size lists of equal length become fixed-size lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow import types
from featurestore.arrow.casts import cast_array
from featurestore.arrow.unstorable import Unstorable, is_missing

Shapes: TypeAlias = dict[str, tuple[int, ...] | None]

# numpy time units that Arrow supports; other units are converted to one of these.
_ARROW_UNITS = {"s": 1, "ms": 1, "us": 1, "ns": 1, "D": 1}
_OTHER_UNITS = {"Y": "D", "M": "D", "W": "D", "D": "D", "h": "s", "m": "s"}
_REFUSED = {"c": "complex numbers", "m": "durations", "V": "numpy records"}
_DOUBLE_BYTES = 8

UNEQUAL_SHAPES_HINT = "pad or resize them to one shape, or keep the encoded bytes (PNG, JPEG, .npy)"


def from_numpy(values: Any, *, valid: Any = None) -> pa.Array:
    """Convert an array of shape (rows, ...) to a column; ``valid`` is False where rows are null.

    >>> from_numpy(np.zeros((3, 8, 6), np.uint8)).type == types.shaped_type(pa.uint8(), (8, 6))
    True
    """
    # The feature type of float16 is float32, which contains all of its values.
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    shape = values.shape[1:]
    # From the innermost axis outwards; the outermost list gets the validity bitmap below.
    for depth in reversed(range(1, len(shape))):
        column = pa.FixedSizeListArray.from_arrays(column, shape[depth])
    column_type = types.shaped_type(types.array_item_type(column.type), shape)
    bitmap = None
    null_count = 0
    if valid is not None and not valid.all():
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        null_count = int(len(valid) - valid.sum())
    # ``FixedSizeListArray.from_arrays`` of pyarrow 14 cannot create null rows.
    return pa.Array.from_buffers(column_type, len(values), [bitmap], null_count, children=[column])


def to_cells(column: pa.Array) -> list[Any]:
    """Return one numpy array per row, or None for null rows.

    >>> to_cells(from_numpy(np.arange(6).reshape(1, 2, 3)))
    [array([[0, 1, 2],
           [3, 4, 5]])]
    """
    items = flatten_items(column).to_numpy(zero_copy_only=False)
    cells: list[Any] = list(items.reshape(len(column), *types.array_shape(column.type)))
    if column.null_count:
        # The items of null rows are arbitrary.
        for row in np.flatnonzero(np.asarray(column.is_null())):
            cells[row] = None
    return cells


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Combine the chunks of an array into one array.

    >>> combine_chunks(pa.chunked_array([[1], [2]])).to_pylist()
    [1, 2]
    """
    # Without a copy.
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return pa.concat_arrays(column.chunks)


def flatten_items(column: pa.Array) -> pa.Array:
    """Return the values of fixed-size lists, including the values of null rows.

    >>> flatten_items(pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)).slice(1)).to_pylist()
    [3, 4]
    """
    for size in types.array_shape(column.type):
        # ``values`` ignores the offset of a slice, and ``flatten`` would skip null rows.
        column = column.values.slice(column.offset * size, len(column) * size)
    return column


def to_shaped_column(cells: Sequence[Any]) -> pa.Array | None:
    """Convert numeric arrays and lists to a column of one shape.

    Returns None if items are not numbers or vectors have different lengths.

    >>> str(to_shaped_column([np.array([1, 2]), None, [3, 4]]).type)
    'fixed_size_list<item: int64>[2]'

    Raises:
        Unstorable: The shapes of multi-dimensional arrays differ; names the rows.
    """
    arrays = _index_arrays_by_row(cells)
    if any(array.ndim == 0 for array in arrays.values()):
        return None
    # Strings, times and masks are converted cell by cell.
    if not all(map(_is_plain, arrays.values())):
        return None
    shape = _find_common_shape(arrays)
    if shape is None or 0 in shape:
        return None
    dtypes = {array.dtype for array in arrays.values()}
    # The common type of int64 and float64 is float64, which rounds large integers; the check below
    # refuses those.
    values = np.zeros((len(cells), *shape), np.result_type(*dtypes))
    valid = np.zeros(len(cells), dtype=bool)
    for row, array in arrays.items():
        values[row] = array
        valid[row] = True
        if array.dtype.kind in "iu" and values.dtype.kind == "f":
            _check_not_rounded(array, values[row], row=row)
    return from_numpy(to_plain_array(values), valid=valid)


def find_shape_mismatch(
    column: pa.Array, target_type: pa.DataType
) -> tuple[int, tuple[int, ...]] | None:
    """Return the first row whose array does not have the shape of a type, and that array's shape.

    Returns None if all rows match, or if the type has no shape.

    >>> find_shape_mismatch(pa.array([[1, 2], [3]]), pa.list_(pa.int64(), 2))
    (1, (1,))
    """
    target_shape = types.array_shape(target_type)
    if (
        not target_shape
        or not types.is_nested(column.type)
        or types.array_shape(column.type) == target_shape
    ):
        return None
    rows = np.flatnonzero(np.asarray(column.is_valid()))
    # Vectors are compared by their lengths, without a loop over all rows.
    if len(target_shape) == 1 and pat.is_list(column.type):
        sizes = np.asarray(pc.fill_null(pc.list_value_length(column), target_shape[0]))
        rows = np.flatnonzero(sizes != target_shape[0])
    for row in rows:
        row_shape = _infer_row_shape(column[int(row)])
        if row_shape != target_shape:
            return int(row), row_shape
    return None


def from_tensors(column: Any) -> pa.Array:
    """Convert fixed-shape tensors to fixed-size lists, in logical axis order."""
    dtype = column.type
    shape = tuple(dtype.shape)
    storage = column.storage
    flat = flatten_items(storage).to_numpy(zero_copy_only=False).reshape(len(column), *shape)
    # Tensors are stored in physical axis order.
    if dtype.permutation is not None:
        flat = flat.transpose([0, *(axis + 1 for axis in dtype.permutation)])
    return from_numpy(flat, valid=np.asarray(storage.is_valid()))


def to_plain_array(array: Any) -> Any:
    """Convert an array to a type that Arrow reads without loss, with equal values.

    Masks are preserved. Arrays of objects and strings are unchanged, for conversion cell by cell.

    >>> to_plain_array(np.array([1, 2], ">i4")).dtype
    dtype('int32')
    >>> to_plain_array(np.array(["2024-03"], "M8[M]")).dtype
    dtype('<M8[D]')

    Raises:
        Unstorable: The array contains complex numbers, durations or records, or values would be
            rounded.
    """
    type_code = array.dtype.kind
    if type_code in _REFUSED:
        raise Unstorable(f"holds {_REFUSED[type_code]}, which cannot be stored")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # Arrow has no long doubles.
    if type_code == "f" and array.dtype.itemsize > _DOUBLE_BYTES:
        return _cast_without_loss(array, np.dtype(np.float64))
    if type_code == "M":
        return _to_arrow_unit(array)
    return array


def to_python_cells(array: Any) -> Any:
    """Convert an array to nested Python lists, one level per axis.

    >>> to_python_cells(np.array(["2024-03-01T12"], "M8[h]"))
    [datetime.datetime(2024, 3, 1, 12, 0)]

    Raises:
        Unstorable: As in ``to_plain_array``; also for times finer than a microsecond or outside the
            years 1 to 9999.
    """
    if array.dtype.kind in _REFUSED:
        raise Unstorable(
            f"holds arrays of {array.dtype} and shape {array.shape}, which cannot be stored"
        )
    plain = to_plain_array(array)
    if plain.dtype.kind != "M":
        return plain.tolist()
    # ``tolist`` returns nanoseconds as integers, but microseconds as datetimes.
    if np.datetime_data(plain.dtype)[0] == "ns":
        plain = _cast_without_loss(plain, np.dtype("M8[us]"))
    flat = plain.ravel().tolist()
    if int in set(map(type, flat)):  # numpy's form of what a datetime cannot hold
        raise Unstorable("holds times outside the years 1 to 9999")
    return plain.tolist()


def numbers_to_arrow(array: Any, *, nan_is_null: bool = False) -> pa.Array:
    """Convert a one-dimensional array of numbers, booleans or times; masked values become null.

    >>> numbers_to_arrow(np.ma.masked_equal([1, 2], 2)).to_pylist()
    [1, None]
    """
    mask = None
    if isinstance(array, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(array)
    return pa.array(np.ascontiguousarray(array), mask=mask, from_pandas=nan_is_null)


def is_list_of_numbers(dtype: pa.DataType) -> bool:
    """Return whether a type is a variable-size list, at each depth, of numbers.

    >>> is_list_of_numbers(pa.list_(pa.list_(pa.int8()))), is_list_of_numbers(pa.list_(pa.string()))
    (True, False)
    """
    if not types.is_variable_size_list(dtype):
        return False
    return types.is_number(dtype.value_type) or is_list_of_numbers(dtype.value_type)


def find_uniform_shape(column: pa.Array) -> tuple[int, ...] | None:
    """Return the common shape of lists of numbers that have equal lengths at each depth.

    Returns None if lengths differ, items are missing, or items are not numbers.

    >>> find_uniform_shape(pa.array([[[1, 2], [3, 4]], None])), find_uniform_shape(pa.array([[1], [2, 3]]))
    ((2, 2), None)
    """
    shape: list[int] = []
    inside = column
    while pat.is_list(inside.type) or pat.is_large_list(inside.type):
        # Only the outermost list may be null: arrays have no missing items.
        if inside.null_count and (shape or inside.null_count == len(inside)):
            return None
        sizes = pc.unique(pc.drop_null(pc.list_value_length(inside)))
        if len(sizes) != 1 or sizes[0].as_py() == 0:
            return None
        shape.append(sizes[0].as_py())
        inside = inside.flatten()
    if inside.null_count or not types.is_number(inside.type):
        return None
    return tuple(shape) or None


def to_uniform_shape(column: pa.Array) -> pa.Array | None:
    """Convert lists of numbers of equal length to fixed-size lists; return None for other lists.

    >>> str(to_uniform_shape(pa.array([[1, 2], None])).type)
    'fixed_size_list<item: int64>[2]'
    """
    shape = find_uniform_shape(column)
    if shape is None:
        return None
    dtype = column.type
    for _ in shape:
        dtype = dtype.value_type
    return cast_array(column, types.shaped_type(dtype, shape))


@dataclass(frozen=True)
class UniformShapes:
    """An accumulator for the shape of each list column whose rows have equal shapes.

    The state maps the name of each non-empty column to its shape, or to None if shapes differ.
    """

    threads = 1

    def start(self) -> Shapes:
        """Return the initial state."""
        return {}

    def update(self, state: Shapes, batch: pa.RecordBatch) -> Shapes:
        """Return the state updated with a batch of lists."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count < len(column):
                self.merge(state, {name: find_uniform_shape(column)})
        return state

    def merge(self, first: Shapes, second: Shapes) -> Shapes:
        """Return the state of two states combined."""
        for name, shape in second.items():
            # None stays None: a column with two shapes never has one again.
            is_same = first.get(name, shape) == shape
            first[name] = shape if is_same else None
        return first

    def finish(self, state: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the columns that have one, by column name."""
        shapes = {}
        for name, shape in state.items():
            if shape is not None:
                shapes[name] = shape
        return shapes


def _index_arrays_by_row(cells: Sequence[Any]) -> dict[int, Any]:
    """Return the arrays by row number, without missing cells."""
    arrays = {}
    for row, cell in enumerate(cells):
        if isinstance(cell, np.ndarray):
            arrays[row] = cell
        elif not is_missing(cell):
            arrays[row] = np.asarray(cell)
    return arrays


def _is_plain(array: Any) -> bool:
    """Return True if an array holds numbers or booleans without a mask."""
    return array.dtype.kind in "biuf" and not isinstance(array, np.ma.MaskedArray)


def _find_common_shape(arrays: Mapping[int, Any]) -> tuple[int, ...] | None:
    """Return the common shape, or None if vectors have different lengths."""
    first = next(iter(arrays))
    shape: tuple[int, ...] = arrays[first].shape
    for row, array in arrays.items():
        if array.shape == shape:
            continue
        if max(array.ndim, len(shape)) < 2:
            return None
        raise Unstorable(
            f"differ in shape: row {first} has {shape}, row {row} has {array.shape}",
            subject="The arrays of column",
            line=UNEQUAL_SHAPES_HINT,
        )
    return shape


def _check_not_rounded(array: Any, rounded: Any, *, row: int) -> None:
    """Refuse integers that the common float type cannot represent."""
    if (rounded.astype(array.dtype) != array).any():
        raise Unstorable(
            f"mixes arrays of {array.dtype} and of floats, which would round row {row}"
        )


def _infer_row_shape(scalar: Any) -> tuple[int, ...]:
    """Return the shape of a nested list, from the lengths of the first item at each level."""
    shape = []
    while types.is_nested(scalar.type) and not pat.is_struct(scalar.type):
        shape.append(len(scalar))
        if len(scalar) == 0:
            break
        scalar = scalar[0]
    return tuple(shape)


def _cast_without_loss(array: Any, dtype: Any) -> Any:
    """Cast an array to a dtype that represents all its values exactly."""
    # An overflow becomes infinity, which differs from the original value below.
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
        back = converted.astype(array.dtype)
    differs = (back != array) & (array == array)  # not NaN, not NaT
    if np.ma.filled(differs, False).any():
        first = np.asarray(array)[np.asarray(differs)][0]
        target_name = "microseconds" if dtype.kind == "M" else str(dtype)
        raise Unstorable(
            f"holds values of {array.dtype} that {target_name} would round, for example {first}"
        )
    return converted


def _to_arrow_unit(array: Any) -> Any:
    """Convert times to a unit that Arrow supports."""
    unit, count = np.datetime_data(array.dtype)
    # NumPy also has multiples of a unit, such as ten seconds, which Arrow lacks.
    if unit in _ARROW_UNITS and count == 1:
        return array
    if unit == "generic":
        return array.astype("M8[us]")  # nothing but NaT
    if unit in _ARROW_UNITS:
        return _cast_without_loss(array, np.dtype(f"M8[{unit}]"))
    # Units finer than nanoseconds are converted to microseconds if no digit is lost.
    return _cast_without_loss(array, np.dtype(f"M8[{_OTHER_UNITS.get(unit, 'us')}]"))
