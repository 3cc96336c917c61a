"""The wire format of ``tf.train.Example``: varints, also with padding, and tags.

https://protobuf.dev/programming-guides/encoding defines varints and tags;
``tensorflow/core/example/feature.proto`` defines the fields.
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
_CONTINUATION_BITS = 0x8080808080808080
_SHIFTS = ((28, 4), (14, 2), (7, 1))


def varint(value: int, *, width: int | None = None) -> bytes:
    """Return a varint, padded with empty continuation bytes up to ``width``.

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
    """Return the varint width for all integers of a range; negative ones need ten bytes.

    >>> varint_width(0, 127), varint_width(0, 128), varint_width(-1, 0)
    (1, 2, 10)
    """
    return MAX_VARINT if minimum < 0 else max(1, -(-max(maximum, 0).bit_length() // 7))


def delimited(tag: int, body: bytes) -> bytes:
    """Return a length-delimited field."""
    return bytes([tag]) + varint(len(body)) + body


# Each step shifts the upper half of every field, so that 56 bits become eight groups of seven.
_STEPS = tuple(
    (stays, (stays << (bits + shift)) & (2**64 - 1), shift)
    for bits, shift in _SHIFTS
    # The low ``bits`` of every second field.
    for stays in [sum(((1 << bits) - 1) << low for low in range(0, 64, 2 * (bits + shift)))]
)


def spreading_steps(width: int) -> tuple[tuple[int, int, int], ...]:
    """Return the steps that spread ``width <= 8`` bytes.

    A step is a mask of the bits that stay, a mask of the shifted bits, and the shift.
    """
    if width > 4:
        return _STEPS
    if width > 2:
        return _STEPS[1:]
    return _STEPS[2:]


def spread(values: npt.NDArray[np.uint64], *, width: int) -> npt.NDArray[np.uint64]:
    """Convert integers below ``2**(7 * width)`` to varints of ``width <= 8`` bytes, in place."""
    for stays, moved_to, shift in spreading_steps(width):
        moved = values << np.uint64(shift)
        moved &= np.uint64(moved_to)
        values &= np.uint64(stays)
        values |= moved
    if width > 1:
        values |= np.uint64(_CONTINUATION_BITS & ((1 << 8 * (width - 1)) - 1))
    return values


def gather(words: npt.NDArray[Any], *, width: int) -> npt.NDArray[Any]:
    """Decode the varints in the first ``width <= 8`` bytes of little-endian words, in place."""
    words &= words.dtype.type(0x7F7F7F7F7F7F7F7F >> 8 * (8 - width))
    return join(words, width=width)


def join(words: npt.NDArray[Any], *, width: int) -> npt.NDArray[Any]:
    """Join the seven-bit groups of the bytes of words to integers, in place."""
    number = words.dtype.type
    largest = np.iinfo(words.dtype).max
    if width == 1:
        return words
    for stays, moved_to, shift in reversed(spreading_steps(width)):
        moved = words & number(moved_to & largest)
        moved >>= number(shift)
        if shift == 1:  # x - x / 2 clears the moved bits
            words -= moved
        else:
            words &= number(stays & largest)
            words |= moved
    return words


def write_varints(target: npt.NDArray[Any], values: npt.NDArray[np.uint64], *, width: int) -> bool:
    """Write varints of ``width`` bytes into a byte array of shape (..., width).

    ``values`` are overwritten. The last axis of ``target`` must be contiguous.

    Returns:
        True if every value fits into ``width`` bytes.
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
        _store_words(target[..., :8], spread(values, width=8) | np.uint64(0x80 << 56), width=8)
    else:
        _store_words(target, spread(values, width=width), width=width)
    return fits


def _write_long(target: npt.NDArray[Any], values: npt.NDArray[np.uint64]) -> None:
    target[..., 8] = ((values >> np.uint64(56)) | np.uint64(0x80)).astype(np.uint8)
    target[..., 9] = (values >> np.uint64(63)).astype(np.uint8)
    values &= np.uint64((1 << 56) - 1)
    _store_words(target[..., :8], spread(values, width=8) | np.uint64(0x80 << 56), width=8)


def read_varints(source: npt.NDArray[Any], *, width: int) -> npt.NDArray[np.uint64]:
    """Decode varints of ``width`` bytes from a byte array of shape (..., width)."""
    if width == 1:
        return source[..., 0].astype(_U64)
    words = np.zeros(source.shape[:-1], dtype=_U64)
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
