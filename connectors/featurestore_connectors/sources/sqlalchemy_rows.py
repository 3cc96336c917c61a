"""Rows of a query as Arrow batches, from a connection that has one query at a time.

The snapshot belongs to the connection, so a second query first spools the remaining rows of the
first one to a file: memory stays bounded, and both see the same state.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from featurestore.errors import FeatureStoreError, UnsupportedType
from featurestore_connectors.sources.sqlalchemy_types import converter
from featurestore_connectors.sources.typed_columns import SourceColumn

BATCH_ROWS = 8192
_SHOWN = 100
_WRONG = (pa.ArrowException, OverflowError, TypeError, ValueError)


class RunningQuery:
    """The rows of a query that runs; used under the lock of its connection."""

    def __init__(self, result: Any, columns: Sequence[SourceColumn], lock: threading.RLock) -> None:
        self._columns = columns
        self._lock = lock
        self._result: Any = result
        self._batches: Iterator[pa.RecordBatch] = self._fetched(result)
        self._failure: FeatureStoreError | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, from the connection or from the spool file."""
        while True:
            with self._lock:
                batch = next(self._batches, None)
                if batch is None and self._failure is not None:
                    raise self._failure
            if batch is None:
                return
            yield batch

    def spool(self) -> None:
        """Spool the remaining rows to a file, to free the connection for another query.

        An error of these rows is raised where they are read, not here.
        """
        if self._result is None:
            return
        file = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the last of its rows
        writer = None
        try:
            for batch in self._batches:
                if writer is None:
                    writer = pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
        except FeatureStoreError as error:
            self._failure = error
        if writer is not None:
            writer.close()
        file.seek(0)
        self._result = None
        self._batches = _from_file(file, empty=writer is None)

    def end(self) -> None:
        """Discard the remaining rows."""
        if self._result is not None:
            self._result.close()
            self._result = None

    def _fetched(self, result: Any) -> Iterator[pa.RecordBatch]:
        for rows in result.partitions(BATCH_ROWS):
            yield _batch(rows, self._columns)
        self._result = None


def _from_file(file: Any, *, empty: bool) -> Iterator[pa.RecordBatch]:
    with file:
        if not empty:
            yield from pa.ipc.open_stream(file)


def _batch(rows: Sequence[Any], columns: Sequence[SourceColumn]) -> pa.RecordBatch:
    arrays = [
        _array(values, column)
        for column, values in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _array(values: Sequence[Any], column: SourceColumn) -> pa.Array:
    convert = converter(column)
    converted = values if convert is None else list(map(convert, values))
    try:
        return pa.array(converted, column.kind)
    except _WRONG as error:
        raise UnsupportedType(
            f"Column {column.name!r} ({column.native}) has a value that is not {column.kind}: "
            f"{str(_first_wrong(converted, column))[:_SHOWN]!r}.",
            hint="columns=[...] with the others leaves it out; sql= or a view can cast it",
        ) from error


def _first_wrong(values: Sequence[Any], column: SourceColumn) -> Any:
    for value in values:
        try:
            pa.array([value], column.kind)
        except _WRONG:
            return value
    return None
