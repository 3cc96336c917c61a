"""The sample: the distinct rows of the smallest row hashes, each with the number of its copies.

Which rows it holds depends on the rows alone, not on their order, cut or engine, and two samples merge into
the sample of both. A hash that is still held has been held since its first row, so its copies are counted exactly.
Below the limit nothing is left out and the sample is the table.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featurestore.model.arrow_rows import values_at
from featurestore.statistics.kinds import CountedColumn
from featurestore.statistics.values import lengths_of

MOST_ROWS = 1_000_000
# A wide table keeps fewer rows, so that the sample stays below some hundred megabytes.
_MOST_CELLS = 64_000_000
_FEWEST_ROWS = 10_000
# Longer texts are kept as their beginning and a hash, which is enough to count and to show them.
LONGEST_TEXT = 256
_KEPT_TEXT = 200
_ALL = np.uint64(2**64 - 1)


def sample_limit(columns: int) -> int:
    """Return how many distinct rows a sample of so many columns holds at most.

    >>> sample_limit(20), sample_limit(640)
    (1000000, 100000)
    """
    return min(MOST_ROWS, max(_FEWEST_ROWS, _MOST_CELLS // max(columns, 1)))


@dataclass
class Sample:
    """Rows by hash. ``bound`` is the greatest hash that is let in; ``cut`` says that rows were left out.

    Parts are unsorted until ``compact``; then there is one part, sorted by hash, at most ``limit`` rows.
    """

    schema: pa.Schema
    limit: int
    bound: np.uint64 = _ALL
    cut: bool = False
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)
    copies: list[NDArray[np.int64]] = field(default_factory=list)
    parts: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Rows in all parts."""
        return sum(len(each) for each in self.hashes)

    def add(self, hashes: NDArray[np.uint64], rows: pa.RecordBatch) -> None:
        """Take in the rows of a batch; ``rows`` has the schema of the sample."""
        if self.cut:
            wanted = hashes <= self.bound
            if not wanted.all():
                hashes, rows = hashes[wanted], rows.filter(pa.array(wanted))
        if len(hashes):
            self.append(hashes, np.ones(len(hashes), dtype=np.int64), rows)

    def append(
        self, hashes: NDArray[np.uint64], copies: NDArray[np.int64], rows: pa.RecordBatch
    ) -> None:
        """Take in rows with the number of their copies; compacts when twice the limit is held."""
        self.hashes.append(hashes)
        self.copies.append(copies)
        self.parts.append(rows)
        if self.held > 2 * self.limit:
            self.compact()

    def merge(self, other: Sample) -> None:
        """Take in another sample of the same schema."""
        self.bound = min(self.bound, other.bound)
        self.cut = self.cut or other.cut
        for hashes, copies, rows in zip(other.hashes, other.copies, other.parts, strict=True):
            self.append(hashes, copies, rows)

    def compact(self) -> None:
        """Fold copies together and keep the smallest hashes."""
        if not self.hashes:
            return
        hashes, copies = np.concatenate(self.hashes), np.concatenate(self.copies)
        order = np.argsort(hashes)
        if self.cut:
            order = order[: np.searchsorted(hashes, self.bound, side="right", sorter=order)]
        sorted_hashes = hashes[order]
        first = np.flatnonzero(np.concatenate(([True], sorted_hashes[1:] != sorted_hashes[:-1])))[
            : len(order)
        ]
        counts = np.add.reduceat(copies[order], first) if len(first) else copies[:0]
        if len(first) > self.limit:
            first, counts, self.cut = first[: self.limit], counts[: self.limit], True
        kept = order[first]
        if self.cut and len(kept) == self.limit:
            self.bound = hashes[kept[-1]]
        self.hashes, self.copies, self.parts = [hashes[kept]], [counts], [_take(self.parts, kept)]

    def rows(self) -> pa.RecordBatch:
        """Return the rows of a compacted sample."""
        return self.parts[0] if self.parts else pa.RecordBatch.from_pylist([], schema=self.schema)

    def weights(self) -> NDArray[np.int64]:
        """Return the copies of each row of a compacted sample."""
        return self.copies[0] if self.copies else np.empty(0, dtype=np.int64)


def sample_schema(columns: tuple[CountedColumn, ...]) -> pa.Schema:
    """Return the schema of sampled rows: binaries and lists as their lengths, structs not at all."""
    fields = []
    for each in columns:
        if each.kind in ("binary", "list"):
            fields.append(pa.field(each.name, pa.int64()))
        elif each.kind != "struct":
            fields.append(pa.field(each.name, each.type))
    return pa.schema(fields)


def sampled_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch as the sample keeps it."""
    return pa.RecordBatch.from_arrays(
        [_sampled(batch.column(field.name), field) for field in schema], schema=schema
    )


def _sampled(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type != field.type:
        if not column.null_count:
            return pa.array(lengths_of(column))
        lengths = np.zeros(len(column), dtype=np.int64)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        lengths[valid] = lengths_of(column)
        return pa.array(lengths, mask=~valid)
    if pa.types.is_string(column.type) and column.nbytes > LONGEST_TEXT * len(column) // 8:
        return _shorten(column)
    return column


def _shorten(column: pa.Array) -> pa.Array:
    too_long = pc.fill_null(pc.greater(pc.binary_length(column), LONGEST_TEXT), False)
    if not pc.any(too_long).as_py():
        return column
    import hashlib

    short = [
        f"{text[:_KEPT_TEXT]}…{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        for text in column.filter(too_long).to_pylist()
    ]
    return pc.replace_with_mask(column, too_long, pa.array(short, column.type))


def _take(parts: list[pa.RecordBatch], kept: NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows by their number over all parts; whole arrays are joined first, chunked takes are slow."""
    schema = parts[0].schema
    indices = pa.array(kept)

    def taken(index: int) -> pa.Array:
        chunks = [part.column(index) for part in parts]
        return values_at(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks), indices)

    # A pool for each call: one that stays would not survive the fork of a worker.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return pa.RecordBatch.from_arrays(list(pool.map(taken, range(len(schema)))), schema=schema)
