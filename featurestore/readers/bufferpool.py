"""A pool of reusable buffers.

Allocating new pages for every range of steps costs more time than decoding.

A buffer returns to the pool when the last array that refers to it is garbage-collected, also outside
of readers: TensorFlow keeps arrays as long as their tensors live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes: TensorFlow copies arrays with a smaller alignment


class BufferPool:
    """A pool of buffers by purpose, of about equal size per purpose. A pickled copy is empty.

    Args:
        free_limit: Most free buffers of each purpose; None keeps all of them, so that the pool never has
            more buffers than were in use at one time.
    """

    def __init__(self, free_limit: int | None = 8) -> None:
        self._free: dict[Any, list[npt.NDArray[np.uint8]]] = {}
        self._free_limit = free_limit

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int | None]]:
        return BufferPool, (self._free_limit,)

    def borrow(
        self, arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], *, purpose: Any
    ) -> list[npt.NDArray[Any]]:
        """Return uninitialized arrays of these shapes and types, each aligned to ``ALIGNMENT`` bytes.

        They share one buffer, which returns to the pool when the last array is garbage-collected.

        >>> BufferPool().borrow([((2, 3), np.dtype(np.float32))], purpose="doctest")[0].ctypes.data % 64
        0
        """
        offsets, sizes, end = [], [], 0
        for shape, dtype in arrays:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            offsets.append(end)
            sizes.append(size)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        block = self._take_free(end + ALIGNMENT, purpose)
        # All views keep a reference to this array, because it owns its memory in numpy's eyes.
        owner = np.frombuffer(block.data, dtype=np.uint8)
        finalize(owner, self._release, purpose, block).atexit = False
        aligned_bytes = owner[-owner.ctypes.data % ALIGNMENT :]
        return [
            aligned_bytes[offset : offset + size].view(dtype).reshape(shape)
            for offset, size, (shape, dtype) in zip(offsets, sizes, arrays, strict=True)
        ]

    def _take_free(self, size: int, purpose: Any) -> npt.NDArray[np.uint8]:
        free = self._free.setdefault(purpose, [])
        while free:
            try:
                block = free.pop()
            except IndexError:  # another thread was first
                break
            if len(block) >= size:  # smaller ones are from the first steps: drop them
                return block
        return np.empty(size, dtype=np.uint8)

    def _release(self, purpose: Any, block: npt.NDArray[np.uint8]) -> None:
        free = self._free[purpose]
        if self._free_limit is None or len(free) < self._free_limit:
            free.append(block)
