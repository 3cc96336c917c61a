"""Lossless casts of Arrow columns to the types of a schema.

Arrow cannot cast decimals to unsigned integers, lists to fixed-size lists, or structs field by
field. Every engine restores feature types with the casts of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.batches import take_values
from featurestore.arrow.types import is_encoded, is_exact, is_list_type, is_nested
from featurestore.errors import SchemaMismatch, UnsupportedType


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Select the columns of ``schema`` by name and cast them without loss.

    Raises:
        SchemaMismatch: A column is missing.
        UnsupportedType: A value does not fit its type; names the column.
    """
    if batch.schema == schema:
        return batch
    missing_columns = [name for name in schema.names if batch.schema.get_field_index(name) < 0]
    if missing_columns:
        raise SchemaMismatch(
            f"The rows have no columns {missing_columns}. Available: {batch.schema.names}."
        )
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        try:
            columns.append(cast_array(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedType(
                f"Column {field.name!r} of type {column.type} does not fit {field.type}: {error}."
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_array(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast an array; raise ``pa.ArrowInvalid`` for values that do not fit.

    >>> cast_array(pa.array([[1, 2], None]), pa.list_(pa.int64(), 2)).type
    FixedSizeListType(fixed_size_list<item: int64>[2])
    """
    # Arrow's equality of nested types ignores list item names.
    is_same_text = not is_nested(dtype) or str(array.type) == str(dtype)
    if array.type == dtype and is_same_text:
        return array
    if isinstance(array, pa.ExtensionArray):
        return cast_array(array.storage, dtype)
    if pat.is_null(array.type) or pat.is_null(dtype):
        if array.null_count < len(array):
            raise pa.ArrowInvalid("a column of nulls has a value")
        return pa.nulls(len(array), dtype)
    if is_encoded(array.type):
        return decode(array, partial(cast_array, dtype=dtype))
    if is_nested(dtype) and is_nested(array.type):
        return _cast_nested(array, dtype)
    if pat.is_decimal(array.type) and is_exact(dtype):
        return _cast_decimals(array, dtype)
    if pat.is_integer(array.type) and pat.is_decimal(dtype):
        return _rescale(_integers_to_decimals(array), dtype)
    # pyarrow 14 cannot cast half floats.
    if pat.is_float16(array.type):
        wider = array.to_numpy(zero_copy_only=False).astype("f4")
        return pa.array(wider, mask=_null_mask(array)).cast(dtype)
    return cast_bytes(array, dtype)


def decode(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return the rows of a dictionary or of runs, whose values ``convert`` converts.

    Each value is converted once. Values of the dictionary that no row has are not converted, so
    they need not fit.

    >>> names = pa.DictionaryArray.from_arrays(pa.array([1, None, 1]), pa.array(["a", "1"]))
    >>> decode(names, lambda values: values.cast(pa.int64())).to_pylist()
    [1, None, 1]
    """
    if not pat.is_dictionary(array.type):
        return _decode_runs(array, convert)
    used = pc.drop_null(pc.unique(array.indices))
    values, positions = array.dictionary, array.indices
    if len(used) < len(values):
        # Older pyarrow releases cannot take string and binary views, all of which fit.
        with suppress(pa.ArrowNotImplementedError):
            values, positions = take_values(values, used), pc.index_in(positions, used)
    return take_values(convert(values), positions)


def _decode_runs(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    # Arrow cannot decode runs of dictionaries, views and some nested types.
    first, runs = array.find_physical_offset(), array.find_physical_length()
    ends = np.asarray(array.run_ends)[first : first + runs].astype("int64") - array.offset
    lengths = np.diff(np.minimum(ends, len(array)), prepend=0)
    values = convert(array.values.slice(first, runs))
    return take_values(values, np.repeat(np.arange(runs), lengths))


def cast_bytes(array: Any, dtype: pa.DataType) -> Any:
    """Cast an array like ``array.cast``, with a workaround for fixed-size binary slices.

    pyarrow 14 reads beyond the end of the array and crashes the process when it casts a slice of
    fixed-size binary values without nulls, also nested in lists and structs. Such an array is
    copied first, which removes its offset.

    >>> letters = pa.array([b"ab", b"cd", b"ef"], pa.binary(2))
    >>> cast_bytes(letters.slice(1), pa.large_binary()).to_pylist()
    [b'cd', b'ef']
    """
    if _contains_fixed_binary(array.type):
        array = pa.concat_arrays([array, array.slice(0, 0)])
    return array.cast(dtype)


def _cast_nested(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast a list or struct, item by item."""
    if array.null_count == len(array):
        # Spark sends lists of nulls without an offsets buffer.
        return pa.nulls(len(array), dtype)
    # pyarrow casts list views to lists without their last offset.
    if pat.is_fixed_size_list(dtype) and is_list_type(array.type):
        return _cast_to_fixed_size(array, dtype)
    if pat.is_list(dtype) and is_list_type(array.type):
        return _cast_list(array, dtype)
    if pat.is_struct(dtype) and pat.is_struct(array.type):
        return _cast_struct(array, dtype)
    return cast_bytes(array, dtype)


def _cast_to_fixed_size(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast lists to fixed-size lists; raise ``ArrowInvalid`` for other lengths."""
    size = dtype.list_size
    sizes = pc.list_value_length(array)
    differs = pc.not_equal(sizes, size)
    if pc.any(differs).as_py():
        wrong_sizes = sizes.filter(differs).unique().to_pylist()[:5]
        raise pa.ArrowInvalid(f"lists have lengths {wrong_sizes}, expected {size}")
    if array.null_count == 0:
        return pa.FixedSizeListArray.from_arrays(
            cast_array(array.flatten(), dtype.value_type), type=dtype
        )
    values = cast_array(array.flatten(), dtype.value_type)
    if len(values) == 0:
        return pa.nulls(len(array), dtype)
    # A null list has no values, but a null fixed-size list has value slots, which may hold
    # anything.
    # A null row repeats the values of the last valid row before it.
    rows = np.maximum(np.cumsum(np.asarray(array.is_valid())) - 1, 0)
    indices = (rows[:, None] * size + np.arange(size)).ravel()
    return pa.Array.from_buffers(
        dtype,
        len(array),
        [_validity_bitmap(array)],
        array.null_count,
        children=[values.take(indices)],
    )


def _validity_bitmap(array: pa.Array) -> pa.Buffer | None:
    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little").tobytes())


def _cast_list(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast lists of any layout to variable-size lists."""
    if pat.is_fixed_size_list(array.type):
        lengths = np.where(np.asarray(array.is_valid()), array.type.list_size, 0)
    else:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
    values = cast_array(array.flatten(), dtype.value_type)
    buffers = [_validity_bitmap(array), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(dtype, len(array), buffers, array.null_count, children=[values])


def _cast_struct(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast the fields of structs, matched by name."""
    fields = list(map(dtype.field, range(dtype.num_fields)))
    source_indices = {array.type.field(index).name: index for index in range(array.type.num_fields)}
    target_names = [field.name for field in fields]
    # Fields are matched by name, since their order may differ; a missing field is null.
    required_names = {field.name for field in fields if not field.nullable}
    if not required_names <= set(source_indices) <= set(target_names):
        raise pa.ArrowInvalid(
            f"struct has fields {sorted(source_indices)}, expected {target_names}"
        )
    children = array.flatten()  # unlike ``field``, applies the struct's nulls to its fields
    cast_children = []
    for field in fields:
        if field.name in source_indices:
            child = cast_array(children[source_indices[field.name]], field.type)
        else:
            child = pa.nulls(len(array), field.type)
        cast_children.append(child)
    nulls = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(cast_children, fields=fields, mask=nulls)


def _cast_decimals(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pat.is_decimal(dtype):
        return _rescale(array, dtype)
    integers = _rescale(array, pa.decimal128(38, 0))
    if pat.is_unsigned_integer(dtype):
        return _decimals_to_unsigned(integers, dtype)
    return integers.cast(pa.int64()).cast(dtype)


def _rescale(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Change precision and scale; raise ``ArrowInvalid`` if a value does not fit."""
    added_digits = dtype.scale - array.type.scale
    if added_digits > 0:
        # Arrow does not detect 128-bit overflow when the scale increases.
        integer_digits = dtype.precision - added_digits
        if integer_digits > 0:
            array = array.cast(pa.decimal128(integer_digits, array.type.scale))
        elif pc.any(pc.not_equal(array, pa.scalar(0, array.type))).as_py():
            raise pa.ArrowInvalid(f"a value does not fit {dtype}")
    return array.cast(dtype)


def _decimals_to_unsigned(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Convert decimals of scale 0 to unsigned integers."""
    # A decimal is a little-endian 128-bit integer: of values from 0 to 2**64 - 1, the high word is
    # 0.
    words = np.frombuffer(array.buffers()[1], dtype="<u8").reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    valid = np.asarray(array.is_valid())
    if words[valid, 1:].any():
        raise pa.ArrowInvalid("a value is outside the range of unsigned 64-bit integers")
    integers = pa.array(np.where(valid, words[:, 0], 0).astype("u8"), mask=_null_mask(array))
    return integers.cast(dtype)


def _null_mask(array: pa.Array) -> Any:
    return np.asarray(array.is_null()) if array.null_count else None


def _integers_to_decimals(array: pa.Array) -> pa.Array:
    """Convert integers to decimals of scale 0."""
    if not pat.is_uint64(array.type):
        # Arrow requires 19 digits for the cast of int64, also of small values.
        return array.cast(pa.int64()).cast(pa.decimal128(19, 0))
    words = np.zeros((len(array), 2), dtype="<u8")
    words[:, 0] = np.asarray(pc.fill_null(array, 0))
    return pa.Array.from_buffers(
        pa.decimal128(20, 0),
        len(array),
        [_validity_bitmap(array), pa.py_buffer(words)],
        array.null_count,
    )


def _contains_fixed_binary(dtype: pa.DataType) -> bool:
    if pat.is_fixed_size_binary(dtype):
        return True
    return any(
        _contains_fixed_binary(dtype.field(number).type) for number in range(dtype.num_fields)
    )
