"""The shard files of one split: checked against the manifest, opened when needed, read by canonical row."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from featurestore.readers.order import Rows
from featurestore.storage import files

OPEN_READERS = 64
OPEN_MAPS = 4096
_MANY = 64
_CHECKERS = 16
PLACE_BITS = 40


@dataclass
class ShardFiles:
    """Access to the rows of a split through its format; records serve many threads, ``read`` serves one."""

    directory: str
    manifest: Manifest
    split: ManifestSplit
    format: DatasetFormat
    access: RecordAccess | None
    _maps: OrderedDict[int, npt.NDArray[np.uint8]] = field(default_factory=OrderedDict)
    _readers: OrderedDict[int, ShardReader] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def first_rows(self) -> Rows:
        """The canonical row at which each shard begins, and the number of rows."""
        return np.array(
            [*(shard.first_row for shard in self.split.shards), self.split.rows], dtype=np.int64
        )

    def places(self, starts: Rows, stops: Rows) -> Rows:
        """Return the places of the rows of ranges, one after the other: shard and row in it, as one number each."""
        parts = [
            np.arange(begin, end, dtype=np.int64) + (shard << PLACE_BITS)
            for shard, begin, end in self._cuts(starts, stops)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def records(self, places: Rows, *, out: npt.NDArray[np.uint8]) -> None:
        """Copy the records at ascending places into ``out``, (n, record bytes)."""
        shards, offsets = places >> PLACE_BITS, places & ((1 << PLACE_BITS) - 1)
        edges = [0, *(np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist(), len(places)]
        for begin, end in pairwise(edges):
            if begin < end:
                # "clip" writes into ``out`` at once; no place is beyond its shard, whose rows were counted.
                mine = offsets[begin:end]
                np.take(
                    self._map(int(shards[begin])), mine, axis=0, out=out[begin:end], mode="clip"
                )

    def slices(self, starts: Rows, stops: Rows) -> list[npt.NDArray[np.uint8]]:
        """Return the records of ranges as parts of the shards' memory maps."""
        return [self._map(shard)[begin:end] for shard, begin, end in self._cuts(starts, stops)]

    def read(self, starts: Rows, stops: Rows, columns: list[str]) -> Any:
        """Return the rows of ranges, one after the other, as an Arrow table."""
        import pyarrow as pa

        batches = [
            self._reader(shard).read(begin, end, columns)
            for shard, begin, end in self._cuts(starts, stops)
        ]
        if not batches:
            batches.append(self._reader(0).read(0, 0, columns))
        return pa.Table.from_batches(batches)

    def _cuts(self, starts: Rows, stops: Rows) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, begin, end in it) for ranges of canonical rows."""
        firsts = self.first_rows
        shards = np.searchsorted(firsts, starts, side="right") - 1
        for start, stop, first_shard in zip(
            starts.tolist(), stops.tolist(), shards.tolist(), strict=True
        ):
            shard = first_shard
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
            check_shard(self.directory, entry)
            known = self.access.records(os.path.join(self.directory, entry.path))  # type: ignore[union-attr]
            self._check_rows(entry, len(known))
            self._maps[shard] = known
            while len(self._maps) > OPEN_MAPS:
                self._maps.popitem(last=False)
        return known

    def _reader(self, shard: int) -> ShardReader:
        known = self._readers.get(shard)
        if known is None:
            entry = self.split.shards[shard]
            check_shard(self.directory, entry)
            known = self.format.open_shard(
                os.path.join(self.directory, entry.path), layout=self.manifest.layout
            )
            self._check_rows(entry, known.rows)
            self._readers[shard] = known
            while len(self._readers) > OPEN_READERS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(shard)
        return known

    def _check_rows(self, entry: ManifestShard, rows: int) -> None:
        if rows != entry.rows:
            raise DatasetDamaged(
                f"{os.path.join(self.directory, entry.path)!r} has {rows} rows, the manifest says {entry.rows}.",
                hint="TrainingDataset.open(path).verify() re-reads everything",
            )


def check_shards(directory: str, split: ManifestSplit) -> None:
    """Raise DatasetDamaged unless every shard of a split exists with the size that the manifest says."""

    def check(shards: Sequence[ManifestShard]) -> None:
        for shard in shards:
            check_shard(directory, shard)

    if len(split.shards) <= _MANY:
        check(split.shards)
        return
    # On a network file system each look takes a round trip. A task is many shards: to submit it costs more than a look.
    size = -(-len(split.shards) // (4 * _CHECKERS))
    with ThreadPoolExecutor(_CHECKERS) as pool:
        for _ in pool.map(
            check, [split.shards[at : at + size] for at in range(0, len(split.shards), size)]
        ):
            pass


def check_shard(directory: str, shard: ManifestShard) -> None:
    """Raise DatasetDamaged unless a shard exists with its size."""
    path = files.inside(directory, shard.path)
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise DatasetDamaged(
            f"Shard {path!r} cannot be read: {error.strerror or error}.",
            hint="restore it, or make the dataset again",
        ) from error
    if size != shard.bytes:
        raise DatasetDamaged(
            f"Shard {path!r} has {size} bytes, the manifest says {shard.bytes}: it was changed or cut off.",
            hint="restore it, or make the dataset again",
        )
