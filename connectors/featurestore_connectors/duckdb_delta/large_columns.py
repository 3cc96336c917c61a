"""Binaries and lists beside the other columns of an export, which are moved once only.

What is sorted are the other columns and the number of each row. Where they are too many bytes for
memory, the large columns wait in a file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrow_rows import concat_arrays, take_values
from featurestore.storage.spool import BatchFile

ROW = "__fs_row"
# A batch that is put together has about so many bytes: few, which stay in the caches and in memory
# that is used again. From the file more of them, since each one looks at all of its parts.
_BATCH_BYTES = 2 << 20
_BATCH_BYTES_OF_FILE = 64 << 20


class LargeColumns:
    """Columns of values of many bytes, as they came; rows are found by their number.

    ``size`` are their bytes in memory.
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
        """Whether there are no large columns."""
        return not self._columns

    @property
    def waits_in_file(self) -> bool:
        """Whether the columns are no longer in memory."""
        return self._file is not None

    def taken_from(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the large columns of a batch; return the others, with the numbers of the rows.

        A batch without large columns stays as it is.
        """
        self._schema = batch.schema
        rest, others, large = [], [], {}
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if is_large(field.type):
                large[field.name] = column
            else:
                rest.append(field)
                others.append(column)
        if not large:
            return batch
        first = self._starts[-1]
        self._keep(large)
        others.append(pa.array(np.arange(first, first + batch.num_rows)))
        return pa.RecordBatch.from_arrays(others, schema=pa.schema([*rest, (ROW, pa.int64())]))

    def move_to_file(self, directory: str) -> None:
        """Let the columns, and those of batches to come, wait in a file of a directory."""
        schema = self._schema_of(self._columns)
        self._file = BatchFile(directory, schema)
        for arrays in zip(*self._columns.values(), strict=True):
            self._file.write(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
        for held in self._columns.values():
            held.clear()
        self.size = 0

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def whole(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch of ``taken_from``, in any order, with their large columns."""
        if self.is_empty:
            yield batch
            return
        size = _BATCH_BYTES_OF_FILE if self.waits_in_file else _BATCH_BYTES
        step = max(1, size * self._starts[-1] // max(self._bytes, 1))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            arrays = dict(zip(part.schema.names, part.columns, strict=True))
            yield self.completed(arrays)

    def completed(self, arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return rows of any batches as one, from their other columns and their numbers."""
        columns = []
        for name in self._schema.names:
            if name in self._columns:
                columns.append(self._values(name, arrays[ROW]))
            else:
                columns.append(arrays[name])
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _keep(self, large: Mapping[str, pa.Array]) -> None:
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
        with self._lock:
            if self._file is not None and not self._columns[name]:
                self._map(self._file)
            elif self._file is None and len(self._columns[name]) > 1:
                self._columns[name] = [concat_arrays(self._columns[name])]
            parts = self._columns[name]
        if self._file is None:
            # Arrow's own pool gives memory back to the system at once, and getting it again costs
            # more than moving values into it.
            return take_values(parts[0], rows, pool=pa.system_memory_pool())
        return self._gathered(parts, np.asarray(rows))

    def _map(self, file: BatchFile) -> None:
        """Look at the file, which is whole now."""
        batches = file.read()
        for number, name in enumerate(self._columns):
            self._columns[name] = [batch.column(number) for batch in batches]

    def _gathered(self, parts: list[pa.Array], rows: npt.NDArray[np.int64]) -> pa.Array:
        """Return the values of rows in any order, each part of the file looked at once."""
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        cuts = np.searchsorted(ascending, self._starts).tolist()
        taken = [parts[0].slice(0, 0)]
        for number, (first, last) in enumerate(pairwise(cuts)):
            if last > first:
                local = ascending[first:last] - self._starts[number]
                taken.append(take_values(parts[number], local))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return take_values(pa.concat_arrays(taken), back)


def is_large(kind: pa.DataType) -> bool:
    """Tell whether values of a type are better not moved twice.

    >>> is_large(pa.binary()), is_large(pa.list_(pa.float32(), 3)), is_large(pa.string())
    (True, True, False)
    """
    return bool(pat.is_binary(kind) or pat.is_list(kind) or pat.is_fixed_size_list(kind))
