"""Records of a split in an object store, fetched by range requests with prefetching.

The unit is a block of consecutive rows, fetched once: a window is a shuffle of complete blocks. As
many of the next windows as fit into the memory limit are requested together, so that requests are
few.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from featurestore.readers.bufferpool import BufferPool
from featurestore.readers.order import EpochOrder, Rows
from featurestore.readers.prefetch import PrefetchedBlocks, PrefetchLimits
from featurestore.readers.shardfiles import ROW_BITS, ROW_MASK, ShardFiles
from featurestore.storage import files

Records = npt.NDArray[np.uint8]

_EPOCHS_KEPT = 2


@dataclass(frozen=True)
class _Source:
    """The objects of a split; without a reference to the reader, so that it can be collected."""

    paths: tuple[str, ...]
    first_rows: Rows
    block_rows: int
    record_bytes: int
    memory: BufferPool

    def block_range(self, key: int) -> tuple[int, int]:
        """Return the rows [begin, end) of a block in its shard."""
        shard, block = key >> ROW_BITS, key & ROW_MASK
        first, stop = self.first_rows[shard : shard + 2].tolist()
        begin = max(first, block * self.block_rows)
        return begin - first, min(stop, (block + 1) * self.block_rows) - first

    def rows(self, shard: int, begin: int, end: int) -> Records:
        """Return rows of a shard."""
        records = np.empty((end - begin, self.record_bytes), np.uint8)
        self._fill(shard, begin, [records])
        return records

    def blocks(self, keys: Sequence[int]) -> list[Records]:
        """Return consecutive blocks of one shard, each in its own buffer."""
        blocks = []
        for key in keys:
            begin, end = self.block_range(key)
            shape = self.block_rows, self.record_bytes
            (block,) = self.memory.borrow([(shape, np.dtype(np.uint8))], purpose="blocks")
            blocks.append(block[: end - begin])
        self._fill(keys[0] >> ROW_BITS, self.block_range(keys[0])[0], blocks)
        return blocks

    def _fill(self, shard: int, first: int, arrays: Sequence[Records]) -> None:
        """Read rows of a shard, from ``first`` on, into arrays."""
        buffers = [array.reshape(-1).data for array in arrays]
        files.read_into(self.paths[shard], first * self.record_bytes, buffers)


@dataclass
class _RequestedWindows:
    """The requested windows of some lanes in an epoch.

    Args:
        stop: The first window that was not requested.
        is_needed_later: For each block of the split, whether it is read in that window or later.
    """

    stop: int
    is_needed_later: npt.NDArray[np.bool_]


@dataclass
class RangedShardFiles(ShardFiles):
    """The records of a split in an object store; ``records`` and ``slices`` are thread-safe.

    Memory has at most ``read_blocks`` blocks that were read, ``ahead_bytes`` of prefetched blocks
    (at least one window), and the blocks of running requests. ``memory`` may be shared by epochs.
    """

    read_blocks: int = 1
    ahead_bytes: int = 1
    memory: BufferPool = field(default_factory=BufferPool)
    _requested_windows: OrderedDict[tuple[int, range], _RequestedWindows] = field(
        default_factory=OrderedDict
    )

    def records(self, locations: Rows, *, out: Records) -> None:
        """Copy the records at ascending locations into ``out``, (n, record bytes)."""
        if not len(locations):
            return
        rows = locations & ROW_MASK
        shards = locations >> ROW_BITS
        block_numbers = (self.first_rows[shards] + rows) // self.manifest.block_rows
        row_keys = (shards << ROW_BITS) + block_numbers
        changes = np.flatnonzero(row_keys[1:] != row_keys[:-1]) + 1
        bounds = [0, *changes.tolist(), len(row_keys)]
        block_keys = row_keys[bounds[:-1]].tolist()
        futures = self._blocks.get(block_keys)
        for key, future, (begin, end) in zip(block_keys, futures, pairwise(bounds), strict=True):
            first = self._source.block_range(key)[0]
            np.take(
                future.result(), rows[begin:end] - first, axis=0, out=out[begin:end], mode="clip"
            )

    def slices(self, starts: Rows, stops: Rows) -> list[Records]:
        """Return the records of ranges, fetched in parallel."""
        futures = [
            self._blocks.pool.submit(self._source.rows, shard, begin, end)
            for shard, begin, end in self._shard_ranges(starts, stops)
        ]
        return [future.result() for future in futures]

    def expect(self, epoch: EpochOrder, lanes: range, window: int) -> None:
        """Start to fetch the current window, then as many of the next ones as the limit allows."""
        key = (epoch.number, lanes)
        requested = self._requested_windows.get(key)
        if requested is None or window >= requested.stop:
            requested = _RequestedWindows(window, self._blocks_needed_from(epoch, lanes, window))
            self._requested_windows[key] = requested
            if len(self._requested_windows) > _EPOCHS_KEPT:
                self._requested_windows.popitem(last=False)
            self._request_windows(epoch, lanes, requested, stop=window + 1)
        order = epoch.order
        window_blocks = len(lanes) * (order.window_rows // order.block_rows)
        windows_ahead = max(1, self._blocks.limits.unread_blocks // window_blocks)
        # Wait until half of the prefetched windows are used: requests for more windows are larger
        # and fewer.
        if requested.stop - 1 - window <= windows_ahead // 2:
            self._request_windows(epoch, lanes, requested, stop=window + 1 + windows_ahead)

    def _request_windows(
        self, epoch: EpochOrder, lanes: range, requested: _RequestedWindows, *, stop: int
    ) -> None:
        """Start to fetch the windows before ``stop`` that were not requested yet."""
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
        """Return for each block whether lanes read it in a window or later."""
        is_needed = np.zeros(self.split.rows // self.manifest.block_rows + 1, np.bool_)
        if self.row_ranges is None:
            for lane in lanes:
                low, high = epoch.order.lane_bounds(lane)
                starts, _ = epoch.ranges(low + window * epoch.order.window_rows, high)
                is_needed[starts // self.manifest.block_rows] = True
        return is_needed

    @cached_property
    def _source(self) -> _Source:
        return _Source(
            tuple(files.inside(self.directory, shard.path) for shard in self.split.shards),
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
        return PrefetchedBlocks(self._source.blocks, limits)
