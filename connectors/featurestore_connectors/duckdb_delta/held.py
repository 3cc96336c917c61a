"""Rows of shards that fit in memory: parted as they come, each shard sorted by itself, without the engine's sort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.model.arrow_rows import rows_at, values_at

_MOST_RADIX = 2**16


class HeldShards:
    """The rows of all shards, by shard; ``size`` are their bytes."""

    def __init__(self, *, shard: str, order: Sequence[str]) -> None:
        self._shard, self._order = shard, order
        self._parts: dict[int, list[pa.RecordBatch]] = {}
        self.size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows of any shards."""
        for number, part in pieces(_parted(batch, self._shard), self._shard):
            self._parts.setdefault(number, []).append(part)
        self.size += batch.nbytes

    def numbers(self) -> list[int]:
        """Return the numbers of the shards that have rows."""
        return sorted(self._parts)

    def take(self, number: int) -> pa.RecordBatch:
        """Return the rows of a shard in order, and let go of them."""
        parts = self._parts.pop(number)
        schema = parts[0].schema
        places = pa.array(
            _places([_column(parts, schema.get_field_index(name)) for name in self._order])
        )
        # Column by column, so that no more than one of them is there three times.
        arrays = [values_at(_column(parts, index), places) for index in range(len(schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, each shard's on its own, and let go of them."""
        while self._parts:
            _, parts = self._parts.popitem()
            yield from parts


def pieces(batch: pa.RecordBatch, shard: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch where the shard changes; yield the shards with their rows."""
    numbers = _numbers(batch, shard)
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(cuts):
        if end > start:
            yield int(numbers[start]), batch.slice(start, end - start)


def _numbers(batch: pa.RecordBatch, shard: str) -> npt.NDArray[np.int32]:
    return np.asarray(batch.column(batch.schema.get_field_index(shard)), dtype=np.int32)


def _parted(batch: pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Return the rows with those of each shard side by side."""
    numbers = _numbers(batch, shard)
    if not len(numbers) or numbers.min() == (highest := numbers.max()):
        return batch
    # Of 16 bits numpy sorts by radix.
    short = numbers.astype(np.uint16) if highest < _MOST_RADIX else numbers
    return rows_at(batch, np.argsort(short, kind="stable"))


def _column(parts: Sequence[pa.RecordBatch], index: int) -> pa.Array:
    return (
        parts[0].column(index)
        if len(parts) == 1
        else pa.concat_arrays([part.column(index) for part in parts])
    )


def _places(keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Return which row comes where, ascending by whole numbers, nulls first."""
    if len(keys) == 1 and not keys[0].null_count:
        return np.argsort(keys[0].to_numpy())
    columns = [
        side for key in keys for side in (np.asarray(key.is_valid()), np.asarray(key.fill_null(0)))
    ]
    return np.lexsort(columns[::-1])
