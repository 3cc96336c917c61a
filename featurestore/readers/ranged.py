"""Records of a split in an object store, fetched by ranges: what a window needs, and the next one's.

Blocks of consecutive rows are fetched whole, each once for a window: the rows that are mixed in it
lie in them. Requests run beside each other, those to one shard in one call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from featurestore.readers.order import PADDING, Rows
from featurestore.readers.shardfiles import ROW_BITS, ROW_MASK, ShardFiles
from featurestore.storage import files

Records = npt.NDArray[np.uint8]

_FETCHES = 8
# Blocks of one shard that one call asks for, so that a window's requests run side by side.
_BLOCKS_AT_ONCE = 16


@dataclass
class RangedShardFiles(ShardFiles):
    """The records of a split whose shards are objects; ``records`` and ``slices`` serve threads.

    In memory are at most ``most_blocks`` blocks, and what was asked for and is on its way.
    """

    most_blocks: int = 1
    reads_ahead: ClassVar[bool] = True
    _blocks: OrderedDict[int, Future[Records]] = field(default_factory=OrderedDict)
    _blocks_lock: Lock = field(default_factory=Lock)
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_FETCHES, thread_name_prefix="featurestore-get")
    )

    def records(self, locations: Rows, *, out: Records) -> None:
        """Copy the records at ascending locations into ``out``, (n, record bytes)."""
        if not len(locations):
            return
        keys = self._keys(locations)
        changes = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        bounds = [0, *changes.tolist(), len(keys)]
        wanted = keys[bounds[:-1]].tolist()
        blocks = self._fetched(wanted)
        rows = locations & ROW_MASK
        for key, block, (begin, end) in zip(wanted, blocks, pairwise(bounds), strict=True):
            first = self._range(key)[1]
            np.take(
                block.result(), rows[begin:end] - first, axis=0, out=out[begin:end], mode="clip"
            )

    def slices(self, starts: Rows, stops: Rows) -> list[Records]:
        """Return the records of ranges, fetched at once."""
        found = []
        for shard, begin, end in self._parts_of(starts, stops):
            found.append(self._pool.submit(self._fetch, shard, [(begin, end)]))
        return [each.result()[0] for each in found]

    def expect(self, locations: Rows) -> None:
        """Begin to fetch the blocks of locations that are needed soon."""
        there = np.sort(locations[locations != PADDING], axis=None)
        self._fetched(np.unique(self._keys(there)).tolist())

    def _keys(self, locations: Rows) -> Rows:
        """Return shard and block of locations, as one number each."""
        shards, rows = locations >> ROW_BITS, locations & ROW_MASK
        blocks = (self.first_rows[shards] + rows) // self.manifest.block_rows
        return (shards << ROW_BITS) + blocks

    def _range(self, key: int) -> tuple[int, int, int]:
        """Return (shard, begin, end in it) of a block's rows."""
        shard, block = key >> ROW_BITS, key & ROW_MASK
        first, stop = self.first_rows[shard : shard + 2].tolist()
        begin = max(first, block * self.manifest.block_rows)
        return shard, begin - first, min(stop, (block + 1) * self.manifest.block_rows) - first

    def _fetched(self, keys: Sequence[int]) -> list[Future[Records]]:
        """Return blocks, on their way or there; those used longest ago are forgotten."""
        with self._blocks_lock:
            by_shard: dict[int, list[int]] = {}
            for key in keys:
                known = self._blocks.get(key)
                if known is None or (known.done() and known.exception() is not None):
                    by_shard.setdefault(key >> ROW_BITS, []).append(key)
            for absent in by_shard.values():
                for start in range(0, len(absent), _BLOCKS_AT_ONCE):
                    self._begin(absent[start : start + _BLOCKS_AT_ONCE])
            found = []
            for key in keys:
                self._blocks.move_to_end(key)
                found.append(self._blocks[key])
            while len(self._blocks) > max(self.most_blocks, len(keys)):
                self._blocks.popitem(last=False)
            return found

    def _begin(self, keys: Sequence[int]) -> None:
        """Begin to fetch blocks of one shard."""
        promises: list[Future[Records]] = []
        for key in keys:
            self._blocks[key] = Future()
            promises.append(self._blocks[key])
        ranges = [self._range(key) for key in keys]

        def fetch() -> None:
            try:
                parts = self._fetch(ranges[0][0], [(begin, end) for _, begin, end in ranges])
            except BaseException as error:  # whoever waits for a block raises it
                for promise in promises:
                    promise.set_exception(error)
                return
            for promise, part in zip(promises, parts, strict=True):
                promise.set_result(part)

        self._pool.submit(fetch)

    def _fetch(self, shard: int, rows: Sequence[tuple[int, int]]) -> list[Records]:
        """Return ranges of rows of a shard."""
        width = self.record_bytes
        path = files.inside(self.directory, self.split.shards[shard].path)
        wanted = [(begin * width, (end - begin) * width) for begin, end in rows]
        found = []
        for data in files.read_ranges(path, wanted):
            found.append(np.frombuffer(data, np.uint8).reshape(-1, width))
        return found
