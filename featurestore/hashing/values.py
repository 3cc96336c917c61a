"""Canonical values of Arrow arrays, the input of row hashes and canonical bytes.

Types that represent the same values have the same kind: integers of every width, strings in every
encoding, lists in every layout. A value consists of a kind and 64-bit words, bytes, elements or
fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.casts import cast_bytes
from featurestore.arrow.types import numpy_type
from featurestore.errors import UnsupportedType
from featurestore.hashing.mixing import Int64s, Words

(
    NULL,
    BOOL,
    INTEGER,
    LARGE_INTEGER,
    FLOAT,
    TEXT,
    BYTES,
    DATE,
    TIME,
    FINE_TIME,
    DECIMAL,
    LIST,
    STRUCT,
    ROW,
) = range(14)

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class WordValues:
    """Values of one to three 64-bit words; ``kinds`` is a single kind, or one kind per row."""

    valid: Mask | None
    kinds: int | npt.NDArray[np.uint8]
    words: tuple[Words, ...]


@dataclass(frozen=True)
class ByteValues:
    """Byte strings: value i is ``data[starts[i] : starts[i] + lengths[i]]``.

    Null rows have length 0.
    """

    valid: Mask | None
    value_kind: int
    data: npt.NDArray[np.uint8]
    starts: Int64s
    lengths: Int64s


@dataclass(frozen=True)
class ListValues:
    """Lists with ``lengths[i]`` elements each, concatenated in ``elements``.

    Null rows have length 0.
    """

    valid: Mask | None
    lengths: Int64s
    elements: pa.Array


@dataclass(frozen=True)
class StructValues:
    """Structs, with one array per field, in field order."""

    valid: Mask | None
    fields: tuple[pa.Array, ...]


Values: TypeAlias = WordValues | ByteValues | ListValues | StructValues


def check_types(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise UnsupportedType with all columns whose types have no canonical form."""
    unsupported = [
        f"{name}: {schema.field(name).type}"
        for name in columns
        if not _is_supported(schema.field(name).type)
    ]
    if unsupported:
        raise UnsupportedType(
            f"These columns have types that cannot be hashed: {'; '.join(unsupported)}.",
            hint="select other columns with columns=, or convert them",
        )


def canonical_values(array: pa.Array) -> Values:
    """Return the canonical values of an Arrow array, after decoding dictionaries."""
    dtype = array.type
    if isinstance(dtype, pa.ExtensionType):
        return canonical_values(array.storage)
    if pat.is_dictionary(dtype):
        return canonical_values(array.dictionary_decode())
    if pat.is_null(dtype):
        return WordValues(
            np.zeros(len(array), dtype=np.bool_), NULL, (np.zeros(len(array), dtype=np.uint64),)
        )
    if _is_list(dtype):
        return _list_values(array)
    valid = valid_mask(array)
    if pat.is_struct(dtype):
        return StructValues(valid, tuple(array.field(index) for index in range(dtype.num_fields)))
    if _is_text(dtype) or _is_binary(dtype):
        return _byte_values(array, valid)
    if pat.is_decimal(dtype):
        return WordValues(valid, DECIMAL, _decimal_words(array, valid))
    kinds, words = _typed_words(array)
    return WordValues(valid, kinds, (words,))


def valid_mask(array: pa.Array) -> Mask | None:
    """Return a mask of non-null rows, or None if no row is null."""
    if array.null_count == 0:
        return None
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


# -- words --------------------------------------------------------------------


