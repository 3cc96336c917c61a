"""The shard files of one split.

Checked against the manifest, opened when needed, read by canonical row.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import DatasetDamaged
from featurestore.model.manifest import Manifest, ManifestShard, ManifestSplit
from featurestore.plugins.format import DatasetFormat, RecordAccess, ShardReader
from featurestore.readers.order import EpochOrder, Rows
from featurestore.storage import files
from featurestore.storage.location import is_uri
from featurestore.storage.shardcache import ShardCache, local_path

_MOST_OPEN_READERS = 64
_MOST_OPEN_MAPS = 4096
_FEW_SHARDS = 64
_CHECKING_THREADS = 16
_RESTORE = "restore it, or make the dataset again"
# A location is the number of a shard above these bits and a row in it below them.
ROW_BITS = 40
ROW_MASK = (1 << ROW_BITS) - 1

RowRanges = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of canonical rows, ascending."""


@dataclass
class ShardFiles:
    """Access to the rows of a split through its format.

    Records serve many threads, ``read`` serves one. With ``kept`` the rows of these ranges alone are
    there, counted anew from 0.
    """

    directory: str
    manifest: Manifest
    split: ManifestSplit
    format: DatasetFormat
    access: RecordAccess | None
    kept: RowRanges | None = None
    cache: ShardCache | None = None
    _maps: OrderedDict[int, npt.NDArray[np.uint8]] = field(default_factory=OrderedDict)
    _readers: OrderedDict[int, ShardReader] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def first_rows(self) -> Rows:
        """The canonical row at which each shard begins, and the number of rows."""
        firsts = [shard.first_row for shard in self.split.shards]
        return np.array([*firsts, self.split.rows], dtype=np.int64)

    def locations(self, starts: Rows, stops: Rows) -> Rows:
        """Return where the rows of ranges lie, one after the other.

        Shard and row in it, as one number each.
        """
        parts = [np.empty(0, dtype=np.int64)]
        for shard, begin, end in self._parts_of(starts, stops):
            parts.append(np.arange(begin, end, dtype=np.int64) + (shard << ROW_BITS))
        return np.concatenate(parts)

    def records(self, locations: Rows, *, out: npt.NDArray[np.uint8]) -> None:
        """Copy the records at ascending locations into ``out``, (n, record bytes)."""
        shards, rows = locations >> ROW_BITS, locations & ROW_MASK
        changes = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        for begin, end in pairwise([0, *changes.tolist(), len(locations)]):
            if begin == end:
                continue
            # "clip" writes into ``out`` at once; no row is beyond its shard, whose rows were
            # counted.
            records = self._map(int(shards[begin]))
            np.take(records, rows[begin:end], axis=0, out=out[begin:end], mode="clip")

    def slices(self, starts: Rows, stops: Rows) -> list[npt.NDArray[np.uint8]]:
        """Return the records of ranges as parts of the shards' memory maps."""
        return [self._map(shard)[begin:end] for shard, begin, end in self._parts_of(starts, stops)]

    def expect(self, epoch: EpochOrder, lanes: range, window: int) -> None:
        """Say that a window of lanes is read now; records in memory maps need no time to come."""

    @property
    def record_bytes(self) -> int:
        """The width of records of one width, 0 of others."""
        return 0 if self.access is None else self.access.record_bytes

    def read(self, starts: Rows, stops: Rows, columns: list[str]) -> Any:
        """Return the rows of ranges, one after the other, as an Arrow table."""
        import pyarrow as pa

        batches = []
        for shard, begin, end in self._parts_of(starts, stops):
            batches.append(self._reader(shard).read(begin, end, columns))
        if not batches:
            batches.append(self._reader(0).read(0, 0, columns))
        return pa.Table.from_batches(batches)

    def _parts_of(self, starts: Rows, stops: Rows) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, begin, end in it) for ranges of canonical rows."""
        if self.kept is not None:
            starts, stops = stored_ranges(self.kept, starts, stops)
        firsts = self.first_rows
        shards = np.searchsorted(firsts, starts, side="right") - 1
        ranges = zip(starts.tolist(), stops.tolist(), shards.tolist(), strict=True)
        for start, stop, shard in ranges:
            while start < stop:
                first, end = int(firsts[shard]), min(stop, int(firsts[shard + 1]))
                if start < end:
                    yield shard, start - first, end - first
                    start = end
                shard += 1

    def close(self) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._maps.clear()

    def _map(self, shard: int) -> npt.NDArray[np.uint8]:
        known = self._maps.get(shard)
        if known is not None:
            return known
        with self._lock:
            entry = self.split.shards[shard]
            with self._local(entry) as path:
                known = self.access.records(path)  # type: ignore[union-attr]
            _check_rows(self.directory, entry, len(known))
            self._maps[shard] = known
            while len(self._maps) > _MOST_OPEN_MAPS:
                self._maps.popitem(last=False)
        return known

    def _reader(self, shard: int) -> ShardReader:
        known = self._readers.get(shard)
        if known is None:
            known = self._readers[shard] = self._open(self.split.shards[shard])
            while len(self._readers) > _MOST_OPEN_READERS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(shard)
        return known

    def _open(self, entry: ManifestShard) -> ShardReader:
        with self._local(entry) as path:
            reader = self.format.open_shard(path, layout=self.manifest.layout)
        _check_rows(self.directory, entry, reader.rows)
        return reader

    def _local(self, entry: ManifestShard) -> AbstractContextManager[str]:
        """Give the path of a shard on this machine, or of its copy here, to open it."""
        if self.cache is None and not is_uri(self.directory):
            check_shard(self.directory, entry)
        return local_path(self.directory, entry, self.cache)

    def check_rows(self) -> None:
        """Raise DatasetDamaged unless files hold as many rows as the manifest says.

        A reader's memory and time depend on these numbers, so they are compared before an order is
        made of them. Records of one width are counted by their bytes. Of other shards the one with
        the most rows is opened: the others are bounded by it, and compared when they are opened.
        """
        if self.access is not None:
            width = self.access.record_bytes
            for shard in self.split.shards:
                if shard.rows * width != shard.bytes:
                    _check_rows(self.directory, shard, shard.bytes // width)
            return
        longest = max(self.split.shards, key=lambda shard: shard.rows, default=None)
        if longest is not None:
            self._open(longest).close()


def stored_ranges(kept: RowRanges, starts: Rows, stops: Rows) -> tuple[Rows, Rows]:
    """Return the canonical rows of ranges that are counted among kept rows alone.

    >>> starts, stops = stored_ranges(((0, 2), (5, 9)), np.array([1]), np.array([4]))
    >>> starts.tolist(), stops.tolist()
    ([1, 5], [2, 7])
    """
    begins: list[int] = []
    ends: list[int] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        passed = 0
        for first, end in kept:
            low, high = max(start, passed), min(stop, passed + end - first)
            if low < high:
                begins.append(first + low - passed)
                ends.append(first + high - passed)
            passed += end - first
    return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)


def _check_rows(directory: str, shard: ManifestShard, rows: int) -> None:
    if rows != shard.rows or rows > ROW_MASK:
        raise DatasetDamaged(
            f"{os.path.join(directory, shard.path)!r} has {rows} rows, the manifest says "
            f"{shard.rows}.",
            hint="TrainingDataset.open(path).verify() re-reads everything",
        )


def check_shards(directory: str, split: ManifestSplit) -> None:
    """Raise DatasetDamaged unless every shard of a split has the size that the manifest says."""
    if is_uri(directory):
        sizes = files.sizes_below(os.path.join(directory, split.name))
        for shard in split.shards:
            _check_size(shard, files.inside(directory, shard.path), sizes)
        return

    def check(shards: Sequence[ManifestShard]) -> None:
        for shard in shards:
            check_shard(directory, shard)

    if len(split.shards) <= _FEW_SHARDS:
        check(split.shards)
        return
    # On a network file system each look takes a round trip. A task is many shards: to submit it
    # costs more than a look.
    size = -(-len(split.shards) // (4 * _CHECKING_THREADS))
    tasks = [split.shards[start : start + size] for start in range(0, len(split.shards), size)]
    with ThreadPoolExecutor(_CHECKING_THREADS) as pool:
        list(pool.map(check, tasks))


def check_shard(directory: str, shard: ManifestShard) -> None:
    """Raise DatasetDamaged unless a shard exists with its size."""
    path = files.inside(directory, shard.path)
    try:
        size = files.status(path).size
    except OSError as error:
        raise DatasetDamaged(
            f"Shard {path!r} cannot be read: {error.strerror or error}.",
            hint=_RESTORE,
        ) from error
    _check_size(shard, path, {path: size})


def _check_size(shard: ManifestShard, path: str, sizes: Mapping[str, int]) -> None:
    if path not in sizes:
        raise DatasetDamaged(f"There is no shard {path!r}.", hint=_RESTORE)
    if sizes[path] != shard.bytes:
        raise DatasetDamaged(
            f"Shard {path!r} has {sizes[path]} bytes, the manifest says {shard.bytes}: it was "
            "changed or cut off.",
            hint=_RESTORE,
        )
