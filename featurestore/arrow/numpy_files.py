"""Arrays in ``.npy`` files: the header is checked before any memory is allocated, and pickles are refused.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADER_BYTES = 10_000  # the header of an array of numbers has about 100
_MAGIC = b"\x93NUMPY"
# The bytes of the length of the header, by version.
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}
# The header is the text of a Python dict. It is matched, since a parser would accept any object.
_HEADER = re.compile(
    rb"\{ *'descr': *'(?P<dtype>[|<>=]?(?:b1|[iu][1248]|f[248]))', *"
    rb"'fortran_order': *(?P<order>True|False), *'shape': *\((?P<shape>[0-9, ]{0,200})\) *,? *\}\s*"
)


@dataclass(frozen=True)
class ArrayHeader:
    """The type and the shape of an array, and the position of its values in the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    start: int


def read_header(data: bytes) -> ArrayHeader:
    """Read the header of a file from its first ``HEADER_BYTES`` bytes.

    Raises:
        ValueError: The file is not in this format, or its values are not booleans or numbers.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.zeros((2, 3), np.uint8))
    >>> read_header(file.getvalue()).shape
    (2, 3)
    """
    length_bytes = _LENGTH_BYTES.get(data[6:8]) if data[:6] == _MAGIC else None
    if length_bytes is None:
        raise ValueError("it is not a .npy file of a known version")
    start = 8 + length_bytes + int.from_bytes(data[8 : 8 + length_bytes], "little")
    match = _HEADER.fullmatch(data[8 + length_bytes : start])
    if match is None or start > min(len(data), HEADER_BYTES):
        raise ValueError("its header is not that of an array of numbers")
    dtype = np.dtype(match["dtype"].decode())
    shape = tuple(int(length) for length in match["shape"].replace(b" ", b"").split(b",") if length)
    return ArrayHeader(dtype, shape, match["order"] == b"True", start)


def read_array(data: bytes) -> Any:
    """Return the array of a file, without a copy of its values.

    Raises:
        ValueError: As in ``read_header``, or the file does not have the size of its array.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.array([1, 2], "i8"))
    >>> read_array(file.getvalue()).tolist()
    [1, 2]
    """
    header = read_header(data)
    size = math.prod(header.shape) * header.dtype.itemsize
    if len(data) - header.start != size:
        raise ValueError(f"an array of shape {header.shape} has {size} bytes")
    values = np.frombuffer(data, header.dtype, offset=header.start)
    if header.is_fortran:
        return values.reshape(header.shape[::-1]).T
    return values.reshape(header.shape)
