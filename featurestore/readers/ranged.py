"""Records of a split in an object store, fetched by ranges: what a window needs, and what comes next.

Blocks of consecutive rows are fetched whole, each once: the rows that are mixed in a window lie in
them. Of the windows after the one that is read as many are asked for at once as fit into a memory,
so that requests are few.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from featurestore.readers.aheadblocks import AheadBlocks, Room
from featurestore.readers.memory import Memory
from featurestore.readers.order import EpochOrder, Rows
from featurestore.readers.shardfiles import ROW_BITS, ROW_MASK, ShardFiles
from featurestore.storage import files

Records = npt.NDArray[np.uint8]

_EPOCHS_KEPT = 2


@dataclass(frozen=True)
class _Source:
    """Where the records of a split lie, for requests that outlive nobody's interest in them."""

    paths: tuple[str, ...]
    first_rows: Rows
    block_rows: int
    record_bytes: int
    memory: Memory

    def rows_of(self, key: int) -> tuple[int, int]:
        """Return the rows [begin, end) of its shard that a block has."""
        shard, block = key >> ROW_BITS, key & ROW_MASK
        first, stop = self.first_rows[shard : shard + 2].tolist()
        begin = max(first, block * self.block_rows)
        return begin - first, min(stop, (block + 1) * self.block_rows) - first

    def rows(self, shard: int, begin: int, end: int) -> Records:
        """Return rows of a shard."""
        found = np.empty((end - begin, self.record_bytes), np.uint8)
        self._fill(shard, begin, [found])
        return found

    def blocks(self, keys: Sequence[int]) -> list[Records]:
        """Return blocks of one shard that follow one another, each in memory of its own."""
        found = []
        for key in keys:
            begin, end = self.rows_of(key)
            shape = self.block_rows, self.record_bytes
            (block,) = self.memory.borrow([(shape, np.dtype(np.uint8))], purpose="blocks")
            found.append(block[: end - begin])
        self._fill(keys[0] >> ROW_BITS, self.rows_of(keys[0])[0], found)
        return found

    def _fill(self, shard: int, first: int, parts: Sequence[Records]) -> None:
        """Read rows of a shard from ``first`` on into arrays, one after the other."""
        targets = [part.reshape(-1).data for part in parts]
        files.read_into(self.paths[shard], first * self.record_bytes, targets)


@dataclass
class _Reach:
    """How far the windows of some lanes in an epoch were asked for.

    Args:
        stop: The first window that was not.
        later: Of each block of the split whether it is read in that one or after it.
    """

    stop: int
    later: npt.NDArray[np.bool_]


@dataclass
class RangedShardFiles(ShardFiles):
    """The records of a split whose shards are objects; ``records`` and ``slices`` serve threads.

    In memory are at most ``read_blocks`` blocks that were read, ``ahead_bytes`` of those that come
    next (one window at least), and what is on its way. ``memory`` may be that of an epoch before.
    """

    read_blocks: int = 1
    ahead_bytes: int = 1
    memory: Memory = field(default_factory=Memory)
    _reaches: OrderedDict[tuple[int, range], _Reach] = field(default_factory=OrderedDict)

    def records(self, locations: Rows, *, out: Records) -> None:
        """Copy the records at ascending locations into ``out``, (n, record bytes)."""
        if not len(locations):
            return
        rows = locations & ROW_MASK
        shards = locations >> ROW_BITS
        blocks = (self.first_rows[shards] + rows) // self.manifest.block_rows
        keys = (shards << ROW_BITS) + blocks
        changes = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        bounds = [0, *changes.tolist(), len(keys)]
        wanted = keys[bounds[:-1]].tolist()
        found = self._blocks.get(wanted)
        for key, block, (begin, end) in zip(wanted, found, pairwise(bounds), strict=True):
            first = self._source.rows_of(key)[0]
            np.take(
                block.result(), rows[begin:end] - first, axis=0, out=out[begin:end], mode="clip"
            )

    def slices(self, starts: Rows, stops: Rows) -> list[Records]:
        """Return the records of ranges, fetched at once."""
        found = []
        for shard, begin, end in self._parts_of(starts, stops):
            found.append(self._blocks.pool.submit(self._source.rows, shard, begin, end))
        return [each.result() for each in found]

    def expect(self, epoch: EpochOrder, lanes: range, window: int) -> None:
        """Begin to fetch a window that is read now, and then as many of the next as have room."""
        key = (epoch.number, lanes)
        reach = self._reaches.get(key)
        if reach is None or window >= reach.stop:
            reach = _Reach(window, self._read_from(epoch, lanes, window))
            self._reaches[key] = reach
            if len(self._reaches) > _EPOCHS_KEPT:
                self._reaches.popitem(last=False)
            self._ask(epoch, lanes, reach, stop=window + 1)
        order = epoch.order
        of_window = len(lanes) * (order.window_rows // order.block_rows)
        ahead = max(1, self._blocks.room.ahead // of_window)
        # Half of them at once: the more are asked for together, the fewer requests.
        if reach.stop - 1 - window <= ahead // 2:
            self._ask(epoch, lanes, reach, stop=window + 1 + ahead)

    def _ask(self, epoch: EpochOrder, lanes: range, reach: _Reach, *, stop: int) -> None:
        """Begin to fetch the windows before ``stop`` that were not asked for yet."""
        longest = max(epoch.windows(lane) for lane in lanes)
        keys = set()
        for window in range(reach.stop, min(stop, longest)):
            for lane in lanes:
                for shard, begin, end in self._parts_of(*epoch.window_ranges(lane, window)):
                    first = int(self.first_rows[shard])
                    size = self.manifest.block_rows
                    for block in range((first + begin) // size, (first + end - 1) // size + 1):
                        keys.add((shard << ROW_BITS) + block)
                        reach.later[block] = False
        reach.stop = max(stop, reach.stop)
        if keys:
            self._blocks.expect(sorted(keys), reach.later)

    def _read_from(self, epoch: EpochOrder, lanes: range, window: int) -> npt.NDArray[np.bool_]:
        """Return of each block whether lanes read it in a window or later."""
        found = np.zeros(self.split.rows // self.manifest.block_rows + 1, np.bool_)
        if self.kept is None:
            for lane in lanes:
                low, high = epoch.order.lane_bounds(lane)
                starts, _ = epoch.ranges(low + window * epoch.order.window_rows, high)
                found[starts // self.manifest.block_rows] = True
        return found

    @cached_property
    def _source(self) -> _Source:
        paths = []
        for shard in self.split.shards:
            paths.append(files.inside(self.directory, shard.path))
        return _Source(
            tuple(paths),
            self.first_rows,
            self.manifest.block_rows,
            self.record_bytes,
            self.memory,
        )

    @cached_property
    def _blocks(self) -> AheadBlocks:
        block_bytes = self.manifest.block_rows * self.record_bytes
        room = Room.of(block_bytes=block_bytes, ahead_bytes=self.ahead_bytes, read=self.read_blocks)
        return AheadBlocks(self._source.blocks, room)
