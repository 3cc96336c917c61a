"""Slots for threads that compute and then wait for the disk.

If as many threads as processors write files, all compute at the same time and then wait for the disk
at the same time. With more threads, a slot for each processor, and ``release_slot`` before
each wait, some threads compute while others wait.
"""

from __future__ import annotations

import threading
from collections import deque
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
        self._lock = threading.Lock()
        self._free = count
        # A released slot goes to the thread that has waited longest. With a semaphore, the thread
        # that releases a slot could take it again first.
        self._waiting_threads: deque[threading.Event] = deque()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a slot; the thread has it until the block ends or it calls ``release_slot``."""
        outer_slots = getattr(_thread, "slots", None)
        self._acquire()
        _thread.slots = self
        try:
            yield
        finally:
            release_slot()
            _thread.slots = outer_slots

    def _acquire(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            is_released = threading.Event()
            self._waiting_threads.append(is_released)
        is_released.wait()

    def release(self) -> None:
        """Pass a slot to the next thread."""
        with self._lock:
            if self._waiting_threads:
                self._waiting_threads.popleft().set()
            else:
                self._free += 1


def release_slot() -> None:
    """Release the slot of the current thread, if it has one, because the thread will wait."""
    slots: ProcessorSlots | None = getattr(_thread, "slots", None)
    if slots is not None:
        _thread.slots = None
        slots.release()
