"""Binaries of one length, such as the pixels of images: copied once, to where they are yielded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.plugins.format import RecordAccess
from featurestore.readers.memory import Memory
from featurestore.readers.order import Rows
from featurestore.readers.selection import SelectedColumn

Records = npt.NDArray[np.uint8]


class ByteRows:
    """The columns of a range of steps whose values are rows of as many bytes.

    ``arrays`` are uint8 of shape (rows, bytes), zeros where there is no value.
    """

    def __init__(
        self,
        access: RecordAccess,
        columns: tuple[SelectedColumn, ...],
        memory: Memory,
        *,
        rows: int,
    ) -> None:
        self._access = access
        self.arrays: dict[str, Records] = {}
        nothing = np.empty((0, access.record_bytes), dtype=np.uint8)
        for column in columns:
            view = access.byte_rows(nothing, column.name) if column.byte_rows else None
            if view is not None:
                wanted = [((rows, view.shape[1]), np.dtype(np.uint8))]
                self.arrays[column.name] = memory.borrow(wanted, purpose=column.name)[0]

    def put(self, records: Records, rows: Rows) -> None:
        """Copy what records hold to the rows where they are yielded."""
        for name, array in self.arrays.items():
            view = self._access.byte_rows(records, name)
            assert view is not None
            cells: Any = np.dtype(f"V{view.shape[1]}")
            # As one item a row, so that each is one copy.
            array.view(cells)[rows, 0] = view.view(cells)[:, 0]
            present = self._access.present(records, name)
            if present is not None:
                array[rows[~present]] = 0

    def clear(self, rows: Rows) -> None:
        """Make rows padding."""
        if len(rows):
            for array in self.arrays.values():
                array[rows] = 0
