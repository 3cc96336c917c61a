"""Columns of a table version in memory, with rows in one order.

Local Parquet files that have the columns in their feature types are read by Arrow, which needs 0.7 ms
for a small file; DuckDB needs 2 ms to plan and run the query. Of large files, Arrow reads only the
requested columns at a time, so that keys and times are released before features are read. All other
tables are read by DuckDB, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from featurestore.arrow.types import columns_width
from featurestore.delta.log import FileState
from featurestore.delta.maintenance import translate_read_errors
from featurestore.plugins.engine import Relation
from featurestore.storage import storage_for
from featurestore_connectors.duckdb_delta.relations import ScannedRelation
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.streams import batches_of

Int64s = npt.NDArray[np.int64]
# Up to this size, all columns are read together, in the calling thread.
_SMALL_BYTES = 64 << 20
# Up to this size, the columns remain in memory for repeated retrievals: at most 64 MiB.
_CACHED_BYTES = 4 << 20
_ROWS_AT_ONCE = 500_000


@dataclass(frozen=True)
class SelectedRows:
    """Some rows of a table. ``positions`` are the positions of these rows in the table, ascending."""

    columns: pa.Table
    indices: npt.NDArray[np.int32]

    def index_of(self, positions: Int64s) -> Int64s:
        """Return the index in ``columns`` of rows that are given by their positions in the table."""
        return self.indices[positions].astype(np.int64)


class TableColumns:
    """Columns of a relation, read when they are needed.

    Args:
        database: The database of the relation.
        relation: The rows.
    """

    def __init__(self, database: Database, relation: Relation) -> None:
        self._has_threads = int(database.config["threads"]) > 1
        self._files = _find_readable_files(relation)
        self._table: pa.Table | None = None
        if self._files is None:
            self._table = read_table(database, relation)
            return
        row_count = sum(file.metadata.num_rows for file in self._files)
        names = relation.schema.names
        size = row_count * columns_width(relation.schema, names)
        if size <= _CACHED_BYTES:
            self._table = _read_cached(tuple(self._files), tuple(names))
        elif size <= _SMALL_BYTES:
            self._has_threads = False
            self._table = self.read(names)

    def read(self, names: Sequence[str]) -> pa.Table:
        """Return columns of all rows."""
        names = list(dict.fromkeys(names))
        if self._table is not None:
            return self._table.select(names)
        return _read_columns(self._files or (), names, use_threads=self._has_threads)

    def read_rows(self, names: Sequence[str], positions: Int64s, *, row_count: int) -> SelectedRows:
        """Return columns of the rows at the given positions, out of ``row_count`` rows."""
        is_selected = np.zeros(row_count, dtype=bool)
        is_selected[positions] = True
        names = list(dict.fromkeys(names))
        tables = _iterate_columns(self._files or (), names, use_threads=self._has_threads)
        if self._table is not None:
            tables = iter([self._table.select(names)])
        selected, start = [], 0
        for table in tables:
            mask = is_selected[start : start + table.num_rows]
            selected.append(table if mask.all() else table.filter(pa.array(mask)))
            start += table.num_rows
        indices = np.cumsum(is_selected, dtype=np.int32)
        indices -= 1
        return SelectedRows(_fill_empty(pa.concat_tables(selected)), indices)


@dataclass(frozen=True)
class _ParquetFile:
    """A file in one state, since a replaced file must not be read from the cache."""

    state: FileState
    metadata: parquet.FileMetaData = field(compare=False)
    types: pa.Schema = field(compare=False)

    def row_groups(self) -> Iterator[list[int]]:
        """Yield the numbers of row groups that are read together."""
        numbers: list[int] = []
        row_count = 0
        for number in range(self.metadata.num_row_groups):
            numbers.append(number)
            row_count += self.metadata.row_group(number).num_rows
            if row_count >= _ROWS_AT_ONCE:
                yield numbers
                numbers, row_count = [], 0
        # A file without row groups has no rows, but types.
        if numbers or not self.metadata.num_row_groups:
            yield numbers


def _iterate_columns(
    files: Iterable[_ParquetFile], names: list[str], *, use_threads: bool
) -> Iterator[pa.Table]:
    """Yield columns of a bounded number of rows, in the order of the log."""
    for file in files:
        path = file.state.path
        with (
            translate_read_errors(path),
            parquet.ParquetFile(path, metadata=file.metadata) as open_file,
        ):
            for row_groups in file.row_groups():
                rows = open_file.read_row_groups(row_groups, columns=names, use_threads=use_threads)
                yield rows.select(names).replace_schema_metadata()


def _read_columns(
    files: Iterable[_ParquetFile], names: list[str], *, use_threads: bool
) -> pa.Table:
    return _fill_empty(pa.concat_tables(_iterate_columns(files, names, use_threads=use_threads)))


@lru_cache(maxsize=64)
def _open_cached(state: FileState) -> _ParquetFile:
    metadata = parquet.read_metadata(state.path)
    return _ParquetFile(state, metadata, metadata.schema.to_arrow_schema())


@lru_cache(maxsize=16)
def _read_cached(files: tuple[_ParquetFile, ...], names: tuple[str, ...]) -> pa.Table:
    return _read_columns(files, list(names), use_threads=False)


def read_table(database: Database, relation: Relation) -> pa.Table:
    """Return all rows of a relation."""
    return _fill_empty(pa.Table.from_batches(batches_of(database, relation), relation.schema))


def _fill_empty(table: pa.Table) -> pa.Table:
    """Return a table whose columns have at least one array."""
    return table if table.num_rows else table.schema.empty_table()


def _find_readable_files(relation: Relation) -> list[_ParquetFile] | None:
    """Return the files of a relation if Arrow reads its columns in their feature types."""
    if not isinstance(relation, ScannedRelation) or relation.scan is None:
        return None
    snapshot = relation.scan.snapshot
    if snapshot.partition_by or not storage_for(snapshot.path).is_local:
        return None
    files = []
    for file in snapshot.files:
        with translate_read_errors(file.path):
            open_file = _open_cached(FileState.from_path(file.path))
        for column in relation.schema:
            index = open_file.types.get_field_index(column.name)
            if index < 0 or open_file.types.field(index).type != column.type:
                return None
        files.append(open_file)
    return files
