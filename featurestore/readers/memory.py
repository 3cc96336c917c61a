"""Memory that is used again.

New pages for every range of steps cost the system more time than decoding costs us.

What is lent comes back by itself when the last array that refers to it is gone, wherever that array
went: TensorFlow keeps arrays for as long as its tensors live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

ALIGNED = 64  # bytes: TensorFlow takes such memory as it is and copies other


class Memory:
    """Lends arrays; those of one purpose have about one size. A copy in another process is empty.

    Args:
        kept: Of each purpose so many that came back wait to be lent again, at most; None for all,
            so that it never holds more than was lent at one time.
    """

    def __init__(self, kept: int | None = 8) -> None:
        self._free: dict[Any, list[npt.NDArray[np.uint8]]] = {}
        self._kept = kept

    def __reduce__(self) -> tuple[type[Memory], tuple[int | None]]:
        return Memory, (self._kept,)

    def borrow(
        self, arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], *, purpose: Any
    ) -> list[npt.NDArray[Any]]:
        """Return unfilled arrays of these shapes and types, each at a multiple of ``ALIGNED``.

        They share one piece of memory, which comes back when the last of them is gone.

        >>> Memory().borrow([((2, 3), np.dtype(np.float32))], purpose="doctest")[0].ctypes.data % 64
        0
        """
        offsets, sizes, end = [], [], 0
        for shape, dtype in arrays:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            offsets.append(end)
            sizes.append(size)
            end += -(-size // ALIGNED) * ALIGNED
        block = self._find(end + ALIGNED, purpose)
        # Every view of an array refers to the one that is no view of another array: this one.
        lease = np.frombuffer(block.data, dtype=np.uint8)
        finalize(lease, self._take_back, purpose, block).atexit = False
        aligned = lease[-lease.ctypes.data % ALIGNED :]
        lent = []
        for offset, size, (shape, dtype) in zip(offsets, sizes, arrays, strict=True):
            lent.append(aligned[offset : offset + size].view(dtype).reshape(shape))
        return lent

    def _find(self, size: int, purpose: Any) -> npt.NDArray[np.uint8]:
        free = self._free.setdefault(purpose, [])
        while free:
            try:
                block = free.pop()
            except IndexError:  # another thread was first
                break
            if len(block) >= size:  # smaller ones are of the first steps: let them go
                return block
        return np.empty(size, dtype=np.uint8)

    def _take_back(self, purpose: Any, block: npt.NDArray[np.uint8]) -> None:
        free = self._free[purpose]
        if self._kept is None or len(free) < self._kept:
            free.append(block)
