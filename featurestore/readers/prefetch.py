"""Prefetching: ordered results from threads, range requests for records, and buffer pools.

A request costs about as much as the transfer of several blocks, so one request fetches neighboring
blocks of a shard. It includes the blocks in small gaps between them, which are cached for later use
if the memory limit permits.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
import numpy.typing as npt

from featurestore.model.runtime import ForkSafeLock, forked_process_error, reset_in_children
from featurestore.model.threads import independent_tasks
from featurestore.readers.columns import NumpyArray, NumpyDtype
from featurestore.readers.order import EpochOrder, Rows
from featurestore.readers.shardfiles import ROW_BITS, ROW_MASK, ShardFiles
from featurestore.storage import storage_for
from featurestore.storage.shards import PIECE_BYTES

ALIGNMENT = 64  # bytes: TensorFlow copies arrays with a smaller alignment
_CACHED_EPOCHS = 2
Task = TypeVar("Task")
Result = TypeVar("Result")
Records = npt.NDArray[np.uint8]
Fetch = Callable[[Sequence[int]], list[Records]]
"""Fetches consecutive blocks of one shard by one request, each into its own buffer."""
_FETCHES = 8
_REQUEST_BYTES = 8 << 20
# One request fetches blocks if the gaps between them are smaller than this.
_GAP_BYTES = 1 << 20


def prefetch(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, threads: int, limit: int
) -> Iterator[Result]:
    """Yield ``work(task)`` for each task in order, computing up to ``limit`` results in advance.

    Closing the iterator early cancels pending tasks and waits for running ones.

    Raises:
        ForkedProcess: The iterator was started in the process from which this one was forked.
    """
    pool = independent_tasks(threads, "featurestore-reader")
    process = os.getpid()
    futures: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            futures.append(pool.submit(work, task))
            if len(futures) > limit:
                yield futures.popleft().result()
                _check_process(process)
        while futures:
            yield futures.popleft().result()
            _check_process(process)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _check_process(process: int) -> None:
    """Raise ForkedProcess in a child of a process, which has none of its threads."""
    if process != os.getpid():
        raise forked_process_error("This iteration")


@dataclass(frozen=True)
class PrefetchLimits:
    """Limits on the blocks in memory and in one request.

    Args:
        unread_blocks: Maximum number of fetched blocks that have not been read yet.
        read_blocks: Maximum number of blocks that stay cached after they were read.
        request_blocks: Maximum number of blocks per request.
        gap_blocks: Maximum number of unneeded blocks between two needed blocks of a request.
    """

    unread_blocks: int
    read_blocks: int
    request_blocks: int
    gap_blocks: int

    @classmethod
    def for_blocks(cls, *, block_bytes: int, ahead_bytes: int, read: int) -> PrefetchLimits:
        """Compute the limits for a block size."""
        size = max(1, block_bytes)
        return cls(
            max(1, ahead_bytes // size), read, max(1, _REQUEST_BYTES // size), _GAP_BYTES // size
        )


def merge_blocks(blocks: Sequence[int], *, gap: int, max_blocks: int) -> Iterator[tuple[int, int]]:
    """Merge ascending block numbers into ranges [first, stop).

    Two blocks are merged if at most ``gap`` other blocks are between them. A range has at most
    ``max_blocks`` blocks.

    >>> list(merge_blocks([1, 2, 5, 9, 10], gap=2, max_blocks=4))
    [(1, 3), (5, 6), (9, 11)]
    """
    first = stop = -1
    for block in blocks:
        if first < 0:
            first = block
        elif block - stop > gap or block - first >= max_blocks:
            yield first, stop
            first = block
        stop = block + 1
    if first >= 0:
        yield first, stop


class PrefetchedBlocks:
    """A cache of fetched blocks and pending requests. Thread-safe.

    The low ``ROW_BITS`` bits of a block key are the block number, the high bits the shard number.
    Pending requests are cancelled when the object is garbage-collected.
    """

    def __init__(self, fetch: Fetch, limits: PrefetchLimits) -> None:
        self.limits = limits
        self._fetch = fetch
        self._lock = ForkSafeLock()
        self._blocks: dict[int, Future[Records]] = {}
        # Keys of blocks that were read (least recently used first), and of blocks in gaps.
        self._read_keys: OrderedDict[int, None] = OrderedDict()
        self._gap_keys: OrderedDict[int, None] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        reset_in_children(self)

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The threads of requests, which are started on first use."""
        with self._lock:
            if self._pool is None:
                self._pool = independent_tasks(_FETCHES, "featurestore-get")
                # The callback must not refer to ``self``, which could then never be collected.
                weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            return self._pool

    def reset_after_fork(self) -> None:
        """Forget all blocks: the requests of the parent have no threads in a forked child."""
        self._pool = None
        for entries in (self._blocks, self._read_keys, self._gap_keys):
            entries.clear()

    def get(self, keys: Sequence[int]) -> list[Future[Records]]:
        """Return futures of blocks, fetching missing ones; evict the least recently read blocks."""
        with self._lock:
            self._fetch_missing(keys, is_needed_later=None)
            blocks = []
            for key in keys:
                self._read_keys[key] = None
                self._read_keys.move_to_end(key)
                self._gap_keys.pop(key, None)
                blocks.append(self._blocks[key])
            # The blocks of this call stay, even beyond the limit. Threads that wait for an evicted
            # block have their own reference to its future.
            while len(self._read_keys) > max(self.limits.read_blocks, len(keys)):
                self._blocks.pop(self._read_keys.popitem(last=False)[0])
            return blocks

    def expect(self, keys: Sequence[int], is_needed_later: npt.NDArray[np.bool_]) -> None:
        """Start to fetch blocks that will be read soon.

        Args:
            keys: The block keys, in ascending order.
            is_needed_later: For each block number, whether the block is read after these blocks.
        """
        with self._lock:
            self._fetch_missing(keys, is_needed_later=is_needed_later)
            for key in keys:
                self._read_keys.pop(key, None)
                self._gap_keys.pop(key, None)
            while self._gap_keys and self._unread_count > self.limits.unread_blocks:
                self._blocks.pop(self._gap_keys.popitem(last=False)[0])

    @property
    def _unread_count(self) -> int:
        return len(self._blocks) - len(self._read_keys)

    def _fetch_missing(
        self, keys: Sequence[int], *, is_needed_later: npt.NDArray[np.bool_] | None
    ) -> None:
        """Request the blocks that are neither cached nor being fetched."""
        missing_keys = []
        for key in keys:
            future = self._blocks.get(key)
            # Repeat requests that failed.
            if future is None or (future.done() and future.exception() is not None):
                missing_keys.append(key)
        for _, keys_of_shard in groupby(missing_keys, key=lambda key: key >> ROW_BITS):
            shard_keys = list(keys_of_shard)
            ranges = merge_blocks(
                shard_keys, gap=self.limits.gap_blocks, max_blocks=self.limits.request_blocks
            )
            needed_keys = set(shard_keys)
            for first, stop in ranges:
                self._submit_request(range(first, stop), needed_keys, is_needed_later)

    def _submit_request(
        self, keys: range, needed_keys: set[int], is_needed_later: npt.NDArray[np.bool_] | None
    ) -> None:
        """Request a range of blocks; cache the needed ones, and others if the limit permits."""
        # Started before the futures exist, which would otherwise never get a result.
        pool = self.pool
        futures: dict[int, Future[Records]] = {}
        for key in keys:
            if key not in needed_keys:
                if (
                    is_needed_later is None
                    or key in self._blocks
                    or not is_needed_later[key & ROW_MASK]
                ):
                    continue
                if self._unread_count >= self.limits.unread_blocks:
                    continue
                self._gap_keys[key] = None
            # Known before the request runs, so that other threads wait for it and do not repeat it.
            futures[key] = self._blocks[key] = Future()
        pool.submit(_fetch_blocks, self._fetch, keys, futures)


