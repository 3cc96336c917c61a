"""Binaries and lists beside the other columns of an export, which are moved once only.

What is sorted are the other columns and the number of each row.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.model.arrow_rows import values_at

ROW = "__fs_row"


class LargeColumns:
    """Columns of values of many bytes, as they came; rows are found by their number."""

    def __init__(self) -> None:
        self._columns: dict[str, list[pa.Array]] = {}
        self._starts: list[int] = []
        self._rows = 0
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The columns that are kept here."""
        return list(self._columns)

    def taken_from(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the large columns of a batch; return the others, with the numbers of the rows.

        A batch without large columns stays as it is.
        """
        rest, arrays = [], []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if is_large(field.type):
                self._columns.setdefault(field.name, []).append(column)
            else:
                rest.append(field)
                arrays.append(column)
        if not self._columns:
            return batch
        self._starts.append(self._rows)
        arrays.append(pa.array(np.arange(self._rows, self._rows + batch.num_rows)))
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rest, (ROW, pa.int64())]))

    def values(self, name: str, rows: pa.Array) -> Any:
        """Return the values of rows of any batches; all batches are put together first."""
        with self._lock:
            parts = self._columns[name]
            if len(parts) > 1:
                parts = self._columns[name] = [pa.concat_arrays(parts)]
        return values_at(parts[0], rows)

    def values_of_batch(self, name: str, rows: pa.Array) -> Any:
        """Return the values of rows that came in one batch."""
        number = bisect_right(self._starts, rows[0].as_py()) - 1
        local = pc.subtract(rows, self._starts[number])
        return values_at(self._columns[name][number], local)


def is_large(kind: pa.DataType) -> bool:
    """Tell whether values of a type are better not moved twice.

    >>> is_large(pa.binary()), is_large(pa.list_(pa.float32(), 3)), is_large(pa.string())
    (True, True, False)
    """
    return bool(pat.is_binary(kind) or pat.is_list(kind) or pat.is_fixed_size_list(kind))
