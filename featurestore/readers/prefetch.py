"""Prefetching: results of threads in order, and blocks of records fetched within a memory limit.

A request costs about as much as the transfer of some blocks, so neighboring blocks of a shard are
fetched by one request. Blocks in the gaps between them are fetched too, and are cached for later
use while the limit allows it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from featurestore.readers.shardfiles import ROW_BITS, ROW_MASK

Task = TypeVar("Task")
Result = TypeVar("Result")
Records = npt.NDArray[np.uint8]
Fetch = Callable[[Sequence[int]], list[Records]]
"""Fetch consecutive blocks of one shard by one request, each into its own buffer."""

_FETCHES = 8
_REQUEST_BYTES = 8 << 20
# Blocks with smaller gaps between them are fetched by one request.
_GAP_BYTES = 1 << 20


def prefetched(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, threads: int, limit: int
) -> Iterator[Result]:
    """Yield ``work(task)`` for each task in order, with up to ``limit`` results computed in advance.

    Closing the iterator early cancels pending tasks and waits for running ones.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="featurestore-reader")
    futures: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            futures.append(pool.submit(work, task))
            if len(futures) > limit:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class PrefetchLimits:
    """Limits on the blocks in memory and in one request.

    Args:
        unread_blocks: Most blocks that are fetched and not read yet.
        read_blocks: Most blocks that were read and stay cached.
        request_blocks: Most blocks of one request.
        gap_blocks: Most unneeded blocks between two blocks of one request.
    """

    unread_blocks: int
    read_blocks: int
    request_blocks: int
    gap_blocks: int

    @classmethod
    def for_blocks(cls, *, block_bytes: int, ahead_bytes: int, read: int) -> PrefetchLimits:
        """Return the limits for blocks of this size."""
        size = max(1, block_bytes)
        return cls(
            max(1, ahead_bytes // size),
            read,
            max(1, _REQUEST_BYTES // size),
            _GAP_BYTES // size,
        )


def merge_blocks(blocks: Sequence[int], *, gap: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, stop) that cover ascending block numbers.

    Two blocks are in one range if at most ``gap`` others are between them; a range has at most
    ``most`` blocks.

    >>> list(merge_blocks([1, 2, 5, 9, 10], gap=2, most=4))
    [(1, 3), (5, 6), (9, 11)]
    """
    first = stop = -1
    for block in blocks:
        if first < 0:
            first = block
        elif block - stop > gap or block - first >= most:
            yield first, stop
            first = block
        stop = block + 1
    if first >= 0:
        yield first, stop


class PrefetchedBlocks:
    """The blocks of a split that are cached or being fetched. Thread-safe.

    The key of a block has its shard above ``ROW_BITS`` bits and its number below. Pending requests
    are cancelled when the object is garbage-collected.
    """

    def __init__(self, fetch: Fetch, limits: PrefetchLimits) -> None:
        self.limits = limits
        self._fetch = fetch
        self._lock = Lock()
        self._blocks: dict[int, Future[Records]] = {}
        # Keys of blocks that were read, least recently used first, and of unneeded blocks in gaps.
        self._read_keys: OrderedDict[int, None] = OrderedDict()
        self._gap_keys: OrderedDict[int, None] = OrderedDict()
        self.pool = ThreadPoolExecutor(_FETCHES, thread_name_prefix="featurestore-get")
        weakref.finalize(self, self.pool.shutdown, wait=False, cancel_futures=True)

    def get(self, keys: Sequence[int]) -> list[Future[Records]]:
        """Return blocks, cached or being fetched; evict the least recently read ones."""
        with self._lock:
            self._fetch_missing(keys, later=None)
            blocks = []
            for key in keys:
                self._read_keys[key] = None
                self._read_keys.move_to_end(key)
                self._gap_keys.pop(key, None)
                blocks.append(self._blocks[key])
            while len(self._read_keys) > max(self.limits.read_blocks, len(keys)):
                self._blocks.pop(self._read_keys.popitem(last=False)[0])
            return blocks

    def expect(self, keys: Sequence[int], later: npt.NDArray[np.bool_]) -> None:
        """Start to fetch blocks that will be read soon.

        Args:
            keys: Ascending keys of blocks.
            later: For each block number, whether the block is read after these.
        """
        with self._lock:
            self._fetch_missing(keys, later=later)
            for key in keys:
                self._read_keys.pop(key, None)
                self._gap_keys.pop(key, None)
            while self._gap_keys and self._unread_count > self.limits.unread_blocks:
                self._blocks.pop(self._gap_keys.popitem(last=False)[0])

    @property
    def _unread_count(self) -> int:
        return len(self._blocks) - len(self._read_keys)

    def _fetch_missing(self, keys: Sequence[int], *, later: npt.NDArray[np.bool_] | None) -> None:
        """Start to fetch the blocks that are neither cached nor being fetched."""
        missing_keys = []
        for key in keys:
            future = self._blocks.get(key)
            if future is None or (future.done() and future.exception() is not None):
                missing_keys.append(key)
        for _, keys_of_shard in groupby(missing_keys, key=lambda key: key >> ROW_BITS):
            shard_keys = list(keys_of_shard)
            ranges = merge_blocks(
                shard_keys, gap=self.limits.gap_blocks, most=self.limits.request_blocks
            )
            needed_keys = set(shard_keys)
            for first, stop in ranges:
                self._request(range(first, stop), needed_keys, later)

    def _request(
        self, keys: range, needed_keys: set[int], later: npt.NDArray[np.bool_] | None
    ) -> None:
        """Start to fetch a range of blocks; cache the needed ones, others within the limit."""
        futures: dict[int, Future[Records]] = {}
        for key in keys:
            if key not in needed_keys:
                if later is None or key in self._blocks or not later[key & ROW_MASK]:
                    continue
                if self._unread_count >= self.limits.unread_blocks:
                    continue
                self._gap_keys[key] = None
            futures[key] = self._blocks[key] = Future()
        self.pool.submit(_fetch_blocks, self._fetch, keys, futures)


def _fetch_blocks(fetch: Fetch, keys: range, futures: dict[int, Future[Any]]) -> None:
    try:
        blocks = fetch(keys)
    except BaseException as error:  # raised in the threads that wait for a block
        for future in futures.values():
            future.set_exception(error)
        return
    for key, block in zip(keys, blocks, strict=True):
        if key in futures:
            futures[key].set_result(block)
