"""Mapping of feature types to TFRecord: list type, number of values, and loss of precision.

``WireColumn`` describes a column. The functions convert Arrow columns to numpy arrays with zeros
for nulls, so that equal rows are encoded to equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.casts import cast_bytes
from featurestore.arrow.text_values import format_decimals
from featurestore.arrow.types import array_item_type, array_shape, numpy_type
from featurestore.errors import UnsupportedType
from featurestore.plugins.format import ColumnEncoding

INT64, FLOAT, BYTES = "int64", "float32", "bytes"
LARGEST = 2**63 - 1
SKIPPED_FIELD = "skipped field: the column is missing from the record"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class WireColumn:
    """The wire format of a column.

    ``shape`` is () for scalars and None for ragged lists. ``leaf`` is the type of a single value.
    ``loss`` describes the loss of precision, if any.
    """

    name: str
    dtype: pa.DataType
    wire: str
    leaf: pa.DataType
    shape: tuple[int, ...] | None
    loss: str | None = None

    @property
    def items(self) -> int:
        """Number of values per row; 0 for ragged lists."""
        return 0 if self.shape is None else prod(self.shape)

    @property
    def key(self) -> bytes:
        """The encoded column name."""
        return self.name.encode()

    def encoding(self, *, nullable: bool) -> ColumnEncoding:
        """Return the column encoding for the manifest."""
        return ColumnEncoding(
            self.wire, self.shape, SKIPPED_FIELD if nullable else "none", self.loss
        )


def wire_columns(schema: pa.Schema) -> tuple[WireColumn, ...]:
    """Return the wire format of all columns in a schema.

    Raises:
        UnsupportedType: Columns are not supported. The message includes the columns and remedies.
    """
    columns, unsupported = [], []
    for field in schema:
        shape: tuple[int, ...] | None = None
        leaf = array_item_type(field.type)
        if pat.is_list(field.type):
            leaf = field.type.value_type
        else:
            shape = array_shape(field.type)
        wire, loss = _wire_type(leaf)
        if wire is None:
            unsupported.append(f"{field.name}: {field.type} ({_remedy(field.type)})")
        else:
            columns.append(WireColumn(field.name, field.type, wire, leaf, shape, loss))
    if unsupported:
        raise UnsupportedType(
            f"TFRecord does not support these columns: {'; '.join(unsupported)}.",
            hint="change or omit these columns, or use data_format='parquet'",
        )
    return tuple(columns)


def _wire_type(leaf: pa.DataType) -> tuple[str | None, str | None]:
    """Return the list type of a value type, or None, and its loss of precision."""
    if (
        pat.is_boolean(leaf)
        or pat.is_integer(leaf)
        or pat.is_date32(leaf)
        or pat.is_timestamp(leaf)
    ):
        return INT64, None
    if pat.is_float32(leaf):
        return FLOAT, None
    if pat.is_float64(leaf):
        return FLOAT, "float64 to float32"
    if pat.is_string(leaf) or pat.is_binary(leaf) or pat.is_decimal128(leaf):
        return BYTES, None
    return None, None


def _remedy(dtype: pa.DataType) -> str:
    if pat.is_struct(dtype):
        return "use a column for each field"
    if pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
        return "flatten it to one list of numbers or strings per row"
    return "convert it to a number or a string"


def presence_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return the mask of non-null rows, or None if there are no nulls."""
    if array.null_count == 0:
        return None
    result: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return result


def flat_values(array: pa.Array, column: WireColumn) -> pa.Array:
    """Return the values of scalars and fixed-size lists, ``items`` per row, including null rows.

    Raises:
        UnsupportedType: A list contains nulls, which ``tf.train.Feature`` does not support.
    """
    rows, inner = presence_mask(array), array
    for size in column.shape or ():
        inner = inner.values.slice(inner.offset * size, len(inner) * size)
        if inner.null_count:
            is_null = inner.is_null().to_numpy(zero_copy_only=False).reshape(len(array), -1)
            # Items of null lists may be null.
            if rows is None or is_null[rows].any():
                raise inner_nulls(column)
    return inner


