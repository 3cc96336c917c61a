"""Bytes of ``tf.train.Example``: varints, also longer than needed, and the messages around values.

https://protobuf.dev/programming-guides/encoding says what a varint and a tag are;
``tensorflow/core/example/feature.proto`` which fields there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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

_U64 = np.dtype("<u8")
_CONTINUED = 0x8080808080808080
_MOVES = ((28, 4), (14, 2), (7, 1))


def varint(value: int, *, width: int | None = None) -> bytes:
    """Return a varint, filled with empty continuation bytes up to ``width``.

    >>> varint(300).hex(), varint(7, width=3).hex()
    ('ac02', '878000')
    """
    groups = []
    while True:
        groups.append(value & 0x7F)
        value >>= 7
        if not value:
            break
    groups += [0] * ((width or 0) - len(groups))
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def varint_width(minimum: int, maximum: int) -> int:
    """Return the bytes that hold every integer in a range; negative ones need all ten.

    >>> varint_width(0, 127), varint_width(0, 128), varint_width(-1, 0)
    (1, 2, 10)
    """
    return MAX_VARINT if minimum < 0 else max(1, -(-max(maximum, 0).bit_length() // 7))


def delimited(tag: int, body: bytes) -> bytes:
    """Return a length-delimited field."""
    return bytes([tag]) + varint(len(body)) + body


def _field_mask(bits: int, step: int) -> int:
    """Return a 64-bit mask: the low ``bits`` of every ``step`` bits."""
    return sum(((1 << bits) - 1) << place for place in range(0, 64, step))


# One step of spreading moves the upper half of each field up, so that 56 bits end as eight groups
# of seven.
_STEPS = tuple(
    (stays, (stays << (bits + shift)) & (2**64 - 1), shift)
    for bits, shift in _MOVES
    for stays in [_field_mask(bits, 2 * (bits + shift))]
)


def spreading_steps(width: int) -> tuple[tuple[int, int, int], ...]:
    """Return the steps that spread ``width <= 8`` bytes.

    Each is a mask of what stays, a mask of what moved, and the shift.
    """
    if width > 4:
        return _STEPS
    if width > 2:
        return _STEPS[1:]
    return _STEPS[2:]


def spread(values: npt.NDArray[np.uint64], *, width: int) -> npt.NDArray[np.uint64]:
    """Return integers below ``2**(7 * width)`` as varints of ``width <= 8`` bytes.

    They replace the values.
    """
    for stays, moved_to, shift in spreading_steps(width):
        moved = values << np.uint64(shift)
        moved &= np.uint64(moved_to)
        values &= np.uint64(stays)
        values |= moved
    if width > 1:
        values |= np.uint64(_CONTINUED & ((1 << 8 * (width - 1)) - 1))
    return values


def gather(words: npt.NDArray[Any], *, width: int) -> npt.NDArray[Any]:
    """Return the integers in the first ``width <= 8`` bytes of little-endian words.

    They replace the words.
    """
    words &= words.dtype.type(0x7F7F7F7F7F7F7F7F >> 8 * (8 - width))
    return join(words, width=width)


def join(words: npt.NDArray[Any], *, width: int) -> npt.NDArray[Any]:
    """Return the integers whose groups of seven bits lie one in a byte, in place of them."""
    number = words.dtype.type
    largest = np.iinfo(words.dtype).max
    if width == 1:
        return words
    for stays, moved_to, shift in reversed(spreading_steps(width)):
        moved = words & number(moved_to & largest)
        moved >>= number(shift)
        if shift == 1:  # what moves by half leaves half behind
            words -= moved
        else:
            words &= number(stays & largest)
            words |= moved
    return words


def write_varints(target: npt.NDArray[Any], values: npt.NDArray[np.uint64], *, width: int) -> bool:
    """Write varints of ``width`` bytes into a byte array of shape (..., width).

    Tell whether every value fitted.

    ``values`` are overwritten. ``target`` may have any strides but bytes of one varint lie side by
    side.
    """
    if width == MAX_VARINT:
        _write_long(target, values)
        return True
    fits = not len(values) or int(values.max()) >> 7 * width == 0
    if width == 1:
        target[..., 0] = values
    elif width == 9:
        target[..., 8] = (values >> np.uint64(56)).astype(np.uint8)
        values &= np.uint64((1 << 56) - 1)
        _put(target[..., :8], spread(values, width=8) | np.uint64(0x80 << 56), width=8)
    else:
        _put(target, spread(values, width=width), width=width)
    return fits


def _write_long(target: npt.NDArray[Any], values: npt.NDArray[np.uint64]) -> None:
    target[..., 8] = ((values >> np.uint64(56)) | np.uint64(0x80)).astype(np.uint8)
    target[..., 9] = (values >> np.uint64(63)).astype(np.uint8)
    values &= np.uint64((1 << 56) - 1)
    _put(target[..., :8], spread(values, width=8) | np.uint64(0x80 << 56), width=8)


def read_varints(source: npt.NDArray[Any], *, width: int) -> npt.NDArray[np.uint64]:
    """Return the integers held by varints of ``width`` bytes.

    ``source`` is a byte array of shape (..., width).
    """
    if width == 1:
        return source[..., 0].astype(_U64)
    words = np.zeros(source.shape[:-1], dtype=_U64)
    head = min(width, 8)
    _pieces(words[..., None].view(np.uint8), head)[...] = _pieces(source, head)
    result = gather(words, width=head)
    if width > 8:
        result |= (source[..., 8] & np.uint8(0x7F)).astype(_U64) << np.uint64(56)
    if width > 9:
        result |= (source[..., 9] & np.uint8(1)).astype(_U64) << np.uint64(63)
    return result


def _put(target: npt.NDArray[Any], words: npt.NDArray[np.uint64], *, width: int) -> None:
    _pieces(target, width)[...] = _pieces(
        np.ascontiguousarray(words)[..., None].view(np.uint8), width
    )


def _pieces(array: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Return the first ``width`` bytes of the last axis as one item.

    Copied in one move, not byte by byte.
    """
    return array[..., :width].view(f"V{width}")[..., 0]
