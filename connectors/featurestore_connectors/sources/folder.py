"""Folders of Parquet, CSV or JSON files, local or at a URI.

All files of a table share one format, dialect and schema, which are inferred once from all rows and
stored with the source. A file with another schema is refused, and so is a file that changes while
it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from featurestore.errors import (
    InvalidArgument,
    SourceChanged,
    SourceTableNotFound,
    UnsupportedType,
    did_you_mean,
    listing,
)
from featurestore.model.source import SourceTable
from featurestore.plugins.source import (
    BadRow,
    DescribedSnapshot,
    QuarantiningSnapshot,
    Source,
    SourceConfig,
    SourceQuery,
    SourceSnapshot,
)
from featurestore.storage import storage_for
from featurestore.storage.location import remove_owner
from featurestore_connectors.sources import duckdb_rows, locations
from featurestore_connectors.sources.folders import listing as folders_listing
from featurestore_connectors.sources.folders.arrow_table import ArrowTable
from featurestore_connectors.sources.folders.compression import COMPRESSIONS
from featurestore_connectors.sources.folders.csv_table import CsvTable
from featurestore_connectors.sources.folders.json_table import JsonTable
from featurestore_connectors.sources.folders.listing import FolderFiles
from featurestore_connectors.sources.folders.options import (
    ENDINGS,
    NAMES,
    SIMILAR_ENDINGS,
    FolderOptions,
    TableName,
    parse_options,
)
from featurestore_connectors.sources.folders.parquet_table import ParquetTable
from featurestore_connectors.sources.folders.tables import (
    BadRows,
    FolderTable,
    TableSchema,
    find_columns,
    schema_key,
)
from featurestore_connectors.sources.folders.webdataset_table import WebDatasetTable
from featurestore_connectors.sources.locations import FileListing


class FolderSource:
    """A local or remote folder of files, or a single file, with options for the file format.

    Other options, and the secret, configure the storage of a URI.
    """

    def __init__(self, config: SourceConfig) -> None:
        parse_options(config.options)
        self._config = config
        self._location = locations.parse_location(
            config, prefix="file", noun="folder", option_names=NAMES
        )

    def snapshot(self, at: int | datetime | None = None) -> FolderSnapshot:
        """List the files of the folder."""
        if at is not None:
            raise InvalidArgument(
                f"at={at!r}: a folder of files keeps no earlier versions.",
                hint="a Delta table has versions: uri='delta+/path'",
            )
        return FolderSnapshot(self._config, self._location.open(self._config))


@dataclass(frozen=True)
class _TableWithSchema:
    """A folder table with its inferred or stored schema."""

    table: FolderTable
    schema: TableSchema


class FolderSnapshot:
    """The listed files. Reading raises ``SourceChanged`` if they changed after the listing."""

    def __init__(self, config: SourceConfig, path: str) -> None:
        self._config = config
        self._root = storage_for(path).resolve(path)
        with locations.storage_errors(config):
            self._listing = locations.list_files(self._root)
        self._decided_tables: dict[str, _TableWithSchema] = {}
        self._bad_rows: list[BadRows] = []
        self.identity = locations.fingerprint(self._listing.statuses)
        self.server = (
            f"{remove_owner(path)}, read by Arrow {pa.__version__} and DuckDB {duckdb.__version__}"
        )

    @property
    def bad_row_count(self) -> int:
        return sum(bad_rows.count for bad_rows in self._bad_rows)

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        return [row for bad_rows in self._bad_rows for row in bad_rows.rows]

    @property
    def unread(self) -> Sequence[str]:
        formats = self._formats()
        paths = [
            path
            for path in folders_listing.without_metadata(self._listing.statuses)
            if path not in formats
        ]
        paths += filter(folders_listing.is_known, self._listing.hidden)
        return [folders_listing.relative_path(self._root, path) for path in paths]

    def tables(self) -> Sequence[SourceTable]:
        first = {}
        for path in self._formats():
            name = path[len(self._root) :].lstrip("/").split("/")[0] or "."
            # Partition folders such as day=1 belong to the table of the complete folder.
            if "=" in name and name not in self._listing.statuses:
                name = "."
            # A check would cost a request per file in a storage that prefers listings.
            is_readable = storage_for(path).prefers_listing or storage_for(path).is_readable(path)
            first[name] = SourceTable(name, is_readable)
        return [first[name] for name in sorted(first)]

    def _formats(self) -> Mapping[str, str]:
        """Return the formats of the files that the options of the source can read."""
        paths = list(self._listing.statuses)
        return folders_listing.formats_by_path(paths, parse_options(self._config.options).format)

    def query_of(self, table: SourceTable) -> SourceQuery:
        return SourceQuery(path=table.name)

    def names(self, query: SourceQuery) -> Sequence[str]:
        folder_files, table = self._find_table(query)
        # The schema omits unreadable Parquet columns, but their names are needed to rename or
        # exclude them.
        if isinstance(table, ParquetTable):
            return [*(column.name for column in table.source_columns()), *folder_files.partitions]
        return [column.name for column in self._open_table(query).schema.columns]

    def schema(self, query: SourceQuery) -> pa.Schema:
        columns = self._columns(query)
        return pa.schema([(column.name, column.dtype) for column in columns])

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        decided, columns = self._open_table(query), self._columns(query)
        bad_rows = BadRows(
            decided.table.table, self._table_options(query).on_bad_rows == "quarantine"
        )
        self._bad_rows.append(bad_rows)
        schema = pa.schema([(column.name, column.dtype) for column in columns])
        batches = decided.table.batches(
            decided.schema, columns, window=query.window, bad_rows=bad_rows
        )
        return pa.RecordBatchReader.from_batches(
            schema, self._check_changes_at_end(batches, decided.table)
        )

    def description(self, query: SourceQuery) -> Mapping[str, Any]:
        decided = self._open_table(query)
        columns = {column.name: str(column.dtype) for column in decided.schema.columns}
        return {
            "path": query.path or ".",
            "dialect": dict(decided.table.dialect()),
            "columns": columns,
            "partitions": list(decided.table.folder_files.partitions),
            "files": len(decided.table.folder_files.files),
            "unread": list(decided.table.folder_files.unread),
        }

    def close(self) -> None:
        # The cached property is in the instance dict only if a connection has been opened.
        if "_connection" in vars(self):
            self._connection.close()

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """The DuckDB connection that reads Parquet files."""
        connection = duckdb_rows.connect(self._config)
        if not storage_for(self._root).is_local:
            # DuckDB reads remote files through the storages of this package, with their
            # credentials.
            duckdb_rows.read_remote_files(connection)
        return connection

    def _columns(self, query: SourceQuery) -> list[Any]:
        """Return the columns that a query needs, after checking that they are readable."""
        decided = self._open_table(query)
        all_names = [column.name for column in decided.schema.columns]
        self._refuse_unreadable(decided, query)
        names = list(query.columns) if query.columns is not None else all_names
        if query.window is not None:
            # The window column may not be among the requested columns.
            find_columns(decided.schema, [query.window.column], table=decided.table.table)
        return find_columns(decided.schema, names, table=decided.table.table)

    def _refuse_unreadable(self, decided: _TableWithSchema, query: SourceQuery) -> None:
        """Refuse requested columns that cannot be read without loss."""
        if isinstance(decided.table, ParquetTable):
            columns = decided.table.source_columns()
        else:
            columns = [column.to_source_column() for column in decided.schema.columns]
        needed = [column.name for column in columns]
        if query.columns is not None:
            needed = list(query.columns)
        unreadable = [
            column for column in columns if column.dtype is None and column.name in needed
        ]
        if not unreadable:
            return
        shown = ", ".join(f"{column.name!r} ({column.native})" for column in unreadable)
        readable_names = [column.name for column in columns if column.dtype is not None]
        hint = "no column of the files can be read"
        if readable_names:
            hint = f"{decided.table.table.call(columns=readable_names)} leaves them out"
        raise UnsupportedType(
            f"Source {self._config.name!r}: these columns cannot be read without loss: {shown}.",
            hint=hint,
        )

    def _table_options(self, query: SourceQuery) -> FolderOptions:
        return parse_options({**self._config.options, **query.options})

    def _open_table(self, query: SourceQuery) -> _TableWithSchema:
        """Return the table of a query with its schema, which is inferred on first use."""
        table_options: dict[str, str] = {
            name: value
            for name, value in {**self._config.options, **query.options}.items()
            if name in NAMES
        }
        key = schema_key(query.path, table_options)
        if key not in self._decided_tables:
            _, table = self._find_table(query)
            self._decided_tables[key] = _TableWithSchema(
                table, self._load_or_infer_schema(key, table, query)
            )
        return self._decided_tables[key]

    def _load_or_infer_schema(
        self, key: str, table: FolderTable, query: SourceQuery
    ) -> TableSchema:
        """Return the stored schema of a table, or infer and store it."""
        decisions = self._config.decisions
        stored_schema = None if decisions is None else decisions.get(key)
        if stored_schema is not None:
            return TableSchema.from_json(stored_schema)
        schema = table.decide()
        # A schema inferred from changing files must not be stored, since later files are compared
        # with it.
        self._check_unchanged(table)
        if decisions is None:
            return schema
        shown_table = {"path": query.path or ".", "dialect": dict(table.dialect())}
        # If another process has stored its schema first, that schema applies.
        return TableSchema.from_json(decisions.decide(key, {**shown_table, **schema.to_json()}))

    def _find_table(self, query: SourceQuery) -> tuple[FolderFiles, FolderTable]:
        """Return the files of a query and the reader of their format."""
        options = self._table_options(query)
        # The names of types in the option ``dtypes`` are shorter than those of Arrow.
        declared = {
            name: str(dtype).replace("decimal128", "decimal").replace("list<item: ", "list<")
            for name, dtype in options.dtypes.items()
        }
        table = TableName(self._config.name, query.path, query.options, declared)
        folder_files = self._select_files(query, options, table)
        if folder_files.format == "csv":
            return folder_files, CsvTable(folder_files, table, options)
        if folder_files.format == "parquet":
            return folder_files, ParquetTable(
                folder_files, table, options, config=self._config, connection=self._connection
            )
        if folder_files.format == "arrow":
            return folder_files, ArrowTable(folder_files, table, options)
        if folder_files.format == "webdataset":
            return folder_files, WebDatasetTable(folder_files, table, options)
        return folder_files, JsonTable(folder_files, table, options)

    def _select_files(
        self, query: SourceQuery, options: FolderOptions, table: TableName
    ) -> FolderFiles:
        """Return the files of a query, which have a common format."""
        if query.table is not None or query.sql is not None:
            raise InvalidArgument(
                f"Invalid query of a folder source: {query}.",
                hint="pass path='orders', or no path for the complete folder",
            )
        # A path with ".." or a symbolic link must not reach files outside of the registered folder.
        files_root = locations.resolve_inside(self._root, query.path or ".")
        if files_root is None:
            raise InvalidArgument(
                f"path={query.path!r} is outside of the source {self._config.name!r}.",
                hint="register the other folder as a separate source",
            )
        file_listing = self._list_files(files_root)
        folder_files = folders_listing.split_by_format(
            file_listing, root=self._root, files_root=files_root, options=options, table=table
        )
        if folder_files is not None:
            return folder_files
        table_names = [table.name for table in self.tables()]
        raise SourceTableNotFound(
            f"Source {self._config.name!r} has no files at {query.path or '.'!r}; "
            f"available: {listing(table_names)}.{_describe_unread(file_listing)}",
            hint=did_you_mean(query.path or "", table_names, write="path={!r}")
            or self._hint_for_unread(file_listing, table),
        )

    def _hint_for_unread(self, file_listing: FileListing, table: TableName) -> str:
        """Return a call that reads files which are hidden, or have an unknown extension."""
        hidden = list(filter(folders_listing.is_known, file_listing.hidden))
        if hidden:
            call = replace(table, path=folders_listing.relative_path(self._root, hidden[0])).call()
            return f"{call} reads it; a file with another name is not hidden"
        paths = list(file_listing.statuses)
        for path in paths:
            dialect = SIMILAR_ENDINGS.get(folders_listing.split_extensions(path)[0])
            if dialect is None:
                continue
            # A call without a path reads files with a common extension.
            if not folders_listing.formats_by_path(paths, dialect["format"]):
                table = replace(table, path=folders_listing.relative_path(self._root, path))
            return (
                f"{table.call(**dialect)} reads {folders_listing.relative_path(self._root, path)}"
            )
        endings = sorted({ending for endings in ENDINGS.values() for ending in endings})
        return (
            f"file extensions are {listing(endings)}, and for compressed files also "
            f"{listing(COMPRESSIONS)}; format='csv' reads files with another extension"
        )

    def _list_files(self, root: str) -> FileListing:
        # The listing of the snapshot is reused, so that later changes are detected.
        if root == self._root:
            return self._listing
        with locations.storage_errors(self._config):
            return locations.list_files(root)

    def _check_changes_at_end(
        self, batches: Iterator[pa.RecordBatch], table: FolderTable
    ) -> Iterator[pa.RecordBatch]:
        # A change is only known after the last read of the files.
        yield from batches
        self._check_unchanged(table)

    def _check_unchanged(self, table: FolderTable) -> None:
        """Raise SourceChanged if the files of a table have changed since the listing."""
        with locations.storage_errors(self._config):
            unchanged = locations.are_unchanged(
                table.folder_files.root, table.folder_files.statuses
            )
        if not unchanged:
            raise SourceChanged(
                f"Files of source {self._config.name!r} changed while they were read.",
                hint="read again after the files are complete",
            )


def _describe_unread(file_listing: FileListing) -> str:
    text = ""
    if file_listing.statuses:
        names = [os.path.basename(path) for path in file_listing.statuses]
        text += f" Files of other formats: {listing(names)}."
    hidden = [
        os.path.basename(path) for path in file_listing.hidden if folders_listing.is_known(path)
    ]
    if hidden:
        text += f" Hidden files, whose names begin with '.' or '_': {listing(hidden)}."
    return text


if TYPE_CHECKING:
    _contract: type[Source] = FolderSource
    _snapshot: type[SourceSnapshot] = FolderSnapshot
    _quarantine: type[QuarantiningSnapshot] = FolderSnapshot
    _described: type[DescribedSnapshot] = FolderSnapshot
