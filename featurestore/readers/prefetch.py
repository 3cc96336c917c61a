"""Work done ahead in threads, results in order, never more than a few waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetched(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[Result]:
    """Yield ``work(item)`` for each item in order, up to ``ahead`` of them computed beforehand.

    Closing the iterator early cancels what has not begun and waits for what has.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="featurestore-reader")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
