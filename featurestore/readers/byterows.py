"""Binaries of one length, such as the pixels of images: copied once, into the yielded array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.plugins.format import RecordAccess
from featurestore.readers.bufferpool import BufferPool
from featurestore.readers.order import Rows
from featurestore.readers.selection import SelectedColumn

Records = npt.NDArray[np.uint8]


class ByteRows:
    """The fixed-length binary columns of a range of steps.

    ``arrays`` are uint8 of shape (rows, bytes); missing values are zeros.
    """

    def __init__(
        self,
        access: RecordAccess,
        columns: tuple[SelectedColumn, ...],
        memory: BufferPool,
        *,
        rows: int,
    ) -> None:
        self._access = access
        self.arrays: dict[str, Records] = {}
        no_records = np.empty((0, access.record_bytes), dtype=np.uint8)
        for column in columns:
            view = access.byte_rows(no_records, column.name) if column.byte_rows else None
            if view is not None:
                buffers = [((rows, view.shape[1]), np.dtype(np.uint8))]
                self.arrays[column.name] = memory.borrow(buffers, purpose=column.name)[0]

    def write(self, records: Records, rows: Rows) -> None:
        """Copy the values of records to their yielded rows."""
        for name, array in self.arrays.items():
            view = self._access.byte_rows(records, name)
            assert view is not None
            cells: Any = np.dtype(f"V{view.shape[1]}")
            # A row is one item, so that numpy copies it at once.
            array.view(cells)[rows, 0] = view.view(cells)[:, 0]
            present = self._access.present(records, name)
            if present is not None:
                array[rows[~present]] = 0

    def clear(self, rows: Rows) -> None:
        """Set rows to zeros."""
        if len(rows):
            for array in self.arrays.values():
                array[rows] = 0
