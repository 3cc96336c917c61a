"""Arrays in ``.npy`` files: the header is checked before any memory is allocated, and pickles are refused.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADER_BYTES = 10_000  # the header of an array of numbers has about 100


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

    >>> file = io.BytesIO()
    >>> np.save(file, np.zeros((2, 3), np.uint8))
    >>> read_header(file.getvalue()).shape
    (2, 3)
    """
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of .npy files is unknown")
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file, max_header_size=HEADER_BYTES)
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise ValueError(f"an array of type {dtype} is not an array of numbers")
    return ArrayHeader(dtype, shape, is_fortran, file.tell())


def read_array(data: bytes) -> Any:
    """Return the array of a file, without a copy of its values.

    Raises:
        ValueError: As in ``read_header``, or the file does not have the size of its array.

    >>> file = io.BytesIO()
    >>> np.save(file, np.array([1, 2], "i8"))
    >>> read_array(file.getvalue()).tolist()
    [1, 2]
    """
    header = read_header(data)
    size = math.prod(header.shape) * header.dtype.itemsize
    if any(length < 0 for length in header.shape) or len(data) - header.start != size:
        raise ValueError(f"an array of shape {header.shape} has {size} bytes")
    order = "F" if header.is_fortran else "C"
    values = np.frombuffer(data, header.dtype, offset=header.start)
    return values.reshape(header.shape, order=order)
