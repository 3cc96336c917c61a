"""Batches read ahead: a source gives the next ones while those before are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")

# So many batches wait at most: memory is bounded by them.
_MOST = 4
_PAUSE_SECONDS = 0.1


class _Reader(Thread, Generic[Item]):
    """Runs an iterator to its end, in a thread, as far as there is room for what it gives."""

    def __init__(self, items: Callable[[], Iterator[Item]]) -> None:
        super().__init__(name="featurestore-source", daemon=True)
        self.items = items
        self.ready: Queue[tuple[Item | None, BaseException | None]] = Queue(_MOST)
        self.stopped = Event()

    def run(self) -> None:
        error: BaseException | None = None
        given = self.items()
        try:
            for item in given:
                if not self._put((item, None)):
                    break
        except BaseException as raised:  # it is raised where the items are taken
            error = raised
        finally:
            getattr(given, "close", lambda: None)()
        self._put((None, error))

    def _put(self, item: tuple[Item | None, BaseException | None]) -> bool:
        while not self.stopped.is_set():
            try:
                self.ready.put(item, timeout=_PAUSE_SECONDS)
            except Full:
                continue
            return True
        return False


def read_ahead(items: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """Yield what an iterator gives, which a thread of its own makes and runs to its end.

    An error of it comes in its turn. Whoever stops early ends the thread, too, and waits for it.
    """
    reader = _Reader(items)
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
