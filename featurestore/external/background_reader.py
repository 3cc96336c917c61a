"""Read batches in a background thread while earlier ones are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

BatchT = TypeVar("BatchT")

# Maximum number of waiting items, which bounds memory.
_MAX_WAITING = 4
_PAUSE_SECONDS = 0.1


class _BackgroundReader(Thread, Generic[BatchT]):
    """A thread that runs an iterator to its end, blocking while the queue is full."""

    def __init__(self, items: Callable[[], Iterator[BatchT]]) -> None:
        super().__init__(name="featurestore-source", daemon=True)
        self.items = items
        self.ready: Queue[tuple[BatchT | None, BaseException | None]] = Queue(_MAX_WAITING)
        self.stopped = Event()

    def run(self) -> None:
        error: BaseException | None = None
        iterator = self.items()
        try:
            for item in iterator:
                if not self._put((item, None)):
                    break
        except BaseException as reader_error:  # re-raised in the thread that takes the items
            error = reader_error
        finally:
            getattr(iterator, "close", lambda: None)()
        self._put((None, error))

    def _put(self, item: tuple[BatchT | None, BaseException | None]) -> bool:
        while not self.stopped.is_set():
            try:
                self.ready.put(item, timeout=_PAUSE_SECONDS)
            except Full:
                continue
            return True
        return False


def read_in_background(items: Callable[[], Iterator[BatchT]]) -> Iterator[BatchT]:
    """Yield the items of an iterator that runs in a background thread.

    Its error is raised after the items before it. Closing the generator stops the thread and waits
    for it.
    """
    reader = _BackgroundReader(items)
    reader.start()
    try:
        while True:
            item, error = reader.ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        reader.stopped.set()
        reader.join()
