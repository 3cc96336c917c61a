"""Fast varints of booleans and 8-bit integers.

The ten bytes of such a varint are the lowest seven bits, eight bytes of sign bits, and a last byte
for the sign.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.template import Field

# The bytes between the first and the last one.
POSITIVE, NEGATIVE = 0x80, 0xFF
_CONTINUATION_BITS = 0x8080808080808080
# The last two bytes of a positive number, and the bits that differ for a negative one.
_LAST, _LAST_OF_NEGATIVE = 0x0080, 0x017F


def is_narrow(field: Field) -> bool:
    """Return True for a scalar column of booleans or signed 8-bit integers."""
    leaf = field.column.leaf
    return field.column.shape == () and bool(pat.is_boolean(leaf) or pat.is_int8(leaf))


def is_signed(field: Field) -> bool:
    """Return True if a narrow column has ten-byte varints, for negative numbers."""
    return is_narrow(field) and field.width == wire.MAX_VARINT


def fill(records: npt.NDArray[np.uint8], start: int, numbers: npt.NDArray[np.int8]) -> None:
    """Write numbers as ten-byte varints at a byte offset of the records."""
    words = numbers.astype(np.int64)
    words |= np.int64(_CONTINUATION_BITS - 2**64)
    records[:, start : start + 8].view("<i8")[:, 0] = words
    ends = (numbers >> 7).astype(np.int16)
    ends &= np.int16(_LAST_OF_NEGATIVE)
    ends ^= np.int16(_LAST)
    records[:, start + 8 : start + 10].view("<i2")[:, 0] = ends


def to_int8(values: pa.Array) -> npt.NDArray[np.int8]:
    """Return booleans or 8-bit integers as int8, nulls as 0."""
    if values.null_count:
        values = values.fill_null(False if pat.is_boolean(values.type) else 0)
    if not pat.is_boolean(values.type):
        numbers: npt.NDArray[np.int8] = values.to_numpy()
        return numbers
    if len(values) == 0:
        return np.zeros(0, np.int8)
    first, skipped = divmod(values.offset, 8)
    bits = np.frombuffer(values.buffers()[1], np.uint8, offset=first)
    unpacked = np.unpackbits(bits, count=skipped + len(values), bitorder="little")
    return unpacked[skipped:].view(np.int8)
