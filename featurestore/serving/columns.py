"""Keys and columns of published values: conversion between Arrow arrays, bytes and Python values.

An online key is a prefix for the group of a published view, followed by the canonical bytes of the
primary key.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.bounds import contains_times, find_out_of_range
from featurestore.arrow.casts import cast_bytes
from featurestore.arrow.stream_messages import is_compressed
from featurestore.arrow.types import is_list_type, is_nested, numpy_type
from featurestore.arrow.values import to_array
from featurestore.hashing import canonical_bytes, value_kind
from featurestore.hashing.values import BOOL, BYTES, DATE, INTEGER, TEXT, TIME
from featurestore.model.times import to_micros

_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float": "f",
    "double": "d",
}
_EPOCH_DAY = date(1970, 1, 1).toordinal()
# Decimals have at most 38 digits.
_DECIMALS = Context(prec=76)
_NUMBERS, _MESSAGE = b"\0", b"\1"

Convert = Callable[[Any], Any]
PartEncoder = Callable[[Any], bytes]
PREFIX_BYTES = 8


@dataclass(frozen=True)
class FixedColumn:
    """A column of fixed width.

    ``code`` is its struct code, ``dtype`` its numpy type, and ``convert`` the function that
    converts its unpacked values, if they need one.
    """

    position: int
    data_type: pa.DataType
    code: str
    dtype: str
    convert: Convert | None = None

    @property
    def field_name(self) -> str:
        """The name of the numpy field."""
        return f"c{self.position}"

    def to_numpy(self, array: pa.Array) -> npt.NDArray[Any]:
        """Return the values in the numpy type, with zeros for nulls."""
        if pat.is_decimal(self.data_type):
            values = decimal_bytes(array)
            if array.null_count:
                values[array.is_null().to_numpy(zero_copy_only=False)] = b""
            return values
        if pat.is_timestamp(self.data_type):
            array = array.view(pa.int64())
        elif pat.is_date(self.data_type):
            array = array.view(pa.int32())
        if array.null_count:
            array = pc.fill_null(array, pa.scalar(0).cast(array.type))
        numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return numbers


@dataclass(frozen=True)
class Payloads:
    """Byte strings: row i is ``data[offsets[i] : offsets[i + 1]]``, after the same prefix."""

    data: bytes
    offsets: npt.NDArray[np.int64]
    prefix: bytes = b""

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The length of each row, with the prefix."""
        return np.diff(self.offsets) + len(self.prefix)

    def to_list(self) -> list[bytes]:
        """Return each row after its length."""
        headers = self.lengths.astype("<u4").tobytes()
        return [
            headers[4 * row : 4 * row + 4] + self.prefix + self.data[start:end]
            for row, (start, end) in enumerate(pairwise(self.offsets.tolist()))
        ]


@dataclass(frozen=True)
class VariableColumn:
    """A column of strings, bytes, or nested values."""

    position: int
    data_type: pa.DataType

    def encode(self, array: pa.Array) -> Payloads:
        """Return the bytes of each row; nulls are empty."""
        if not is_nested(self.data_type):
            return text_payloads(array)
        if (
            self._item_code is not None
            and array.null_count == 0
            and array.flatten().null_count == 0
        ):
            return self._number_payloads(array)
        return self._message_payloads(array)

    def to_python(self, payload: bytes) -> Any:
        """Convert the bytes of a row, which are empty for a null.

        Raises:
            ValueError, struct.error, OSError, pa.ArrowException: They are not those of a value.
        """
        if self._is_string:
            return payload.decode()
        if pat.is_binary(self.data_type):
            return payload
        if not payload:
            return None
        if payload[:1] == _NUMBERS and self._item_code is not None:
            count = (len(payload) - 1) // struct.calcsize(f"<{self._item_code}")
            if self._list_size not in (None, count):
                raise ValueError(f"a list has {count} items, not {self._list_size}")
            return list(struct.unpack(f"<x{count}{self._item_code}", payload))
        if payload[:1] != _MESSAGE:
            raise ValueError("a value has an unknown encoding")
        return self._read_message(payload[1:])

    def _read_message(self, message: bytes) -> Any:
        """Convert an Arrow message with one row."""
        encoded = pa.ipc.read_message(pa.py_buffer(message))
        # A small compressed body may need the memory of the machine.
        if is_compressed(encoded):
            raise ValueError("a message is compressed")
        batch = pa.ipc.read_record_batch(encoded, self._message_schema)
        # Offsets beyond the end of a buffer would read other memory of the process.
        batch.validate(full=True)
        if batch.num_rows != 1:
            raise ValueError(f"a message has {batch.num_rows} rows, not 1")
        check_times(batch.column(0))
        return batch.column(0)[0].as_py()

    @cached_property
    def _is_string(self) -> bool:
        return bool(pat.is_string(self.data_type))

    @cached_property
    def _item_code(self) -> str | None:
        """The struct code of the items of a list of numbers."""
        if not is_list_type(self.data_type) or pat.is_boolean(self.data_type.value_type):
            return None
        return _CODES.get(str(self.data_type.value_type))

    @cached_property
    def _list_size(self) -> int | None:
        size: int | None = (
            self.data_type.list_size if pat.is_fixed_size_list(self.data_type) else None
        )
        return size

    @property
    def _message_schema(self) -> pa.Schema:
        return pa.schema([pa.field("", self.data_type)])

    def _number_payloads(self, array: pa.Array) -> Payloads:
        """Encode lists of numbers without nulls by the bytes of the numbers."""
        items = array.flatten().to_numpy(zero_copy_only=False)
        dtype = numpy_type(self.data_type.value_type)
        if pat.is_fixed_size_list(self.data_type):
            lengths = np.full(len(array), self.data_type.list_size, dtype=np.int64)
        else:
            lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        return Payloads(
            items.astype(dtype, copy=False).tobytes(), _offsets(lengths * dtype.itemsize), _NUMBERS
        )

    def _message_payloads(self, array: pa.Array) -> Payloads:
        """Encode each value as an Arrow message with one row; nulls are empty."""
        messages = []
        for row, is_valid in enumerate(array.is_valid().to_pylist()):
            if not is_valid:
                messages.append(b"")
                continue
            # A copy: the IPC writer of pyarrow 14 writes all fields of a sliced struct.
            value = array.take(pa.array([row]))
            batch = pa.RecordBatch.from_arrays([value], schema=self._message_schema)
            messages.append(_MESSAGE + batch.serialize().to_pybytes())
        lengths = np.array([len(message) for message in messages], dtype=np.int64)
        return Payloads(b"".join(messages), _offsets(lengths))