def ragged_values(array: pa.Array, column: WireColumn) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the number of values per row (0 for null lists), and the flat values."""
    rows = presence_mask(array)
    if column.shape is not None:
        values = flat_values(array, column)
        if rows is None:
            return np.full(len(array), column.items), values
        is_present_item = pa.array(np.repeat(rows, column.items))
        return np.where(rows, column.items, 0), values.filter(is_present_item)
    values = array.flatten()
    if values.null_count:
        raise inner_nulls(column)
    return pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64), values


def inner_nulls(column: WireColumn) -> UnsupportedType:
    """Return the error for nulls in lists."""
    return UnsupportedType(
        f"Column {column.name!r} has nulls inside its lists, which TFRecord does not support.",
        hint="fill them, or replace the complete list by null",
    )


def to_words(values: pa.Array) -> npt.NDArray[np.uint64]:
    """Return booleans, integers, dates and times as new 64-bit words; nulls are 0.

    Negative numbers are in two's complement.
    """
    dtype = values.type
    if pat.is_boolean(dtype):
        values = values.cast(pa.uint8())
    elif pat.is_date32(dtype):
        values = values.view(pa.int32())
    elif pat.is_timestamp(dtype):
        values = values.view(pa.int64())
    if values.null_count:
        values = values.fill_null(0)
    numbers = values.to_numpy()
    if numbers.dtype == np.uint64:
        # The caller overwrites the words while it encodes them.
        return numbers.copy()
    return numbers.astype(np.int64).view(np.uint64)


def to_int8(values: pa.Array) -> npt.NDArray[np.int8]:
    """Return booleans or 8-bit integers as int8; nulls are 0."""
    if values.null_count:
        values = values.fill_null(False if pat.is_boolean(values.type) else 0)
    if not pat.is_boolean(values.type):
        numbers: npt.NDArray[np.int8] = values.to_numpy()
        return numbers
    if len(values) == 0:
        return np.zeros(0, np.int8)
    # Arrow stores booleans as bits, and a slice may begin within a byte.
    first, skipped = divmod(values.offset, 8)
    bits = np.frombuffer(values.buffers()[1], np.uint8, offset=first)
    unpacked = np.unpackbits(bits, count=skipped + len(values), bitorder="little")
    return unpacked[skipped:].view(np.int8)


def to_float32(values: pa.Array) -> npt.NDArray[np.float32]:
    """Return floats as float32; nulls are 0."""
    if values.null_count:
        values = values.fill_null(0.0)
    numbers = values.to_numpy()
    if numbers.dtype == np.float32:
        return numbers
    # Signaling NaNs become quiet NaNs, without a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(np.float32)


def to_bytes(values: pa.Array) -> pa.Array:
    """Return strings, binaries and decimals (as strings) in binary form; nulls are empty."""
    if pat.is_decimal(values.type):
        values = format_decimals(values)
    if not pat.is_binary(values.type):
        values = cast_bytes(values, pa.binary())
    if values.null_count:
        return values.fill_null(b"")
    return values


def binary_parts(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the offsets (n + 1, from 0) and the bytes of a binary array without nulls."""
    if len(values) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[
        values.offset : values.offset + len(values) + 1
    ]
    data = values.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    # Arrow may omit the data buffer if all values are empty.
    flat = np.zeros(0, np.uint8)
    if data is not None:
        flat = np.frombuffer(data, np.uint8)[first:last]
    return offsets.astype(np.int64) - first, flat


def from_integers(words: Array, leaf: pa.DataType) -> Array:
    """Return decoded words in the numpy type of the feature; dates and times stay int64."""
    if pat.is_boolean(leaf):
        return words != 0
    if words.dtype == np.uint64:
        words = words.view(np.int64)
    if pat.is_integer(leaf):
        return words.astype(numpy_type(leaf), copy=False)
    return words.astype(np.int64, copy=False)


def to_arrow(values: Array, leaf: pa.DataType) -> pa.Array:
    """Return flat decoded values, except bytes, as an Arrow array of the leaf type."""
    if pat.is_date32(leaf):
        return pa.array(values.astype(np.int32)).view(leaf)
    if pat.is_timestamp(leaf):
        return pa.array(np.ascontiguousarray(values)).view(leaf)
    return pa.array(np.ascontiguousarray(values), type=leaf)


def bytes_to_arrow(values: pa.Array, leaf: pa.DataType) -> pa.Array:
    """Return a binary array cast to the leaf type."""
    if pat.is_binary(leaf):
        return values
    text = values.cast(pa.string())
    if pat.is_string(leaf):
        return text
    # Null values are empty strings here. The null mask is applied later.
    return pc.if_else(pc.equal(text, ""), "0", text).cast(leaf)


def assemble(values: pa.Array, column: WireColumn, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return flat values as an array of the feature type, with nulls."""
    rows = len(values) // column.items
    count, bitmap = 0, None
    if valid is not None:
        count = int(rows - valid.sum())
    if valid is not None and count:
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    if not column.shape:
        if not count:
            return values
        buffers = [bitmap, *values.buffers()[1:]]
        return pa.Array.from_buffers(values.type, len(values), buffers, count, offset=values.offset)
    kinds, item_type = [], column.dtype
    for _ in column.shape:
        kinds.append(item_type)
        item_type = item_type.value_type
    for level in range(len(kinds) - 1, 0, -1):
        length = rows * prod(column.shape[:level])
        values = pa.Array.from_buffers(kinds[level], length, [None], 0, children=[values])
    return pa.Array.from_buffers(kinds[0], rows, [bitmap], count, children=[values])
