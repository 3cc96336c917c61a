"""Arrow columns into exactly the types of a schema, batch by batch.

What Arrow itself cannot cast (decimals to unsigned integers, lists to fixed-size lists, structs
field by field) is done here, so that every engine restores feature types by the same code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import SchemaMismatch, UnsupportedType
from featurestore.model.arrow_rows import values_at
from featurestore.model.fixed_bytes import cast_bytes
from featurestore.model.types import holds_items, is_exact, is_nested


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of ``schema``, by name and in its order, cast without loss.

    Raises:
        SchemaMismatch: A column is missing.
        UnsupportedType: A value does not fit its type; names the column.
    """
    if batch.schema == schema:
        return batch
    absent = [name for name in schema.names if batch.schema.get_field_index(name) < 0]
    if absent:
        raise SchemaMismatch(f"The rows lack the columns {absent}; they have {batch.schema.names}.")
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


def cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array with another type; values that do not fit raise ``pa.ArrowInvalid``.

    >>> cast_array(pa.array([[1, 2], None]), pa.list_(pa.int64(), 2)).type
    FixedSizeListType(fixed_size_list<item: int64>[2])
    """
    if _same(array.type, kind):
        return array
    if isinstance(array, pa.ExtensionArray):
        return cast_array(array.storage, kind)
    if pat.is_null(array.type) or pat.is_null(kind):
        return _nulls_of(array, kind)
    if pat.is_dictionary(array.type):
        return cast_array(array.dictionary_decode(), kind)
    if str(array.type).startswith("run_end_encoded"):
        return _decode_runs(array, kind)
    if is_nested(kind) and is_nested(array.type):
        return _cast_nested(array, kind)
    if pat.is_decimal(array.type) and is_exact(kind):
        return _of_decimals(array, kind)
    if pat.is_integer(array.type) and pat.is_decimal(kind):
        return _rescaled(_whole_decimals(array), kind)
    if pat.is_float16(array.type):
        wider = array.to_numpy(zero_copy_only=False).astype("f4")
        return pa.array(wider, mask=_mask(array)).cast(kind)
    return cast_bytes(array, kind)


def _cast_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.null_count == len(array):
        # Spark sends lists of nulls with no offsets at all, which must not be read.
        return pa.nulls(len(array), kind)
    # pyarrow's own cast of views gives lists without their last offset.
    if pat.is_fixed_size_list(kind) and holds_items(array.type):
        return _fixed_size(array, kind)
    if pat.is_list(kind) and pat.is_fixed_size_list(array.type):
        return _variable_size(array, kind)
    if pat.is_list(kind) and holds_items(array.type):
        return _list(array, kind)
    if pat.is_struct(kind) and pat.is_struct(array.type):
        return _struct(array, kind)
    return cast_bytes(array, kind)


def _nulls_of(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.null_count < len(array):
        raise pa.ArrowInvalid("a column of nulls has a value")
    return pa.nulls(len(array), kind)


def _decode_runs(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of runs; Arrow decodes neither dictionaries, views nor all nested types."""
    first, runs = array.find_physical_offset(), array.find_physical_length()
    ends = np.asarray(array.run_ends)[first : first + runs].astype("int64") - array.offset
    lengths = np.diff(np.minimum(ends, len(array)), prepend=0)
    values = cast_array(array.values.slice(first, runs), kind)
    return values_at(values, np.repeat(np.arange(runs), lengths))


def _same(left: pa.DataType, right: pa.DataType) -> bool:
    # Equality of Arrow's nested types overlooks the names of list items, which schemas then show.
    return bool(left == right) and (not is_nested(left) or str(left) == str(right))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _mask(array: pa.Array) -> Any:
    return np.asarray(array.is_null()) if array.null_count else None


def _bitmap(array: pa.Array) -> pa.Buffer | None:
    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little").tobytes())