def plan_columns(schema: pa.Schema) -> tuple[tuple[FixedColumn, ...], tuple[VariableColumn, ...]]:
    """Return the columns of fixed width and the other columns of a schema of feature types."""
    fixed: list[FixedColumn] = []
    variable: list[VariableColumn] = []
    for position, data_type in enumerate(schema.types):
        if str(data_type) in _CODES:
            dtype = numpy_type(data_type).newbyteorder("<").str
            fixed.append(FixedColumn(position, data_type, _CODES[str(data_type)], dtype))
        elif pat.is_date(data_type):
            fixed.append(FixedColumn(position, data_type, "i", "<i4", _to_date))
        elif pat.is_timestamp(data_type):
            fixed.append(FixedColumn(position, data_type, "q", "<i8", _time_converter(data_type)))
        elif pat.is_decimal(data_type):
            fixed.append(
                FixedColumn(
                    position,
                    data_type,
                    "16s",
                    "S16",
                    _DecimalConverter(data_type.precision, data_type.scale),
                )
            )
        else:
            variable.append(VariableColumn(position, data_type))
    return tuple(fixed), tuple(variable)


def _to_date(days: int) -> date:
    return date.fromordinal(days + _EPOCH_DAY)


def _time_converter(dtype: pa.DataType) -> Convert:
    # The time zone object that pyarrow uses for the type.
    epoch: datetime = pa.scalar(0, pa.int64()).cast(dtype).as_py()
    return lambda micros: epoch + timedelta(microseconds=micros)


@dataclass(frozen=True)
class _DecimalConverter:
    """A function that converts the bytes of a decimal."""

    precision: int
    scale: int

    def __call__(self, data: bytes) -> Decimal:
        number = int.from_bytes(data, "little", signed=True)
        if abs(number) >= 10**self.precision:
            raise ValueError(f"a decimal has more than {self.precision} digits")
        return Decimal(number).scaleb(-self.scale, _DECIMALS)


def check_times(array: pa.Array) -> None:
    """Raise ValueError if an array has a time outside of the years 1 to 9999."""
    row = find_out_of_range(array) if contains_times(array.type) else None
    if row is not None:
        raise ValueError(f"row {row} has a time outside of the years 1 to 9999")


