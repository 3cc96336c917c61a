"""TFRecord framing.

``uint64 length | masked CRC of the length | payload | masked CRC of the payload``, little-endian.

The masked checksum is CRC-32C (Castagnoli), rotated and shifted by a constant:
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


def header(length: int) -> bytes:
    """Return the first 12 bytes of a record whose payload has ``length`` bytes.

    >>> header(41).hex()
    '290000000000000037ff5f00'
    """
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", mask(crc32c(packed)))


def record(payload: bytes) -> bytes:
    """Return one framed record."""
    return header(len(payload)) + payload + struct.pack("<I", mask(crc32c(payload)))


def payload_checksums(records: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the masked CRCs of the payloads of records of shape (n, record_bytes).

    The loop over records runs in C.
    """
    count, width = records.shape
    data = memoryview(records.reshape(-1))  # type: ignore[arg-type]
    payloads = struct.Struct(f"{HEADER}x{width - FRAMING}s{FOOTER}x").iter_unpack(data)
    return masks(np.fromiter(map(crc32c, chain.from_iterable(payloads)), np.uint32, count))


def checksums(data: Any, bounds: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint32]:
    """Return the masked CRCs of the ranges ``[start, end)`` of a buffer."""
    view = memoryview(data).cast("B")
    return masks(
        np.fromiter((crc32c(view[start:end]) for start, end in bounds), np.uint32, len(bounds))
    )
