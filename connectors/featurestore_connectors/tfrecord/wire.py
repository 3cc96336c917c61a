"""Record bytes: the wire format of ``tf.train.Example``, and the framing of TFRecord.

Varints (also with padding) and tags are defined in https://protobuf.dev/programming-guides/encoding
and the fields in ``tensorflow/core/example/feature.proto``.

A framed record is ``uint64 length | masked CRC of the length | payload | masked CRC of the payload``,
little-endian. The masked checksum is CRC-32C (Castagnoli), rotated and shifted by a constant:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

HEADER = 12
FOOTER = 4
FRAMING = HEADER + FOOTER
FEATURES = (
    0x0A  # Example.features, Features.feature, map key, BytesList.value: field 1, length-delimited
)
VALUE = 0x12  # map value: field 2
INT64_LIST = 0x1A  # Feature.int64_list: field 3
FLOAT_LIST = 0x12  # Feature.float_list: field 2
BYTES_LIST = 0x0A  # Feature.bytes_list: field 1
SKIPPED = 0x7A  # field 15 of Example, which no parser knows and every parser skips
MASKED_KEY = 0x01  # first character of the keys of nulls in layouts before version 3
MAX_VARINT = 10
# The ten varint bytes of an 8-bit integer are its lowest seven bits, eight bytes of sign bits, and
# a last byte for the sign. These are the eight middle bytes.
POSITIVE, NEGATIVE = 0x80, 0xFF
# The last two bytes of a positive number, and the bits that differ in a negative number.
_LAST, _LAST_OF_NEGATIVE = 0x0080, 0x017F
_U64 = np.dtype("<u8")
_CONTINUATION_BITS = 0x8080808080808080
_SHIFTS = ((28, 4), (14, 2), (7, 1))


def varint(value: int, *, width: int | None = None) -> bytes:
    """Encode a varint, padded with empty continuation bytes up to ``width``.

    >>> varint(300).hex(), varint(7, width=3).hex()
    ('ac02', '878000')
    """
    groups = []
    while True:
        groups.append(value & 0x7F)
        value >>= 7
        if not value:
            break
    # Parsers accept continuation bytes without bits, so a varint may have any larger width.
    groups += [0] * ((width or 0) - len(groups))
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def varint_width(minimum: int, maximum: int) -> int:
    """Return the varint width for all integers in a range; negative integers need ten bytes.

    >>> varint_width(0, 127), varint_width(0, 128), varint_width(-1, 0)
    (1, 2, 10)
    """
    return MAX_VARINT if minimum < 0 else max(1, -(-max(maximum, 0).bit_length() // 7))


def delimited(tag: int, body: bytes) -> bytes:
    """Encode a length-delimited field."""
    return bytes([tag]) + varint(len(body)) + body


def write_varints(target: npt.NDArray[Any], values: npt.NDArray[np.uint64], *, width: int) -> bool:
    """Write varints of ``width`` bytes to a byte array of shape (..., width).

    ``values`` is overwritten. The last axis of ``target`` must be contiguous.

    Returns:
        True if all values fit in ``width`` bytes.
    """
    fits = width == MAX_VARINT or not len(values) or int(values.max()) >> 7 * width == 0
    if width == 1:
        target[..., 0] = values
    elif width < 9:
        _store_words(target, spread(values, width=width), width=width)
    else:
        # Eight groups of seven bits fit into one word. The ninth and tenth byte contain the rest.
        last_bytes = values >> np.uint64(56)
        if width == MAX_VARINT:
            last_bytes |= np.uint64(0x80)
            target[..., 9] = (values >> np.uint64(63)).astype(np.uint8)
        target[..., 8] = last_bytes.astype(np.uint8)
        values &= np.uint64((1 << 56) - 1)
        _store_words(target[..., :8], spread(values, width=8) | np.uint64(0x80 << 56), width=8)
    return fits


def write_int8(records: npt.NDArray[np.uint8], start: int, numbers: npt.NDArray[np.int8]) -> None:
    """Write 8-bit integers as ten-byte varints to a byte offset of the records."""
    words = numbers.astype(np.int64)
    words |= np.int64(_CONTINUATION_BITS - 2**64)
    records[:, start : start + 8].view("<i8")[:, 0] = words
    ends = (numbers >> 7).astype(np.int16)
    ends &= np.int16(_LAST_OF_NEGATIVE)
    ends ^= np.int16(_LAST)
    records[:, start + 8 : start + 10].view("<i2")[:, 0] = ends


def read_varints(source: npt.NDArray[Any], *, width: int) -> npt.NDArray[np.uint64]:
    """Decode varints of ``width`` bytes from a byte array of shape (..., width)."""
    if width == 1:
        return source[..., 0].astype(_U64)
    words = np.zeros(source.shape[:-1], dtype=_U64)
    # numpy copies up to eight bytes of each varint into a word, which is decoded with bit
    # operations.
    head = min(width, 8)
    _as_items(words[..., None].view(np.uint8), head)[...] = _as_items(source, head)
    result = gather(words, width=head)
    if width > 8:
        result |= (source[..., 8] & np.uint8(0x7F)).astype(_U64) << np.uint64(56)
    if width > 9:
        result |= (source[..., 9] & np.uint8(1)).astype(_U64) << np.uint64(63)
    return result


def _store_words(target: npt.NDArray[Any], words: npt.NDArray[np.uint64], *, width: int) -> None:
    _as_items(target, width)[...] = _as_items(
        np.ascontiguousarray(words)[..., None].view(np.uint8), width
    )


def _as_items(array: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """View the first ``width`` bytes of the last axis as one item, which numpy copies at once."""
    return array[..., :width].view(f"V{width}")[..., 0]


def spread(values: npt.NDArray[np.uint64], *, width: int) -> npt.NDArray[np.uint64]:
    """Convert integers below ``2**(7 * width)`` to varints of ``width <= 8`` bytes, in place."""
    for kept_bits, moved_bits, shift in spreading_steps(width):
        moved = values << np.uint64(shift)
        moved &= np.uint64(moved_bits)
        values &= np.uint64(kept_bits)
        values |= moved
    if width > 1:
        values |= np.uint64(_CONTINUATION_BITS & ((1 << 8 * (width - 1)) - 1))
    return values


def gather(words: npt.NDArray[Any], *, width: int) -> npt.NDArray[Any]:
    """Decode varints in the first ``width <= 8`` bytes of little-endian words, in place."""
    words &= words.dtype.type(0x7F7F7F7F7F7F7F7F >> 8 * (8 - width))
    return join(words, width=width)


def join(words: npt.NDArray[Any], *, width: int) -> npt.NDArray[Any]:
    """Pack the low seven bits of the bytes of each word into one integer, in place."""
    number = words.dtype.type
    largest = np.iinfo(words.dtype).max
    if width == 1:
        return words
    for kept_bits, moved_bits, shift in reversed(spreading_steps(width)):
        moved = words & number(moved_bits & largest)
        moved >>= number(shift)
        if shift == 1:  # x - x / 2 clears the moved bits
            words -= moved
        else:
            words &= number(kept_bits & largest)
            words |= moved
    return words


def spreading_steps(width: int) -> tuple[tuple[int, int, int], ...]:
    """Return the bit operations that spread an integer to ``width <= 8`` bytes.

    An operation consists of a mask of bits that stay, a mask of shifted bits, and the shift.
    """
    if width > 4:
        return _STEPS
    if width > 2:
        return _STEPS[1:]
    return _STEPS[2:]


# Each step shifts the upper half of every field. In the end, 56 bits are eight groups of seven.
_STEPS = tuple(
    (kept_bits, (kept_bits << (bits + shift)) & (2**64 - 1), shift)
    for bits, shift in _SHIFTS
    # Mask of the low ``bits`` of every second field.
    for kept_bits in [sum(((1 << bits) - 1) << low for low in range(0, 64, 2 * (bits + shift)))]
)


def header(length: int) -> bytes:
    """Return the first 12 bytes of a record whose payload has ``length`` bytes.

    >>> header(41).hex()
    '290000000000000037ff5f00'
    """
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", mask(crc32c(packed)))


def record(payload: bytes) -> bytes:
    """Return a framed record."""
    return header(len(payload)) + payload + struct.pack("<I", mask(crc32c(payload)))


def mask(crc: int) -> int:
    """Return the masked form of a CRC-32C.

    >>> hex(mask(crc32c(b"123456789")))
    '0xc78ab0e5'
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masks(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the masked forms of CRC-32C checksums."""
    with np.errstate(over="ignore"):
        return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(0xA282EAD8)


def payload_checksums(records: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the masked CRCs of the payloads of records with shape (n, record_bytes).

    The loop over the records runs in C.
    """
    count, width = records.shape
    data = memoryview(records.reshape(-1))  # type: ignore[arg-type]
    payloads = struct.Struct(f"{HEADER}x{width - FRAMING}s{FOOTER}x").iter_unpack(data)
    return masks(np.fromiter(map(crc32c, chain.from_iterable(payloads)), np.uint32, count))


def checksums(data: Any, bounds: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint32]:
    """Return the masked CRCs of the ranges ``[start, end)`` in a buffer."""
    view = memoryview(data).cast("B")
    return masks(
        np.fromiter((crc32c(view[start:end]) for start, end in bounds), np.uint32, len(bounds))
    )
