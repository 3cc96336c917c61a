"""Arrays in pooled memory: page faults of fresh memory cost more than the computations in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return an uninitialized array from Arrow's memory pool, which reuses freed memory.

    >>> empty((2, 3)).shape
    (2, 3)
    """
    kind = np.dtype(dtype)
    size = shape if isinstance(shape, int) else math.prod(shape)
    return np.frombuffer(pa.allocate_buffer(size * kind.itemsize), kind).reshape(shape)
