"""Row access to the shard files of a split, which are opened lazily and checked first."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import DatasetDamaged
from featurestore.model.manifest import Manifest, ManifestShard, ManifestSplit
from featurestore.model.threads import independent_tasks
from featurestore.plugins.format import DatasetFormat, RecordAccess, RecordChecksums, ShardReader
from featurestore.readers.order import EpochOrder, Rows
from featurestore.storage import storage_for
from featurestore.storage.mapped import checked_map
from featurestore.storage.shards import PIECE_BYTES, ShardCache, local_path
from featurestore.storage.verified import VerifiedShards, check_beginning

_OPEN_READERS = 64
_OPEN_MAPS = 4096
_SEQUENTIAL_SHARDS = 64
_CHECKING_THREADS = 16
_DAMAGE_HINT = "restore the shard, or create the dataset again"
# The low ROW_BITS bits of a location are the row within a shard, the high bits the shard number.
ROW_BITS = 40
ROW_MASK = (1 << ROW_BITS) - 1

RowRanges = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of canonical rows, ascending."""


@dataclass
class ShardFiles:
    """Access to the rows of a split through its format.

    Methods for records are thread-safe; ``read`` is not. ``row_ranges`` limits the split to the
    rows of these ranges and renumbers them from 0. If ``verify`` is set, ``read`` compares the
    SHA-256 of shards, and ``check_records`` the checksums of records.
    """

    directory: str
    manifest: Manifest
    split: ManifestSplit
    format: DatasetFormat
    access: RecordAccess | None
    row_ranges: RowRanges | None = None
    cache: ShardCache | None = None
    verify: bool = False
    verified: VerifiedShards = field(default_factory=VerifiedShards)
    _maps: OrderedDict[int, npt.NDArray[np.uint8]] = field(default_factory=OrderedDict)
    _readers: OrderedDict[int, ShardReader] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def first_rows(self) -> Rows:
        """The first canonical row of each shard, followed by the total number of rows."""
        firsts = [shard.first_row for shard in self.split.shards]
        return np.array([*firsts, self.split.rows], dtype=np.int64)

    def locations(self, starts: Rows, stops: Rows) -> Rows:
        """Return a location for each row of the ranges: shard and row in one integer."""
        locations = [
            np.arange(begin, end, dtype=np.int64) + (shard << ROW_BITS)
            for shard, begin, end in self._shard_ranges(starts, stops)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *locations])

    def records(self, locations: Rows, *, out: npt.NDArray[np.uint8]) -> None:
        """Copy the records at ascending locations into ``out``, of shape (n, record bytes)."""
        shards, rows = locations >> ROW_BITS, locations & ROW_MASK
        changes = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        for begin, end in pairwise([0, *changes.tolist(), len(locations)]):
            if begin == end:
                continue
            # mode="clip" writes into ``out`` without an intermediate buffer. All rows are in
            # bounds, because the row count of the shard was checked.
            records = self._records_of_shard(int(shards[begin]))
            with checked_map(records):
                np.take(records, rows[begin:end], axis=0, out=out[begin:end], mode="clip")

    @contextmanager
    def slices(self, starts: Rows, stops: Rows) -> Iterator[list[npt.NDArray[np.uint8]]]:
        """Provide the records of row ranges as views of memory-mapped shards.

        Raises:
            DatasetDamaged: At the end of the block, if a shard was truncated in the meantime.
        """
        ranges = list(self._shard_ranges(starts, stops))
        maps = {shard: self._records_of_shard(shard) for shard, _, _ in ranges}
        with ExitStack() as checks:
            for records in maps.values():
                checks.enter_context(checked_map(records))
            yield [maps[shard][begin:end] for shard, begin, end in ranges]

    def check_records(self, records: npt.NDArray[np.uint8], locations: Rows) -> None:
        """Raise DatasetDamaged unless records match their checksums; a no-op without ``verify``.

        ``records`` was copied from ``locations``. Shards of formats without such checksums were
        verified when they were mapped.
        """
        if not (self.verify and isinstance(self.access, RecordChecksums)):
            return
        damaged_rows = self.access.damaged_records(records)
        if len(damaged_rows):
            location = int(locations[damaged_rows[0]])
            shard = self.split.shards[location >> ROW_BITS]
            raise DatasetDamaged(
                f"Row {location & ROW_MASK:,} of the shard "
                f"{os.path.join(self.directory, shard.path)!r} does not match its checksum."
            )

    def expect(self, epoch: EpochOrder, lanes: range, window: int) -> None:
        """Announce the window to read next; a no-op, since memory maps need no prefetching."""

    @property
    def record_bytes(self) -> int:
        """Size of a fixed-width record in bytes; 0 for other layouts."""
        return 0 if self.access is None else self.access.record_bytes

    def read(self, starts: Rows, stops: Rows, columns: list[str]) -> Any:
        """Read row ranges as an Arrow table."""
        import pyarrow as pa

        batches = [
            self._read_rows(shard, begin, end, columns)
            for shard, begin, end in self._shard_ranges(starts, stops)
        ]
        if not batches:
            # An empty table needs the schema of the columns.
            batches.append(self._reader(0).read(0, 0, columns))
        return pa.Table.from_batches(batches)

    def _read_rows(self, shard: int, begin: int, end: int, columns: list[str]) -> Any:
        """Read rows of a shard; with ``verify``, again if the shard changed in the meantime."""
        while True:
            batch = self._reader(shard).read(begin, end, columns)
            if not self._must_verify_again(shard):
                return batch

    def _shard_ranges(self, starts: Rows, stops: Rows) -> Iterator[tuple[int, int, int]]:
        """Split canonical row ranges by shard; yield (shard, first row, end row)."""
        if self.row_ranges is not None:
            starts, stops = to_canonical_ranges(self.row_ranges, starts, stops)
        firsts = self.first_rows
        shards = np.searchsorted(firsts, starts, side="right") - 1
        ranges = zip(starts.tolist(), stops.tolist(), shards.tolist(), strict=True)
        for start, stop, shard in ranges:
            while start < stop:
                first, end = int(firsts[shard]), min(stop, int(firsts[shard + 1]))
                # A shard without rows has the same first row as the next shard.
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

    def _records_of_shard(self, shard: int) -> npt.NDArray[np.uint8]:
        """Return the memory-mapped records of a shard."""
        # The lookup needs no lock: in the worst case, two threads map the same shard.
        records = self._maps.get(shard)
        if records is not None:
            return records
        with self._lock:
            entry = self.split.shards[shard]
            with self._local_path(entry) as path:
                if self.verify and not isinstance(self.access, RecordChecksums):
                    self.verified.verify(entry, path, is_copy=not self._reads_originals)
                records = self.access.records(path)  # type: ignore[union-attr]
            _check_rows(self.directory, entry, len(records))
            if self.verify:
                with checked_map(records):
                    self._check_beginning(entry, records.reshape(-1)[:PIECE_BYTES])
            self._maps[shard] = records
            # Arrays in use keep an evicted map open.
            while len(self._maps) > _OPEN_MAPS:
                self._maps.popitem(last=False)
        return records

    def _check_beginning(self, entry: ManifestShard, data: npt.NDArray[np.uint8]) -> None:
        path = os.path.join(self.directory, entry.path)
        check_beginning(entry, path, data.data, self.manifest.prefixes.get(entry.path, []))

    def _reader(self, shard: int) -> ShardReader:
        reader = self._readers.get(shard)
        if reader is not None and self._must_verify_again(shard):
            reader = None
            self._readers.pop(shard).close()
        if reader is None:
            reader = self._readers[shard] = self._open_reader(self.split.shards[shard])
            while len(self._readers) > _OPEN_READERS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(shard)
        return reader

    def _open_reader(self, entry: ManifestShard) -> ShardReader:
        with self._local_path(entry) as path:
            if self.verify:
                self.verified.verify(entry, path, is_copy=not self._reads_originals)
            reader = self.format.open_shard(path, layout=self.manifest.layout)
        _check_rows(self.directory, entry, reader.rows)
        return reader

    def _must_verify_again(self, shard: int) -> bool:
        """Return whether a verified shard has changed; cached copies are never changed in place."""
        if not (self.verify and self._reads_originals):
            return False
        entry = self.split.shards[shard]
        path = storage_for(self.directory).resolve_inside(self.directory, entry.path)
        return not self.verified.is_unchanged(entry, path)

    @property
    def _reads_originals(self) -> bool:
        """Whether shards are read from the dataset and not from cached copies."""
        return self.cache is None and storage_for(self.directory).is_local

    def _local_path(self, entry: ManifestShard) -> AbstractContextManager[str]:
        """Yield the local path of a shard, which is cached if it is remote."""
        if self._reads_originals:
            check_shard(self.directory, entry)
        return local_path(self.directory, entry, self.cache)

    def check_rows(self) -> None:
        """Raise DatasetDamaged unless the row counts of shards match the manifest.

        A reader's memory and time depend on these numbers, so they are checked before the order is
        computed. The file size determines the number of fixed-width records. In other layouts, only
        the shard with the most rows is opened here, since its row count bounds the others; these
        are checked when they are opened.
        """
        if self.access is not None:
            width = self.access.record_bytes
            for shard in self.split.shards:
                if shard.rows * width != shard.bytes:
                    _check_rows(self.directory, shard, shard.bytes // width)
            return
        longest = max(self.split.shards, key=lambda shard: shard.rows, default=None)
        if longest is not None:
            self._open_reader(longest).close()


def to_canonical_ranges(row_ranges: RowRanges, starts: Rows, stops: Rows) -> tuple[Rows, Rows]:
    """Convert ranges of renumbered rows, which count only ``row_ranges``, to canonical ranges.

    >>> starts, stops = to_canonical_ranges(((0, 2), (5, 9)), np.array([1]), np.array([4]))
    >>> starts.tolist(), stops.tolist()
    ([1, 5], [2, 7])
    """
    begins: list[int] = []
    ends: list[int] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        rows_before = 0
        for first, end in row_ranges:
            low, high = max(start, rows_before), min(stop, rows_before + end - first)
            if low < high:
                begins.append(first + low - rows_before)
                ends.append(first + high - rows_before)
            rows_before += end - first
    return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)


