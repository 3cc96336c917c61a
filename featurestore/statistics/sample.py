"""The sample: the distinct rows of the smallest hashes, each with the number of its copies.

Which rows it holds depends on the rows alone, not on their order, cut or engine, and two samples
merge into the sample of both. A hash that is still held has been held since its first row, so its
copies are counted exactly. Below the limit nothing is left out and the sample is the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featurestore.model.arrow_rows import values_at
from featurestore.statistics.kinds import CountedColumn
from featurestore.statistics.values import beginning_of, lengths_of

MOST_ROWS = 25_000
# A wide table keeps fewer rows: each of its cells is sorted.
_MOST_CELLS = 3_200_000
_FEWEST_ROWS = 10_000
# Longer texts are held as their beginning and a hash, which is enough to count and to show them.
LONGEST_TEXT = 256
_TEXT_BEGINNING = 200
_ALL_HASHES = np.uint64(2**64 - 1)


def sample_limit(columns: int) -> int:
    """Return how many distinct rows a sample of so many columns holds at most.

    >>> sample_limit(20), sample_limit(640)
    (25000, 10000)
    """
    return min(MOST_ROWS, max(_FEWEST_ROWS, _MOST_CELLS // max(columns, 1)))


@dataclass
class Sample:
    """Rows by hash. ``bound`` is the greatest hash that is let in.

    ``cut`` says that rows were left out.

    Parts are unsorted until ``compact``; then there is one part, sorted by hash, at most ``limit``
    rows.
    """

    schema: pa.Schema
    limit: int
    bound: np.uint64 = _ALL_HASHES
    cut: bool = False
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)
    copies: list[NDArray[np.int64]] = field(default_factory=list)
    parts: list[pa.RecordBatch] = field(default_factory=list)
    is_compact: bool = False

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
        self.is_compact = False
        if self.held > 2 * self.limit:
            self.compact()

    def merge(self, other: Sample) -> None:
        """Take in another sample of the same schema."""
        self.bound = min(self.bound, other.bound)
        self.cut = self.cut or other.cut
        for hashes, copies, rows in zip(other.hashes, other.copies, other.parts, strict=True):
            self.append(hashes, copies, rows)

    def compact(self) -> None:
        """Put copies together and keep the smallest hashes."""
        if self.is_compact or not self.hashes:
            return
        hashes, copies = np.concatenate(self.hashes), np.concatenate(self.copies)
        order = np.argsort(hashes)
        if self.cut:
            order = order[: np.searchsorted(hashes, self.bound, side="right", sorter=order)]
        first = _run_starts(hashes[order])
        counts = copies[:0]
        if len(first):
            counts = np.add.reduceat(copies[order], first)
        if len(first) > self.limit:
            first, counts = first[: self.limit], counts[: self.limit]
            self.cut = True
        chosen = order[first]
        if self.cut and len(chosen) == self.limit:
            self.bound = hashes[chosen[-1]]
        self.hashes, self.copies = [hashes[chosen]], [counts]
        self.parts = [_take(self.parts, chosen)]
        self.is_compact = True

    def rows(self) -> pa.RecordBatch:
        """Return the rows of a compacted sample."""
        if not self.parts:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        return self.parts[0]

    def weights(self) -> NDArray[np.int64]:
        """Return the copies of each row of a compacted sample."""
        if not self.copies:
            return np.empty(0, dtype=np.int64)
        return self.copies[0]


def _run_starts(ordered: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return where each run of equal values begins."""
    if not len(ordered):
        return np.empty(0, dtype=np.intp)
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def sample_schema(columns: tuple[CountedColumn, ...]) -> pa.Schema:
    """Return the schema of sampled rows.

    Binaries and lists as their lengths, structs not at all.
    """
    fields = []
    for each in columns:
        if each.kind in ("binary", "list"):
            fields.append(pa.field(each.name, pa.int64()))
        elif each.kind != "struct":
            fields.append(pa.field(each.name, each.type))
    return pa.schema(fields)


def drawing_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return what decides whether the rows of a batch are drawn: lengths instead of lists."""
    columns = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        column = batch.column(name)
        if column.type != kind and not pa.types.is_dictionary(column.type):
            column = _lengths(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def sampled_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of ``drawing_rows`` as the sample keeps them.

    Without dictionaries and the ends of long texts.
    """
    columns = []
    for column in rows.columns:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_string(column.type) and column.nbytes > LONGEST_TEXT * len(column) // 8:
            column = _shorten(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _lengths(column: pa.Array) -> pa.Array:
    """Return the lengths of the values, null where the value is."""
    if not column.null_count:
        return pa.array(lengths_of(column))
    lengths = np.zeros(len(column), dtype=np.int64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    lengths[valid] = lengths_of(column)
    return pa.array(lengths, mask=~valid)


def _shorten(column: pa.Array) -> pa.Array:
    too_long = pc.fill_null(pc.greater(pc.binary_length(column), LONGEST_TEXT), False)
    if not pc.any(too_long).as_py():
        return column
    import hashlib

    short = []
    for row in np.flatnonzero(too_long):
        text = column[int(row)]
        digest = hashlib.sha256(text.as_buffer()).hexdigest()[:16]
        short.append(f"{beginning_of(text, _TEXT_BEGINNING)}…{digest}")
    return pc.replace_with_mask(column, too_long, pa.array(short, column.type))


def _take(parts: list[pa.RecordBatch], chosen: NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows by their number over all parts.

    Whole arrays are joined first, chunked takes are slow.
    """
    schema = parts[0].schema
    indices = pa.array(chosen)

    columns = []
    for index in range(len(schema)):
        chunks = [part.column(index) for part in parts]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        columns.append(values_at(column, indices))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