def _fixed_size(array: pa.Array, kind: pa.DataType) -> pa.Array:
    size = kind.list_size
    sizes = pc.list_value_length(array)
    wrong = pc.not_equal(sizes, size)
    if pc.any(wrong).as_py():
        found = sizes.filter(wrong).unique().to_pylist()[:5]
        raise pa.ArrowInvalid(f"lists of {found} values where each must have {size}")
    if array.null_count == 0:
        return pa.FixedSizeListArray.from_arrays(
            cast_array(array.flatten(), kind.value_type), type=kind
        )
    values = cast_array(array.flatten(), kind.value_type)
    if len(values) == 0:
        return pa.nulls(len(array), kind)
    # A null list has no values, a null of fixed size has a place of its own: any value may stand
    # there.
    rows = np.maximum(np.cumsum(np.asarray(array.is_valid())) - 1, 0)
    places = (rows[:, None] * size + np.arange(size)).ravel()
    return pa.Array.from_buffers(
        kind, len(array), [_bitmap(array)], array.null_count, children=[values.take(places)]
    )


def _variable_size(array: pa.Array, kind: pa.DataType) -> pa.Array:
    size = array.type.list_size
    lengths = np.where(np.asarray(array.is_valid()), size, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
    values = cast_array(array.flatten(), kind.value_type)
    return _list_of(offsets, values, kind, array)


def _list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
    return _list_of(offsets, cast_array(array.flatten(), kind.value_type), kind, array)


def _list_of(offsets: Any, values: pa.Array, kind: pa.DataType, like: pa.Array) -> pa.Array:
    buffers = [_bitmap(like), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(like), buffers, like.null_count, children=[values])


def _struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    fields = list(map(kind.field, range(kind.num_fields)))
    given = {array.type.field(index).name: index for index in range(array.type.num_fields)}
    expected = [field.name for field in fields]
    if set(given) != set(expected):
        raise pa.ArrowInvalid(f"fields {sorted(given)} where {expected} are expected")
    children = array.flatten()  # unlike ``field``, nulls of the struct are nulls of its fields
    parts = [cast_array(children[given[field.name]], field.type) for field in fields]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_nulls(array))


def _of_decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pat.is_decimal(kind):
        return _rescaled(array, kind)
    whole = _rescaled(array, pa.decimal128(38, 0))
    if pat.is_unsigned_integer(kind):
        return _unsigned(whole, kind)
    return whole.cast(pa.int64()).cast(kind)


def _rescaled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals as another type of decimals; ArrowInvalid where a value has no equal."""
    places = kind.scale - array.type.scale
    if places > 0:
        # Arrow does not see numbers that leave 128 bits when they get more places.
        digits = kind.precision - places
        if digits > 0:
            array = array.cast(pa.decimal128(digits, array.type.scale))
        elif pc.any(pc.not_equal(array, pa.scalar(0, array.type))).as_py():
            raise pa.ArrowInvalid(f"a value does not fit {kind}")
    return array.cast(kind)


def _unsigned(array: pa.Array, kind: pa.DataType) -> pa.Array:
    words = np.frombuffer(array.buffers()[1], dtype="<u8").reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    valid = np.asarray(array.is_valid())
    if words[valid, 1:].any():
        raise pa.ArrowInvalid("a value lies outside the range of unsigned 64-bit integers")
    whole = pa.array(np.where(valid, words[:, 0], 0).astype("u8"), mask=_mask(array))
    return whole.cast(kind)


def _whole_decimals(array: pa.Array) -> pa.Array:
    """Return integers as decimals without places."""
    if not pat.is_uint64(array.type):
        return array.cast(pa.int64()).cast(pa.decimal128(19, 0))
    words = np.zeros((len(array), 2), dtype="<u8")
    words[:, 0] = np.asarray(pc.fill_null(array, 0))
    return pa.Array.from_buffers(
        pa.decimal128(20, 0),
        len(array),
        [_bitmap(array), pa.py_buffer(words)],
        array.null_count,
    )