def _check_rows(directory: str, shard: ManifestShard, rows: int) -> None:
    # A larger row number would overwrite the shard number of a location.
    if rows != shard.rows or rows > ROW_MASK:
        raise DatasetDamaged(
            f"{os.path.join(directory, shard.path)!r} has {rows} rows, but {shard.rows} in the "
            "manifest.",
            hint="TrainingDataset.open(path).verify() re-reads everything",
        )


def check_shards(directory: str, split: ManifestSplit) -> None:
    """Raise DatasetDamaged unless the size of every shard of a split matches the manifest."""
    storage = storage_for(directory)
    if storage.prefers_listing:
        # One listing replaces a request for each shard.
        sizes = storage.list_sizes(os.path.join(directory, split.name))
        for shard in split.shards:
            _check_size(shard, storage.resolve_inside(directory, shard.path), sizes)
        return

    def check(shards: Sequence[ManifestShard]) -> None:
        for shard in shards:
            check_shard(directory, shard)

    if len(split.shards) <= _SEQUENTIAL_SHARDS:
        check(split.shards)
        return
    # On a network file system each check needs a round trip, so checks run in parallel. Each task
    # checks many shards, because submitting a task takes longer than a check.
    size = -(-len(split.shards) // (4 * _CHECKING_THREADS))
    tasks = [split.shards[start : start + size] for start in range(0, len(split.shards), size)]
    with independent_tasks(_CHECKING_THREADS, "featurestore-shards") as pool:
        list(pool.map(check, tasks))


def check_shard(directory: str, shard: ManifestShard) -> None:
    """Raise DatasetDamaged unless a shard exists and its size matches the manifest."""
    storage = storage_for(directory)
    path = storage.resolve_inside(directory, shard.path)
    try:
        size = storage.status(path).size
    except OSError as error:
        raise DatasetDamaged(
            f"Shard {path!r} cannot be read: {error.strerror or error}.", hint=_DAMAGE_HINT
        ) from error
    _check_size(shard, path, {path: size})


def _check_size(shard: ManifestShard, path: str, sizes: Mapping[str, int]) -> None:
    if path not in sizes:
        raise DatasetDamaged(f"Shard {path!r} is missing.", hint=_DAMAGE_HINT)
    if sizes[path] != shard.bytes:
        raise DatasetDamaged(
            f"Shard {path!r} has {sizes[path]} bytes, but {shard.bytes} in the manifest: it was "
            "changed or truncated.",
            hint=_DAMAGE_HINT,
        )