def _fetch_blocks(fetch: Fetch, keys: range, futures: dict[int, Future[Any]]) -> None:
    """Run a request and set the results of its futures."""
    try:
        blocks = fetch(keys)
    except BaseException as error:  # raised in the threads that wait for a block
        for future in futures.values():
            future.set_exception(error)
        return
    for key, block in zip(keys, blocks, strict=True):
        if key in futures:
            futures[key].set_result(block)


class BufferPool:
    """A pool of reusable buffers, grouped by purpose. A pickled copy is empty.

    Buffers of the same purpose should have similar sizes. Allocating new pages for each step range
    would take longer than decoding it. A buffer returns to the pool when the last array that refers
    to it is garbage-collected. This may happen outside of readers: TensorFlow keeps an array until
    its tensors are released.

    Args:
        free_limit: Maximum number of free buffers per purpose. None keeps all free buffers, so the
            pool never has more buffers than were in use at the same time.
    """

    def __init__(self, free_limit: int | None = 8) -> None:
        self._free: dict[Any, list[npt.NDArray[np.uint8]]] = {}
        self._free_limit = free_limit

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int | None]]:
        return BufferPool, (self._free_limit,)

    def borrow(
        self, arrays: Sequence[tuple[tuple[int, ...], NumpyDtype]], *, purpose: Any
    ) -> list[NumpyArray]:
        """Return uninitialized arrays of these shapes and types, aligned to ``ALIGNMENT`` bytes.

        All arrays share one buffer, which returns to the pool when the last array is
        garbage-collected.

        >>> BufferPool().borrow([((2, 3), np.dtype(np.float32))], purpose="doctest")[0].ctypes.data % 64
        0
        """
        offsets, sizes, end = [], [], 0
        for shape, dtype in arrays:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            offsets.append(end)
            sizes.append(size)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        # Additional bytes, so that the first array can start at an aligned address.
        block = self._pop_free_buffer(end + ALIGNMENT, purpose)
        # All views keep a reference to this array, because numpy considers it the memory owner.
        owner = np.frombuffer(block.data, dtype=np.uint8)
        finalize(owner, self._release, purpose, block).atexit = False
        aligned_bytes = owner[-owner.ctypes.data % ALIGNMENT :]
        return [
            aligned_bytes[offset : offset + size].view(dtype).reshape(shape)
            for offset, size, (shape, dtype) in zip(offsets, sizes, arrays, strict=True)
        ]

    def _pop_free_buffer(self, size: int, purpose: Any) -> npt.NDArray[np.uint8]:
        """Return a free buffer of at least this size, or a new one."""
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


