"""Tables of files: what each format has to give, and what all share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.plugins.engine import TimeRange
from featurestore_connectors.sources.folders.bad_rows import BadRows, TableName
from featurestore_connectors.sources.folders.listing import FolderFile, FolderFiles
from featurestore_connectors.sources.folders.options import FolderOptions
from featurestore_connectors.sources.folders.schema import (
    Column,
    TableSchema,
    partition_columns,
    partition_value,
)


class FolderTable(ABC):
    """The files of one table, read by one dialect."""

    def __init__(self, folder_files: FolderFiles, table: TableName, options: FolderOptions) -> None:
        self.folder_files = folder_files
        self.table = table
        self.options = options

    @abstractmethod
    def columns(self) -> list[Column]:
        """Read all files and return their common columns.

        Raises:
            InvalidSourceFile: Files disagree; names files, lines and columns.
        """

    @abstractmethod
    def rows(
        self,
        file: FolderFile,
        schema: TableSchema,
        columns: Sequence[Column],
        *,
        window: TimeRange | None,
        bad_rows: BadRows,
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of a file, typed; the window may be left to the caller.

        Raises:
            InvalidSourceFile: The file is not of the schema; names the line and the column.
        """

    def dialect(self) -> Mapping[str, object]:
        """Return how the files are written, for people."""
        return {"format": self.folder_files.format}

    def decide(self) -> TableSchema:
        """Return the schema of all files, those of their folders included."""
        columns = self.columns()
        names = [column.name for column in columns]
        more = partition_columns(self.folder_files, names, self.table, self.options)
        return TableSchema((*columns, *more))

    def batches(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        *,
        window: TimeRange | None,
        bad_rows: BadRows,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files in a window, of the columns in their order."""
        needed = list(columns)
        if window is not None and window.column not in [column.name for column in columns]:
            needed.append(schema.column(window.column))
        in_files = [column for column in needed if not column.is_partition]
        fields = pa.schema([(column.name, column.kind) for column in columns])
        for file in self.folder_files.files:
            constants = {
                column.name: partition_value(file, column, self.table, self.options)
                for column in needed
                if column.is_partition
            }
            for batch in self.rows(file, schema, in_files, window=window, bad_rows=bad_rows):
                arrays = []
                for column in needed:
                    if column.is_partition:
                        arrays.append(pa.repeat(constants[column.name], batch.num_rows))
                    else:
                        arrays.append(batch.column(column.name))
                batch_in_order = pa.RecordBatch.from_arrays(
                    arrays, [column.name for column in needed]
                )
                rows = _within(batch_in_order, window)
                yield pa.RecordBatch.from_arrays(
                    [rows.column(name) for name in fields.names], schema=fields
                )


def _within(batch: pa.RecordBatch, window: TimeRange | None) -> pa.RecordBatch:
    if window is None:
        return batch
    times = batch.column(window.column)
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    start, end = (pa.scalar(each, times.type) for each in (window.start, window.end))
    if window.closed == "right":
        mask = pc.and_(pc.greater(times, start), pc.less_equal(times, end))
    else:
        mask = pc.and_(pc.greater_equal(times, start), pc.less(times, end))
    return batch.filter(mask)


def without_rows(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Return a batch without some of its rows."""
    if not rows:
        return batch
    mask = np.ones(batch.num_rows, dtype=bool)
    mask[list(rows)] = False
    return batch.filter(pa.array(mask))