def decimal_bytes(array: pa.Array) -> npt.NDArray[Any]:
    """Return the 16 bytes of each decimal."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype="S16")
    return np.frombuffer(buffer, "S16", count=len(array), offset=16 * array.offset).copy()


def text_payloads(array: pa.Array) -> Payloads:
    """Return the bytes of strings or bytes."""
    large = cast_bytes(array, pa.large_binary())
    if large.null_count:
        large = pc.fill_null(large, pa.scalar(b"", pa.large_binary()))
    _, offsets_buffer, data = large.buffers()
    if offsets_buffer is None or len(large) == 0:
        return Payloads(b"", np.zeros(len(large) + 1, dtype=np.int64))
    offsets = np.frombuffer(offsets_buffer, np.int64, len(large) + 1, 8 * large.offset)
    return Payloads(b"" if data is None else data.to_pybytes(), offsets)


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


# -- keys ---------------------------------------------------------------------


def value_prefix(
    view: str, version: int, *, group: str, group_version: int, generation: int
) -> bytes:
    """Return the first bytes of all keys of a group in one generation of a published view.

    >>> value_prefix("late", 1, group="planes", group_version=1, generation=2).hex()
    '610238f8a5e528fd'
    """
    parts = (view, version, group, group_version, generation)
    # Names contain no zero bytes.
    text = "\0".join(map(str, parts))
    return hashlib.blake2b(text.encode(), digest_size=PREFIX_BYTES).digest()


def encode_keys(columns: Sequence[pa.Array]) -> list[bytes | None]:
    """Return the canonical bytes of each row of key columns, or None for rows with a null.

    >>> [key and key.hex() for key in encode_keys([pa.array(["a", None])])]
    ['05000000000000000161', None]
    """
    names = [str(number) for number in range(len(columns))]
    if not len(columns[0]):
        return []
    encoded = canonical_bytes(pa.RecordBatch.from_arrays(list(columns), names=names))
    offsets = np.frombuffer(encoded.buffers()[1], np.int64, len(encoded) + 1, 8 * encoded.offset)
    data = encoded.buffers()[2].to_pybytes()
    # Slices of one string are created faster than the values of an array.
    keys: list[bytes | None] = [data[start:end] for start, end in pairwise(offsets.tolist())]
    for column in columns:
        if column.null_count:
            for row in pc.indices_nonzero(column.is_null()).to_pylist():
                keys[row] = None
    return keys


def compile_key(kinds: Sequence[pa.DataType]) -> Callable[[Sequence[Any]], bytes | None]:
    """Return a function that encodes the key of one entity like ``encode_keys``.

    The function returns None if a value is null. It raises TypeError or ValueError if a value does
    not have the type of its column.

    >>> compile_key([pa.string()])(["a"]).hex()
    '05000000000000000161'
    """
    encoders = [_part_encoder(dtype) for dtype in kinds]
    if len(encoders) == 1:
        (encoder,) = encoders

        def encode_single(values: Sequence[Any]) -> bytes | None:
            value = values[0]
            return None if value is None else encoder(value)

        return encode_single

    def encode(values: Sequence[Any]) -> bytes | None:
        if None in values:
            return None
        return b"".join([encode(value) for encode, value in zip(encoders, values, strict=True)])

    return encode


def _part_encoder(dtype: pa.DataType) -> PartEncoder:
    """Return the encoder of a key column; the common types need no Arrow array."""
    number = value_kind(dtype)
    encoders: dict[int | None, PartEncoder] = {
        BOOL: encode_boolean,
        INTEGER: encode_integer,
        TEXT: encode_text,
        BYTES: encode_bytes,
        DATE: encode_date,
        TIME: encode_time,
    }
    if number in encoders:
        return encoders[number]

    def encode(value: Any) -> bytes:
        (key,) = encode_keys([to_array([value], dtype)])
        if key is None:
            raise ValueError(f"{value!r} is null")
        return key

    return encode


def _word(type_code: int, value: int) -> bytes:
    return bytes((type_code,)) + value.to_bytes(8, "big", signed=True)


def encode_boolean(value: Any) -> bytes:
    """Return the canonical bytes of a boolean."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a boolean")
    return _word(BOOL, int(value))


def encode_integer(value: Any) -> bytes:
    """Return the canonical bytes of an integer."""
    # A boolean is an int in Python, but not a key of an integer column.
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    number = value.__index__()
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{value!r} exceeds 64 bits")
    return _word(INTEGER, number)


def encode_text(value: Any) -> bytes:
    """Return the canonical bytes of a string."""
    data = value.encode()
    return _with_length(TEXT, data)


def encode_bytes(value: Any) -> bytes:
    """Return the canonical bytes of bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{value!r} is not bytes")
    return _with_length(BYTES, bytes(value))


def _with_length(type_code: int, data: bytes) -> bytes:
    return bytes((type_code,)) + len(data).to_bytes(8, "big") + data


def encode_date(value: Any) -> bytes:
    """Return the canonical bytes of a date."""
    if type(value) is not date:
        raise TypeError(f"{value!r} is not a date")
    return _word(DATE, value.toordinal() - _EPOCH_DAY)


def encode_time(value: Any) -> bytes:
    """Return the canonical bytes of a timestamp."""
    # Subclasses, such as that of pandas, may have nanoseconds.
    if type(value) is not datetime or value.tzinfo is None:
        raise TypeError(f"{value!r} is not a datetime with a time zone")
    return _word(TIME, to_micros(value))
