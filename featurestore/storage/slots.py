"""Slots for threads that compute and then wait for the disk.

If as many threads as processors write files, all compute at the same time and then wait for the disk
at the same time. With more threads, a slot for each processor, and ``release_slot`` before
each wait, some threads compute while others wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


class ProcessorSlots:
    """A limit on the number of threads that compute at the same time.

    >>> slots = ProcessorSlots(1)
    >>> with slots.slot():
    ...     release_slot()
    ...     with slots.slot():
    ...         pass
    """

    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a slot; the thread has it until the block ends or it calls ``release_slot``."""
        self._semaphore.acquire()
        _thread.semaphore = self._semaphore
        try:
            yield
        finally:
            release_slot()


def release_slot() -> None:
    """Release the slot of the current thread, if it has one, because the thread will wait."""
    semaphore = getattr(_thread, "semaphore", None)
    if semaphore is not None:
        _thread.semaphore = None
        semaphore.release()
