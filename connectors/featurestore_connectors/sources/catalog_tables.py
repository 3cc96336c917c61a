"""Tables of catalogs that have several table formats, each pinned on first access.

The catalog has the location of a table, and the snapshot of its format reads it. Locations are
untrusted; errors contain the name of the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidSourceFile,
    SourceTableNotFound,
)
from featurestore.model.source import SourceTable
from featurestore.plugins.source import SourceConfig, SourceQuery, SourceSnapshot
from featurestore_connectors.sources import locations
from featurestore_connectors.sources.folder import FolderSnapshot
from featurestore_connectors.sources.folders.listing import (
    FolderFile,
    FolderFiles,
    list_partitioned_files,
)
from featurestore_connectors.sources.folders.options import FolderOptions, TableName
from featurestore_connectors.sources.folders.parquet_table import ParquetTable
from featurestore_connectors.sources.folders.tables import FolderTable, TableSchema
from featurestore_connectors.sources.typed_columns import SourceColumn, unknown_table_error


@dataclass(frozen=True)
class OpenTable:
    """The snapshot of a table; that of an Iceberg catalog expects the name in its queries."""

    snapshot: SourceSnapshot
    is_catalog: bool = False

    def query(self, query: SourceQuery) -> SourceQuery:
        """Return a query of the catalog as a query of the snapshot."""
        return query if self.is_catalog else replace(query, table=None)


class CatalogSnapshot(ABC):
    """The tables of one catalog."""

    noun = "catalog"
    server = ""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._open_tables: dict[str, OpenTable] = {}

    @property
    def identity(self) -> str:
        """The versions of the tables that have been read."""
        versions = []
        for name, table in sorted(self._open_tables.items()):
            # The identity of an Iceberg catalog contains the name of the table.
            prefix = "" if table.is_catalog else f"{name} "
            versions.append(f"{prefix}{table.snapshot.identity}")
        return ", ".join(versions) or "no table read"

    @abstractmethod
    def tables(self) -> Sequence[SourceTable]:
        """Return the tables in formats that are read."""

    @abstractmethod
    def _open_table(self, name: str) -> OpenTable | None:
        """Open a table of the catalog, None if it does not exist."""

    def query_of(self, table: SourceTable) -> SourceQuery:
        return SourceQuery(table=table.name)

    def names(self, query: SourceQuery) -> Sequence[str]:
        with name_table(query.table):
            table = self._open_pinned(query)
            return table.snapshot.names(table.query(query))

    def schema(self, query: SourceQuery) -> pa.Schema:
        with name_table(query.table):
            table = self._open_pinned(query)
            return table.snapshot.schema(table.query(query))

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        with name_table(query.table):
            table = self._open_pinned(query)
            reader = table.snapshot.read(table.query(query))
        return pa.RecordBatchReader.from_batches(reader.schema, _named_batches(query.table, reader))

    def close(self) -> None:
        for table in self._open_tables.values():
            table.snapshot.close()

    def _open_pinned(self, query: SourceQuery) -> OpenTable:
        """Return the table of a query, pinned at the first access."""
        if query.table is None or query.sql is not None or query.path is not None:
            raise InvalidArgument(
                f"Invalid query of a {self.noun} source: {query}.", hint="pass table='sales.orders'"
            )
        if query.table not in self._open_tables:
            table = self._open_table(query.table)
            if table is None:
                available = [table.name for table in self.tables()]
                raise unknown_table_error(self._config.name, query.table, available)
            self._open_tables[query.table] = table
        return self._open_tables[query.table]


def _named_batches(name: str | None, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with name_table(name):
        yield from reader


@contextmanager
def name_table(name: str | None) -> Iterator[None]:
    """Add the name of a table to errors."""
    try:
        yield
    except FeatureStoreError as error:
        if name is None or f"{name!r}" in error.message:
            raise
        raise type(error)(f"Table {name!r}: {error.message}", hint=error.hint) from error


class CatalogParquetTable(ParquetTable):
    """The Parquet files of a table; a column of the catalog that a file lacks is null, as in Hive.

    Names are compared as in Hive, without case.
    """

    def __init__(
        self,
        folder_files: FolderFiles,
        table: TableName,
        options: FolderOptions,
        *,
        config: SourceConfig,
        connection: duckdb.DuckDBPyConnection,
        columns: Mapping[str, pa.DataType | None],
    ) -> None:
        super().__init__(folder_files, table, options, config=config, connection=connection)
        self._catalog_columns = {name.lower(): (name, dtype) for name, dtype in columns.items()}

    def source_columns(self) -> list[SourceColumn]:
        columns = super().source_columns()
        stored_names = {column.name.lower() for column in columns}
        for key, (name, dtype) in self._catalog_columns.items():
            if dtype is not None and key not in stored_names:
                columns.append(SourceColumn(name, name, dtype, str(dtype)))
        return columns

    def compare_names(
        self, file: FolderFile, names: Sequence[str], expected: Sequence[str], *, first: str
    ) -> None:
        other_names = [name for name in names if name.lower() not in self._catalog_columns]
        expected = [name for name in expected if name.lower() not in self._catalog_columns]
        super().compare_names(file, other_names, expected, first=first)


class ParquetSnapshot(FolderSnapshot):
    """The Parquet files of a table, read as a folder.

    As in Hive, the extension of a file is irrelevant, and only files of registered partitions are
    rows of the table.

    Args:
        config: The source of the catalog.
        path: The folder of the table.
        keys: The partition columns in their order, with their types if these are known.
        columns: The columns of the files in the catalog, with their types if these are known.
        partitions: The values of the partition columns by folder; empty folders are allowed. A
            table without partition columns has its own folder with no values.
    """

    def __init__(
        self,
        config: SourceConfig,
        path: str,
        *,
        keys: Mapping[str, pa.DataType | None],
        columns: Mapping[str, pa.DataType | None],
        partitions: Mapping[str, Sequence[str | None]],
    ) -> None:
        # Stored schemas belong to a path of a folder source, and a catalog has many tables.
        super().__init__(replace(config, options={}, decisions=None), path)
        self._catalog_columns = columns
        self._dtypes = {key: dtype for key, dtype in keys.items() if dtype is not None}
        self._files = list_partitioned_files(
            self._listing.statuses, root=self._root, keys=list(keys), partitions=partitions
        )
        self._listing = locations.FileListing(self._files.statuses)
        self.identity = f"files {locations.fingerprint(self._files.statuses)}"

    def _select_files(
        self, query: SourceQuery, options: FolderOptions, table: TableName
    ) -> FolderFiles:
        if not self._files.files:
            raise SourceTableNotFound(
                f"Source {self._config.name!r}: the table has no files, so its columns are unknown.",
                hint="write rows, and register new partitions in the catalog",
            )
        return self._files

    def _find_table(self, query: SourceQuery) -> tuple[FolderFiles, FolderTable]:
        options = self._table_options(query)
        table = TableName(self._config.name, query.path, query.options, {})
        folder_files = self._select_files(query, options, table)
        return folder_files, CatalogParquetTable(
            folder_files,
            table,
            options,
            config=self._config,
            connection=self._connection,
            columns=self._catalog_columns,
        )

    def _table_options(self, query: SourceQuery) -> FolderOptions:
        return replace(super()._table_options(query), dtypes=self._dtypes)

    def _load_or_infer_schema(
        self, key: str, table: FolderTable, query: SourceQuery
    ) -> TableSchema:
        try:
            return super()._load_or_infer_schema(key, table, query)
        except InvalidSourceFile as error:
            # The hint of a folder names options that a catalog does not have.
            raise InvalidSourceFile(
                error.message,
                hint="register the folder as a source, whose dtypes= declares columns that differ",
            ) from error