def _typed_words(array: pa.Array) -> tuple[int | npt.NDArray[np.uint8], Words]:
    """Return the kind and the word of each value of a one-word type."""
    dtype = array.type
    if pat.is_boolean(dtype):
        # Arrow stores booleans as bits.
        return BOOL, _values_buffer(array.cast(pa.uint8())).astype(np.uint64)
    if pat.is_floating(dtype):
        return FLOAT, _float_words(_values_buffer(array))
    if pat.is_timestamp(dtype):
        return _timestamp_words(array)
    # Milliseconds to days, so that both date types have equal words.
    if pat.is_date64(dtype):
        return DATE, (_values_buffer(array.view(pa.int64())) // 86_400_000).view(np.uint64)
    if pat.is_date32(dtype):
        return DATE, _values_buffer(array.view(pa.int32())).astype(np.int64).view(np.uint64)
    numbers = _values_buffer(array)
    if pat.is_uint64(dtype):
        # Larger values have a kind of their own: as words, they are equal to negative integers.
        large = numbers >= 2**63
        if not large.any():
            return INTEGER, numbers
        return np.where(large, LARGE_INTEGER, INTEGER).astype(np.uint8), numbers
    return INTEGER, numbers.astype(np.int64, copy=False).view(np.uint64)


def _values_buffer(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values buffer of a primitive array; values of null rows are arbitrary."""
    dtype = numpy_type(array.type)
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(
        buffer, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize
    )


def _float_words(numbers: npt.NDArray[Any]) -> Words:
    """Return the bits of the numbers as float64.

    The sign and payload of NaN are preserved; a cast would change them.
    """
    if numbers.dtype == np.float64:
        return numbers.view(np.uint64)
    with np.errstate(invalid="ignore"):
        words: Words = numbers.astype(np.float64).view(np.uint64)
    is_nan = np.isnan(numbers)
    if is_nan.any():
        if numbers.dtype == np.float32:
            bits, fraction = numbers[is_nan].view(np.uint32).astype(np.uint64), 23
        else:
            bits, fraction = numbers[is_nan].view(np.uint16).astype(np.uint64), 10
        sign = (bits >> np.uint64(8 * numbers.dtype.itemsize - 1)) << np.uint64(63)
        # The upper bits of the fraction, as in the conversion of other values.
        payload = (bits & np.uint64((1 << fraction) - 1)) << np.uint64(52 - fraction)
        words[is_nan] = sign | np.uint64(0x7FF << 52) | payload
    return words


def _timestamp_words(array: pa.Array) -> tuple[int | npt.NDArray[np.uint8], Words]:
    """Return microseconds, or nanoseconds for values with a finer fraction."""
    unit = array.type.unit
    if unit == "ns":
        nanos = _values_buffer(array.view(pa.int64()))
        micros, remainders = np.divmod(nanos, 1000)
        # Whole microseconds have the same words in every unit.
        if not remainders.any():
            return TIME, micros.view(np.uint64)
        kinds = np.where(remainders != 0, FINE_TIME, TIME).astype(np.uint8)
        return kinds, np.where(remainders != 0, nanos, micros).view(np.uint64)
    if unit != "us":
        array = array.cast(pa.timestamp("us", tz=array.type.tz))
    return TIME, _values_buffer(array.view(pa.int64())).view(np.uint64)


def _decimal_words(array: pa.Array, valid: Mask | None) -> tuple[Words, ...]:
    """Return the magnitude (low, high word) without trailing zeros, and the scale with sign bit 8."""
    scale = array.type.scale
    if not pat.is_decimal128(array.type):
        array = array.cast(pa.decimal128(array.type.precision, scale))
    pairs = np.zeros((len(array), 2), dtype=np.uint64)
    if len(array):
        buffer = np.frombuffer(
            array.buffers()[1], dtype=np.uint64, count=2 * len(array), offset=16 * array.offset
        )
        pairs[:] = buffer.reshape(-1, 2)
    if valid is not None:
        # Values of null rows are arbitrary; as zeros they need no division.
        pairs[~valid] = 0
    negative = pairs[:, 1] >> np.uint64(63) == 1
    # The magnitude in two's complement: the carry reaches the high word only if the low word is 0.
    low = np.where(negative, ~pairs[:, 0] + np.uint64(1), pairs[:, 0])
    high = np.where(negative, ~pairs[:, 1] + (pairs[:, 0] == 0), pairs[:, 1])
    scales = np.full(len(array), scale, dtype=np.uint64)
    # 0.00 equals 0, and needs no division.
    scales[(low | high) == 0] = 0
    active = np.flatnonzero(scales > 0)
    # At most one step per decimal place, for the rows that still end in a zero.
    while len(active):
        shorter_low, shorter_high, remainders = _divide_by_ten(low[active], high[active])
        is_divisible = remainders == 0
        active = active[is_divisible]
        low[active], high[active] = shorter_low[is_divisible], shorter_high[is_divisible]
        scales[active] -= np.uint64(1)
        active = active[scales[active] > 0]
    return low, high, scales | (negative.astype(np.uint64) << np.uint64(8))


def _divide_by_ten(low: Words, high: Words) -> tuple[Words, Words, Words]:
    """Return 128-bit quotients by ten (low, high) and remainders, by long division."""
    # 32-bit limbs, so that a remainder and a limb fit 64 bits.
    limbs = [
        high >> np.uint64(32),
        high & np.uint64(0xFFFFFFFF),
        low >> np.uint64(32),
        low & np.uint64(0xFFFFFFFF),
    ]
    remainders = np.zeros_like(low)
    quotients = []
    for limb in limbs:
        quotient, remainders = np.divmod((remainders << np.uint64(32)) | limb, np.uint64(10))
        quotients.append(quotient)
    shift = np.uint64(32)
    return (
        (quotients[2] << shift) | quotients[3],
        (quotients[0] << shift) | quotients[1],
        remainders,
    )


# -- bytes and lists ----------------------------------------------------------


def _byte_values(array: pa.Array, valid: Mask | None) -> ByteValues:
    """Return strings or binary values as offsets into their buffer."""
    value_kind, large_type = BYTES, pa.large_binary()
    if _is_text(array.type):
        value_kind, large_type = TEXT, pa.large_string()
    if not (pat.is_string(array.type) or pat.is_binary(array.type)):
        array = cast_bytes(array, large_type)
    is_large = pat.is_large_string(array.type) or pat.is_large_binary(array.type)
    offsets = _offsets(array, np.dtype(np.int64 if is_large else np.int32))
    starts, lengths = offsets[:-1], np.diff(offsets)
    if valid is not None:
        # Arrow allows null rows with a length.
        lengths = np.where(valid, lengths, 0)
    buffer = array.buffers()[2]
    data = np.empty(0, dtype=np.uint8)
    if buffer is not None:
        data = np.frombuffer(buffer, dtype=np.uint8)
    return ByteValues(valid, value_kind, data, starts, lengths)


def _list_values(array: pa.Array) -> ListValues:
    """Return the lengths and the concatenated elements of lists."""
    dtype = array.type
    valid = valid_mask(array)
    if _is_list_view(dtype):
        return _list_view_values(array, valid)
    if pat.is_fixed_size_list(dtype):
        size, count = dtype.list_size, len(array)
        elements = array.values.slice(array.offset * size, count * size)
        lengths = np.full(count, size, dtype=np.int64)
        if valid is not None:
            lengths[~valid] = 0
            elements = elements.filter(pa.array(np.repeat(valid, size)))
        return ListValues(valid, lengths, elements)
    lengths = np.diff(_offsets(array, np.dtype(np.int64 if pat.is_large_list(dtype) else np.int32)))
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    # flatten() respects slices and skips the elements of null rows.
    return ListValues(valid, lengths, array.flatten())


def _list_view_values(array: pa.Array, valid: Mask | None) -> ListValues:
    """Read the lists of a list view from its buffers.

    A cast is not possible: pyarrow 26 casts views with nulls to invalid lists.
    """
    dtype = np.dtype(np.int64 if str(array.type).startswith("large") else np.int32)
    if len(array) == 0:
        return ListValues(valid, np.zeros(0, dtype=np.int64), array.values.slice(0, 0))
    offset = array.offset * dtype.itemsize
    _, first, second = array.buffers()[:3]
    starts = np.frombuffer(first, dtype, len(array), offset).astype(np.int64)
    lengths = np.frombuffer(second, dtype, len(array), offset).astype(np.int64)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    return ListValues(valid, lengths, array.values.take(pa.array(ranges(starts, lengths))))


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the concatenated ranges ``starts[i], ..., starts[i] + lengths[i] - 1``."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(
        starts - (ends - lengths), lengths
    )


def _offsets(array: pa.Array, dtype: np.dtype[Any]) -> Int64s:
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype=np.int64)
    offsets = np.frombuffer(
        buffer, dtype=dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize
    )
    return offsets.astype(np.int64)


# -- types --------------------------------------------------------------------


def _is_supported(dtype: pa.DataType) -> bool:
    if isinstance(dtype, pa.ExtensionType):
        return _is_supported(dtype.storage_type)
    if pat.is_dictionary(dtype) or _is_list(dtype):
        return _is_supported(dtype.value_type)
    if pat.is_struct(dtype):
        return all(_is_supported(dtype.field(index).type) for index in range(dtype.num_fields))
    if pat.is_decimal(dtype):
        return not pat.is_decimal256(dtype) and dtype.scale >= 0
    simple = (
        pat.is_null,
        pat.is_boolean,
        pat.is_integer,
        pat.is_floating,
        pat.is_date,
        pat.is_timestamp,
    )
    return any(check(dtype) for check in (*simple, _is_text, _is_binary))


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pat.is_string(dtype) or pat.is_large_string(dtype) or str(dtype) == "string_view")


def _is_binary(dtype: pa.DataType) -> bool:
    plain = pat.is_binary(dtype) or pat.is_large_binary(dtype) or pat.is_fixed_size_binary(dtype)
    return bool(plain or str(dtype) == "binary_view")


def _is_list(dtype: pa.DataType) -> bool:
    plain = pat.is_list(dtype) or pat.is_large_list(dtype) or pat.is_fixed_size_list(dtype)
    return bool(plain or _is_list_view(dtype))


def _is_list_view(dtype: pa.DataType) -> bool:
    return str(dtype).startswith(("list_view", "large_list_view"))
