"""Blocks of records that are fetched before they are read: neighbors together, within a memory.

A request costs a server and a client as much as some blocks do, so those of one shard that lie
close together come in one. What lies between them comes too, and is kept for later where there is
room.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.readers.shardfiles import ROW_BITS, ROW_MASK

Records = npt.NDArray[np.uint8]
Fetch = Callable[[Sequence[int]], list[Records]]
"""Returns blocks of one shard that follow one another, by one request, each in its own memory."""

_FETCHES = 8
_STRETCH_BYTES = 8 << 20
# Blocks with less between them come in one request.
_GAP_BYTES = 1 << 20


@dataclass(frozen=True)
class Room:
    """How many blocks there may be in memory, and how many in one request.

    Args:
        ahead: Blocks that are not read yet, at most.
        read: Blocks that were read and may be again.
        stretch: Blocks of one request, at most.
        gap: Blocks that nobody asked for between two that come in one request, at most.
    """

    ahead: int
    read: int
    stretch: int
    gap: int

    @classmethod
    def of(cls, *, block_bytes: int, ahead_bytes: int, read: int) -> Room:
        """Return the room for blocks of so many bytes."""
        size = max(1, block_bytes)
        return cls(
            max(1, ahead_bytes // size),
            read,
            max(1, _STRETCH_BYTES // size),
            _GAP_BYTES // size,
        )


def stretches(blocks: Sequence[int], *, gap: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, stop) that hold all of some ascending blocks.

    Two blocks are in one range when at most ``gap`` others lie between them, and a range holds at
    most ``most`` blocks.

    >>> list(stretches([1, 2, 5, 9, 10], gap=2, most=4))
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


class AheadBlocks:
    """The blocks of a split that are in memory or on their way; serves many threads.

    A block's key has its shard above ``ROW_BITS`` bits and its number below. When nobody holds this
    any more, what was not asked of the server yet is not asked.
    """

    def __init__(self, fetch: Fetch, room: Room) -> None:
        self.room = room
        self._fetch = fetch
        self._lock = Lock()
        self._blocks: dict[int, Future[Records]] = {}
        # Of these keys those that were read, longest ago first, and those that nobody asked for.
        self._read: OrderedDict[int, None] = OrderedDict()
        self._spare: OrderedDict[int, None] = OrderedDict()
        self.pool = ThreadPoolExecutor(_FETCHES, thread_name_prefix="featurestore-get")
        weakref.finalize(self, self.pool.shutdown, wait=False, cancel_futures=True)

    def get(self, keys: Sequence[int]) -> list[Future[Records]]:
        """Return blocks, there or on their way; those read longest ago are forgotten."""
        with self._lock:
            self._begin(keys, later=None)
            found = []
            for key in keys:
                self._read[key] = None
                self._read.move_to_end(key)
                self._spare.pop(key, None)
                found.append(self._blocks[key])
            while len(self._read) > max(self.room.read, len(keys)):
                self._blocks.pop(self._read.popitem(last=False)[0])
            return found

    def expect(self, keys: Sequence[int], later: npt.NDArray[np.bool_]) -> None:
        """Begin to fetch blocks that are read soon.

        Args:
            keys: Ascending.
            later: Of each block's number whether it is read after these.
        """
        with self._lock:
            self._begin(keys, later=later)
            for key in keys:
                self._read.pop(key, None)
                self._spare.pop(key, None)
            while self._spare and self._ahead > self.room.ahead:
                self._blocks.pop(self._spare.popitem(last=False)[0])

    @property
    def _ahead(self) -> int:
        return len(self._blocks) - len(self._read)

    def _begin(self, keys: Sequence[int], *, later: npt.NDArray[np.bool_] | None) -> None:
        """Begin to fetch the blocks that are neither there nor on their way."""
        absent = []
        for key in keys:
            known = self._blocks.get(key)
            if known is None or (known.done() and known.exception() is not None):
                absent.append(key)
        for _, of_shard in groupby(absent, key=_shard):
            wanted = list(of_shard)
            given = stretches(wanted, gap=self.room.gap, most=self.room.stretch)
            asked = set(wanted)
            for first, stop in given:
                self._request(range(first, stop), asked, later)

    def _request(self, keys: range, asked: set[int], later: npt.NDArray[np.bool_] | None) -> None:
        """Begin to fetch a range of blocks, and keep those asked for and those there is room for."""
        promises: dict[int, Future[Records]] = {}
        for key in keys:
            if key not in asked:
                if later is None or key in self._blocks or not later[key & ROW_MASK]:
                    continue
                if self._ahead >= self.room.ahead:
                    continue
                self._spare[key] = None
            promises[key] = self._blocks[key] = Future()
        self.pool.submit(_keep_promises, self._fetch, keys, promises)


def _shard(key: int) -> int:
    return key >> ROW_BITS


def _keep_promises(fetch: Fetch, keys: range, promises: dict[int, Future[Any]]) -> None:
    try:
        blocks = fetch(keys)
    except BaseException as error:  # whoever waits for a block raises it
        for promise in promises.values():
            promise.set_exception(error)
        return
    for key, block in zip(keys, blocks, strict=True):
        if key in promises:
            promises[key].set_result(block)
