"""A cache with a limit on the total size of its values, for processes that run for months."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from featurestore.model.runtime import ForkSafeLock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """An LRU cache that evicts values when their total size exceeds a limit.

    A limit on the number of values would not limit memory: a commit has between one and many
    thousands of actions. Threads may load the same value concurrently.

    Args:
        limit: The maximum total size, in the unit of the sizes that ``find`` gets.

    >>> squares = SizedCache[int, int](limit=2)
    >>> [squares.find(number, lambda: number**2, size=1) for number in (1, 2, 3)]
    [1, 4, 9]
    >>> len(squares)
    2
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = ForkSafeLock()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: K, load: Callable[[], V], *, size: int) -> V:
        """Return the cached value of a key, or load and cache it.

        A value whose size exceeds the limit is returned and not cached.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = load()  # not under the lock, since it reads a file
        if size <= self._limit:
            self._add(key, value, size)
        return value

    def _add(self, key: K, value: V, size: int) -> None:
        with self._lock:
            if key in self._values:  # another thread has loaded it
                return
            self._values[key] = (value, size)
            self._size += size
            while self._size > self._limit:
                _, (_, evicted_size) = self._values.popitem(last=False)
                self._size -= evicted_size
