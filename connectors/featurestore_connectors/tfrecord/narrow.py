"""Booleans and integers of 8 bits, whose varints are written without spreading their bits.

A varint of ten bytes of such a number is its lowest seven bits, eight bytes that tell the sign and
a last one that does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.template import Field

# The bytes between the first and the last.
POSITIVE, NEGATIVE = 0x80, 0xFF
_CONTINUED = 0x8080808080808080
# The last two bytes, of a positive number and what a negative one has otherwise.
_LAST, _LAST_OF_NEGATIVE = 0x0080, 0x017F


def is_narrow(field: Field) -> bool:
    """Tell whether a column holds single booleans or integers of 8 bits with a sign."""
    leaf = field.column.leaf
    return field.column.shape == () and bool(pat.is_boolean(leaf) or pat.is_int8(leaf))


def is_signed(field: Field) -> bool:
    """Tell whether a narrow column has varints of ten bytes, for negative numbers."""
    return is_narrow(field) and field.width == wire.MAX_VARINT


def fill(records: npt.NDArray[np.uint8], start: int, numbers: npt.NDArray[np.int8]) -> None:
    """Write numbers as varints of ten bytes from a byte of the records on."""
    words = numbers.astype(np.int64)
    words |= np.int64(_CONTINUED - 2**64)
    records[:, start : start + 8].view("<i8")[:, 0] = words
    ends = (numbers >> 7).astype(np.int16)
    ends &= np.int16(_LAST_OF_NEGATIVE)
    ends ^= np.int16(_LAST)
    records[:, start + 8 : start + 10].view("<i2")[:, 0] = ends


def numbers_of(values: pa.Array) -> npt.NDArray[np.int8]:
    """Return booleans (as 0 and 1) or integers of 8 bits, nulls as 0."""
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
