"""The sample: the distinct rows with the smallest hashes, each with the number of its copies.

The sampled rows depend on the rows of the table only, not on their order, partitioning or engine,
and two samples merge into the sample of both tables. A row in the sample has been in it since its
first occurrence, so its copies are counted exactly. Below the limit the sample is the full table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featurestore.arrow.batches import take_values
from featurestore.statistics.kinds import CountedColumn
from featurestore.statistics.values import text_prefix, value_lengths

MAX_ROWS = 25_000
# The sample of a wide table has fewer rows: each of its cells is sorted.
_MAX_CELLS = 3_200_000
_MIN_ROWS = 10_000
# Longer texts are stored as a prefix and a hash, which is enough to count and to display them.
MAX_TEXT_BYTES = 256
_TEXT_PREFIX = 200
_ALL_HASHES = np.uint64(2**64 - 1)


def sample_limit(columns: int) -> int:
    """Return the maximum number of distinct rows in a sample with this many columns.

    >>> sample_limit(20), sample_limit(640)
    (25000, 10000)
    """
    return min(MAX_ROWS, max(_MIN_ROWS, _MAX_CELLS // max(columns, 1)))


@dataclass
class Sample:
    """Distinct rows with the smallest hashes.

    ``bound`` is the largest accepted hash; ``is_truncated`` is True if rows were dropped.


    The batches are unsorted until ``compact``, which merges them into one batch of at most
    ``limit`` rows in the order of their hashes.
    """

    schema: pa.Schema
    limit: int
    bound: np.uint64 = _ALL_HASHES
    is_truncated: bool = False
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)
    copies: list[NDArray[np.int64]] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    is_compact: bool = False

    @property
    def row_count(self) -> int:
        """Rows in all batches, before duplicates are merged."""
        return sum(len(each) for each in self.hashes)

    def add(self, hashes: NDArray[np.uint64], rows: pa.RecordBatch) -> None:
        """Add the rows of a batch; ``rows`` has the schema of the sample."""
        if self.is_truncated:
            is_candidate = hashes <= self.bound
            if not is_candidate.all():
                hashes, rows = hashes[is_candidate], rows.filter(pa.array(is_candidate))
        if len(hashes):
            self.append(hashes, np.ones(len(hashes), dtype=np.int64), rows)

    def append(
        self, hashes: NDArray[np.uint64], copies: NDArray[np.int64], rows: pa.RecordBatch
    ) -> None:
        """Add rows with the number of their copies; compact above twice the limit."""
        self.hashes.append(hashes)
        self.copies.append(copies)
        self.batches.append(rows)
        self.is_compact = False
        if self.row_count > 2 * self.limit:
            self.compact()

    def merge(self, other: Sample) -> None:
        """Add another sample of the same schema."""
        self.bound = min(self.bound, other.bound)
        self.is_truncated = self.is_truncated or other.is_truncated
        for hashes, copies, rows in zip(other.hashes, other.copies, other.batches, strict=True):
            self.append(hashes, copies, rows)

    def compact(self) -> None:
        """Merge copies and keep the rows with the smallest hashes."""
        if self.is_compact or not self.hashes:
            return
        hashes, copies = np.concatenate(self.hashes), np.concatenate(self.copies)
        order = np.argsort(hashes)
        if self.is_truncated:
            order = order[: np.searchsorted(hashes, self.bound, side="right", sorter=order)]
        first = _run_starts(hashes[order])
        counts = copies[:0]
        if len(first):
            counts = np.add.reduceat(copies[order], first)
        if len(first) > self.limit:
            first, counts = first[: self.limit], counts[: self.limit]
            self.is_truncated = True
        kept_rows = order[first]
        if self.is_truncated and len(kept_rows) == self.limit:
            self.bound = hashes[kept_rows[-1]]
        self.hashes, self.copies = [hashes[kept_rows]], [counts]
        self.batches = [_take_rows(self.batches, kept_rows)]
        self.is_compact = True

    def rows(self) -> pa.RecordBatch:
        """Return the rows of a compacted sample."""
        if not self.batches:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        return self.batches[0]

    def weights(self) -> NDArray[np.int64]:
        """Return the copies of each row of a compacted sample."""
        if not self.copies:
            return np.empty(0, dtype=np.int64)
        return self.copies[0]


def _run_starts(ordered: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the start position of each run of equal values."""
    if not len(ordered):
        return np.empty(0, dtype=np.intp)
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def sample_schema(columns: tuple[CountedColumn, ...]) -> pa.Schema:
    """Return the schema of sampled rows: lengths of binaries and lists, no structs."""
    fields = []
    for each in columns:
        if each.kind in ("binary", "list"):
            fields.append(pa.field(each.name, pa.int64()))
        elif each.kind != "struct":
            fields.append(pa.field(each.name, each.type))
    return pa.schema(fields)


def hashable_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns that are hashed for sampling: lengths instead of binaries and lists."""
    columns = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        column = batch.column(name)
        if column.type != kind and not pa.types.is_dictionary(column.type):
            column = _value_lengths(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def sampled_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of ``hashable_rows`` as stored: dictionaries decoded, long texts shortened."""
    columns = []
    for column in rows.columns:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_string(column.type) and column.nbytes > MAX_TEXT_BYTES * len(column) // 8:
            column = _shorten_texts(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _value_lengths(column: pa.Array) -> pa.Array:
    """Return the lengths of the values, null for null values."""
    if not column.null_count:
        return pa.array(value_lengths(column))
    lengths = np.zeros(len(column), dtype=np.int64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    lengths[valid] = value_lengths(column)
    return pa.array(lengths, mask=~valid)


def _shorten_texts(column: pa.Array) -> pa.Array:
    too_long = pc.fill_null(pc.greater(pc.binary_length(column), MAX_TEXT_BYTES), False)
    if not pc.any(too_long).as_py():
        return column
    import hashlib

    shortened = []
    for row in np.flatnonzero(too_long):
        text = column[int(row)]
        digest = hashlib.sha256(text.as_buffer()).hexdigest()[:16]
        shortened.append(f"{text_prefix(text, _TEXT_PREFIX)}…{digest}")
    return pc.replace_with_mask(column, too_long, pa.array(shortened, column.type))


def _take_rows(batches: list[pa.RecordBatch], row_numbers: NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows by their number over all batches."""
    schema = batches[0].schema
    indices = pa.array(row_numbers)
    # Arrays are concatenated first: takes of chunked arrays are slow.
    columns = []
    for index in range(len(schema)):
        chunks = [batch.column(index) for batch in batches]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        columns.append(take_values(column, indices))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