@dataclass(frozen=True)
class _SplitSource:
    """The storage objects of a split.

    It has no reference to the reader, so that the reader can be garbage-collected.
    """

    paths: tuple[str, ...]
    first_rows: Rows
    block_rows: int
    record_bytes: int
    memory: BufferPool

    def block_range(self, key: int) -> tuple[int, int]:
        """Return the row range [begin, end) of a block within its shard."""
        shard, block = key >> ROW_BITS, key & ROW_MASK
        first, stop = self.first_rows[shard : shard + 2].tolist()
        begin = max(first, block * self.block_rows)
        return begin - first, min(stop, (block + 1) * self.block_rows) - first

    def read_rows(self, shard: int, begin: int, end: int) -> Records:
        """Read rows [begin, end) of a shard."""
        records = np.empty((end - begin, self.record_bytes), np.uint8)
        self._read_into(shard, begin, [records])
        return records

    def read_blocks(self, keys: Sequence[int]) -> list[Records]:
        """Read consecutive blocks of one shard into separate buffers."""
        blocks = []
        for key in keys:
            begin, end = self.block_range(key)
            shape = self.block_rows, self.record_bytes
            (block,) = self.memory.borrow([(shape, np.dtype(np.uint8))], purpose="blocks")
            blocks.append(block[: end - begin])
        self._read_into(keys[0] >> ROW_BITS, self.block_range(keys[0])[0], blocks)
        return blocks

    def _read_into(self, shard: int, first: int, arrays: Sequence[Records]) -> None:
        """Read the rows of a shard, starting at ``first``, into arrays."""
        buffers = [array.reshape(-1).data for array in arrays]
        storage_for(self.paths[shard]).read_into(
            self.paths[shard], first * self.record_bytes, buffers
        )


@dataclass
class _RequestedWindows:
    """The prefetching progress of a group of lanes in an epoch.

    Args:
        stop: The first window that has not been requested.
        is_needed_later: For each block of the split, whether it is read in that window or later.
    """

    stop: int
    is_needed_later: npt.NDArray[np.bool_]


