"""Separate storage for large columns (binaries, lists) while an export is sorted.

The sort moves only the small columns and the row numbers. Large columns that exceed memory are
spooled to a file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.batches import concat_arrays, take_values
from featurestore.storage.spool import BatchFile

ROW = "__fs_row"
# Approximate size of an assembled batch: small enough for CPU caches and for reuse of memory.
# Batches assembled from the file are larger, since each one reads from all chunks.
_BATCH_BYTES = 2 << 20
_BATCH_BYTES_OF_FILE = 64 << 20


class LargeColumns:
    """Large columns in arrival order, indexed by row number.

    ``size`` is the number of bytes in memory.
    """

    def __init__(self) -> None:
        self._schema = pa.schema([])
        self._columns: dict[str, list[pa.Array]] = {}
        self._starts = [0]
        self._file: BatchFile | None = None
        self._lock = threading.Lock()
        self._bytes = 0
        self.size = 0

    @property
    def is_empty(self) -> bool:
        """Whether no large columns are stored."""
        return not self._columns

    @property
    def is_spooled(self) -> bool:
        """Whether the columns are stored in a file."""
        return self._file is not None

    def detach_large(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Store the large columns of a batch; return the small columns with row numbers.

        A batch without large columns is returned unchanged.
        """
        self._schema = batch.schema
        small_fields, small_columns, large_columns = [], [], {}
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if is_large(field.type):
                large_columns[field.name] = column
            else:
                small_fields.append(field)
                small_columns.append(column)
        if not large_columns:
            return batch
        # Row numbers continue over all batches, so that a number alone identifies a value.
        first = self._starts[-1]
        self._append(large_columns)
        small_columns.append(pa.array(np.arange(first, first + batch.num_rows)))
        return pa.RecordBatch.from_arrays(
            small_columns, schema=pa.schema([*small_fields, (ROW, pa.int64())])
        )

    def spool(self, directory: str) -> None:
        """Move the stored columns to a file in a directory, and store future columns there, too."""
        schema = self._schema_of(self._columns)
        self._file = BatchFile(directory, schema)
        for arrays in zip(*self._columns.values(), strict=True):
            self._file.write(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
        for column_arrays in self._columns.values():
            column_arrays.clear()
        self.size = 0

    def close(self) -> None:
        """Close and remove the file."""
        if self._file is not None:
            self._file.close()

    def reattach(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows of ``detach_large``, in any order, with their large columns attached again."""
        if self.is_empty:
            yield batch
            return
        size = _BATCH_BYTES_OF_FILE if self.is_spooled else _BATCH_BYTES
        step = max(1, size * self._starts[-1] // max(self._bytes, 1))
        for start in range(0, batch.num_rows, step):
            rows = batch.slice(start, step)
            arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
            yield self.assemble(arrays)

    def assemble(self, arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return a complete batch from the small columns and row numbers of rows in any order."""
        columns = []
        for name in self._schema.names:
            if name in self._columns:
                columns.append(self._values(name, arrays[ROW]))
            else:
                columns.append(arrays[name])
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _append(self, large: Mapping[str, pa.Array]) -> None:
        batch = pa.RecordBatch.from_arrays(list(large.values()), schema=self._schema_of(large))
        self._bytes += batch.nbytes
        self._starts.append(self._starts[-1] + batch.num_rows)
        if self._file is not None:
            self._file.write(batch)
            return
        self.size += batch.nbytes
        for name, column in large.items():
            self._columns.setdefault(name, []).append(column)

    def _schema_of(self, names: Iterable[str]) -> pa.Schema:
        return pa.schema([self._schema.field(name) for name in names])

    def _values(self, name: str, rows: pa.Array) -> pa.Array:
        """Return the values of a large column at row numbers in any order."""
        with self._lock:
            # Several writers may start at the same time; the first one combines the chunks or maps
            # the file.
            if self._file is not None and not self._columns[name]:
                self._map(self._file)
            elif self._file is None and len(self._columns[name]) > 1:
                self._columns[name] = [concat_arrays(self._columns[name])]
            chunks = self._columns[name]
        if self._file is None:
            # Arrow's own pool returns memory to the system immediately, and requesting it again
            # takes longer than copying the values.
            return take_values(chunks[0], rows, pool=pa.system_memory_pool())
        return self._gather(chunks, np.asarray(rows))

    def _map(self, file: BatchFile) -> None:
        """Memory-map the completed file."""
        batches = file.read()
        for number, name in enumerate(self._columns):
            self._columns[name] = [batch.column(number) for batch in batches]

    def _gather(self, chunks: list[pa.Array], rows: npt.NDArray[np.int64]) -> pa.Array:
        """Return the values of rows in any order, reading each chunk of the file once."""
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        boundaries = np.searchsorted(ascending, self._starts).tolist()
        chunk_values = [chunks[0].slice(0, 0)]
        for number, (first, last) in enumerate(pairwise(boundaries)):
            if last > first:
                local = ascending[first:last] - self._starts[number]
                chunk_values.append(take_values(chunks[number], local))
        inverse_order = np.empty_like(order)
        inverse_order[order] = np.arange(len(order))
        return take_values(pa.concat_arrays(chunk_values), inverse_order)


def is_large(dtype: pa.DataType) -> bool:
    """Return whether values of a type are too large to be moved twice.

    >>> is_large(pa.binary()), is_large(pa.list_(pa.float32(), 3)), is_large(pa.string())
    (True, True, False)
    """
    return bool(pat.is_binary(dtype) or pat.is_list(dtype) or pat.is_fixed_size_list(dtype))