@dataclass
class RangedShardFiles(ShardFiles):
    """Shard files in an object store, read by range requests.

    ``records`` and ``slices`` are thread-safe. At any time, memory holds at most ``read_blocks``
    blocks that were read, ``ahead_bytes`` of prefetched blocks (but at least one window), and the
    blocks of running requests. Epochs may share ``memory``.
    """

    read_blocks: int = 1
    ahead_bytes: int = 1
    memory: BufferPool = field(default_factory=BufferPool)
    _requested_windows: OrderedDict[tuple[int, range], _RequestedWindows] = field(
        default_factory=OrderedDict
    )
    _checked_shards: set[int] = field(default_factory=set)

    def records(self, locations: Rows, *, out: Records) -> None:
        """Copy the records at ascending locations into ``out``, of shape (n, record bytes)."""
        if not len(locations):
            return
        rows = locations & ROW_MASK
        shards = locations >> ROW_BITS
        block_numbers = (self.first_rows[shards] + rows) // self.manifest.block_rows
        row_keys = (shards << ROW_BITS) + block_numbers
        # Locations are ascending, so the rows of a block are adjacent.
        changes = np.flatnonzero(row_keys[1:] != row_keys[:-1]) + 1
        bounds = [0, *changes.tolist(), len(row_keys)]
        block_keys = row_keys[bounds[:-1]].tolist()
        futures = self._blocks.get(block_keys)
        for key, future, (begin, end) in zip(block_keys, futures, pairwise(bounds), strict=True):
            first = self._source.block_range(key)[0]
            np.take(
                future.result(), rows[begin:end] - first, axis=0, out=out[begin:end], mode="clip"
            )

    def check_records(self, records: Records, locations: Rows) -> None:
        """Raise DatasetDamaged unless records match their checksums, and their shard its prefix."""
        super().check_records(records, locations)
        shards = set(np.unique(locations >> ROW_BITS).tolist()) if self.verify else set()
        for shard in shards - self._checked_shards:
            entry = self.split.shards[shard]
            data = np.empty(min(PIECE_BYTES, entry.bytes), np.uint8)
            storage_for(self._source.paths[shard]).read_into(
                self._source.paths[shard], 0, [data.data]
            )
            self._check_beginning(entry, data)
            self._checked_shards.add(shard)

    @contextmanager
    def slices(self, starts: Rows, stops: Rows) -> Iterator[list[Records]]:
        """Fetch the records of row ranges in parallel."""
        futures = [
            self._blocks.pool.submit(self._source.read_rows, shard, begin, end)
            for shard, begin, end in self._shard_ranges(starts, stops)
        ]
        yield [future.result() for future in futures]

    def expect(self, epoch: EpochOrder, lanes: range, window: int) -> None:
        """Start to fetch the current window and as many subsequent ones as the limit permits."""
        key = (epoch.number, lanes)
        requested = self._requested_windows.get(key)
        if requested is None or window >= requested.stop:
            requested = _RequestedWindows(window, self._blocks_needed_from(epoch, lanes, window))
            self._requested_windows[key] = requested
            if len(self._requested_windows) > _CACHED_EPOCHS:
                self._requested_windows.popitem(last=False)
            self._request_windows(epoch, lanes, requested, stop=window + 1)
        order = epoch.order
        window_blocks = len(lanes) * (order.window_rows // order.block_rows)
        windows_ahead = max(1, self._blocks.limits.unread_blocks // window_blocks)
        # Wait until half of the prefetched windows are used. Then the next requests are fewer and
        # larger.
        if requested.stop - 1 - window <= windows_ahead // 2:
            self._request_windows(epoch, lanes, requested, stop=window + 1 + windows_ahead)

    def _request_windows(
        self, epoch: EpochOrder, lanes: range, requested: _RequestedWindows, *, stop: int
    ) -> None:
        """Request the windows before ``stop`` that have not been requested yet."""
        longest = max(epoch.windows(lane) for lane in lanes)
        keys = set()
        size = self.manifest.block_rows
        for window in range(requested.stop, min(stop, longest)):
            for lane in lanes:
                for shard, begin, end in self._shard_ranges(*epoch.window_ranges(lane, window)):
                    first = int(self.first_rows[shard])
                    for block in range((first + begin) // size, (first + end - 1) // size + 1):
                        keys.add((shard << ROW_BITS) + block)
                        requested.is_needed_later[block] = False
        requested.stop = max(stop, requested.stop)
        if keys:
            self._blocks.expect(sorted(keys), requested.is_needed_later)

    def _blocks_needed_from(
        self, epoch: EpochOrder, lanes: range, window: int
    ) -> npt.NDArray[np.bool_]:
        """Return for each block whether the lanes read it in ``window`` or later."""
        is_needed = np.zeros(self.split.rows // self.manifest.block_rows + 1, np.bool_)
        # With row ranges, the rows of the order are not the rows of the files, and blocks in gaps
        # are not cached.
        if self.row_ranges is None:
            for lane in lanes:
                low, high = epoch.order.lane_bounds(lane)
                starts, _ = epoch.ranges(low + window * epoch.order.window_rows, high)
                is_needed[starts // self.manifest.block_rows] = True
        return is_needed

    @cached_property
    def _source(self) -> _SplitSource:
        return _SplitSource(
            tuple(
                storage_for(self.directory).resolve_inside(self.directory, shard.path)
                for shard in self.split.shards
            ),
            self.first_rows,
            self.manifest.block_rows,
            self.record_bytes,
            self.memory,
        )

    @cached_property
    def _blocks(self) -> PrefetchedBlocks:
        block_bytes = self.manifest.block_rows * self.record_bytes
        limits = PrefetchLimits.for_blocks(
            block_bytes=block_bytes, ahead_bytes=self.ahead_bytes, read=self.read_blocks
        )
        return PrefetchedBlocks(self._source.read_blocks, limits)
