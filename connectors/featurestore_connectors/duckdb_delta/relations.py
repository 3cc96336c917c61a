"""DuckDB relations: adopted frames, table versions, files, and queries of the engine.

Partition values come from the log and never from file paths: a folder ``env=prod`` above the store
is not a partition.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import feature_schema
from featurestore.arrow.unstorable import cast_to_storable_types
from featurestore.delta.datafile import DataFile
from featurestore.delta.scan import TableScan, plan_scan
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import InvalidSql, StorageError, listing
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.storage import storage_for
from featurestore.usersql.typed_tables import warn_about_naive_times
from featurestore_connectors.duckdb_delta import sqltext, streams
from featurestore_connectors.duckdb_delta.session import Database, relation_lock, watch_source

ENGINE = "duckdb"
# The row number column for row comparisons. Feature names cannot start with this prefix.
NUMBER = "__fs_row"
# DuckDB's virtual column with the index of a file in the list, and the alias of a user column with
# the same name.
_FILE_INDEX = "file_index"
_OWN_FILE_INDEX = "__fs_own_file_index"
# The row id: the ascending position of a row among all rows of a version.
POSITION = "__fs_position"
# 40 bits for the row number in a file, the remaining bits for the index of the file: positions
# ascend in scan order.
_POSITION = f"({_FILE_INDEX}::BIGINT << 40) | file_row_number"
# User columns with these names hide DuckDB's virtual columns.
RESERVED_NAMES = (_FILE_INDEX, "file_row_number")


def relation(
    native: duckdb.DuckDBPyRelation, schema: pa.Schema, *, single_use: bool = False
) -> Relation:
    """Return a relation over a DuckDB relation of this engine."""
    return Relation(engine=ENGINE, native=native, schema=schema, single_use=single_use)


@dataclass(frozen=True)
class NewFile:
    """An uncommitted Parquet file; ``checksum``: None until it is computed."""

    path: str
    bytes: int
    rows: int
    statistics: str
    partition: Mapping[str, str | None] = field(default_factory=dict)
    checksum: str | None = None


@dataclass(frozen=True)
class StagedRows(streams.MappedRelation):
    """A relation over Parquet files staged by this engine (storage types, with statistics).

    ``source`` has the same rows in memory, if they came from a small stream.
    """

    files: tuple[NewFile, ...] = ()


@dataclass(frozen=True)
class ScannedRelation(streams.LazyRelation):
    """The rows of a table version, which can also be read from its files without DuckDB."""

    scan: TableScan | None = None


def adopt(database: Database, frame: duckdb.DuckDBPyRelation) -> Relation:
    """Return a relation over a user's DuckDB relation."""
    with relation_lock():
        rows: duckdb.DuckDBPyRelation = cast_to_storable_types(frame)
    try:
        native = database.connect_relation(rows)
    except duckdb.InvalidInputException:
        # The frame belongs to another database, so it is streamed at every read.
        foreign_rows = _ForeignRelation(rows)
        with relation_lock():
            native = database.connection.from_arrow(foreign_rows)
    return _to_relation(native, rows)


def _to_relation(native: duckdb.DuckDBPyRelation, rows: duckdb.DuckDBPyRelation) -> Relation:
    """Return a relation over ``native``, which has the columns of ``rows``."""
    with relation_lock():
        # Only a result has an Arrow schema, and LIMIT 0 reads no rows.
        arrow_schema = rows.limit(0).to_arrow_table().schema
        return cast_to_features(native, arrow_schema, [str(dtype) for dtype in rows.types])


class _ForeignRelation:
    """An Arrow source over a relation of another DuckDB database."""

    def __init__(self, frame: duckdb.DuckDBPyRelation) -> None:
        self._frame = frame
        self.schema = frame.limit(0).to_arrow_table().schema

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # DuckDB has no public API to get the connection of a relation.
        watch_source(getattr(self._frame, "_con", None))
        reader = self._frame.to_arrow_reader()
        return streams.source(self.schema, iter(reader)).__arrow_c_stream__()


def cast_to_features(
    native: duckdb.DuckDBPyRelation, arrow_schema: pa.Schema, types: Sequence[str]
) -> Relation:
    """Cast the columns of a native relation to feature types; ``types`` are their DuckDB types."""
    schema = feature_schema(arrow_schema)
    warn_about_naive_times(arrow_schema)
    columns = []
    for column, native_type in zip(schema, types, strict=True):
        name, feature_type = sqltext.quote(column.name), sqltext.column_type(column.type)
        value = name if native_type == feature_type else f"CAST({name} AS {feature_type})"
        columns.append(f"{value} AS {name}")
    return relation(native.project(", ".join(columns)), schema)


def read_scan(database: Database, scan: TableScan) -> Relation:
    """Return the rows of a table version in feature types; columns added later are null."""
    snapshot = scan.snapshot
    if not snapshot.files:
        return relation(database.bind(sqltext.empty(scan.schema)), scan.schema)
    # Only the requested columns, so that others may have types that DuckDB does not support.
    columns = set(scan.schema.names)
    stored_types = sqltext.types_of(_select_fields(snapshot.schema, columns))
    source = scan_files(snapshot, snapshot.files, columns=columns)
    query = f"SELECT {sqltext.casts(scan.schema, stored_types)} FROM {source}"
    return ScannedRelation(
        ENGINE, lambda: database.bind(query), scan.schema, query=query, scan=scan
    )


def read_positions(
    database: Database, path: str, *, version: int, schema: pa.Schema, columns: Sequence[str]
) -> Relation:
    """Return columns of a version preceded by ``POSITION``, ordered by ``POSITION``.

    The table must not have columns named in ``RESERVED_NAMES``.
    """
    scan = plan_scan(path, version=version, schema=schema, columns=columns)
    snapshot = scan.snapshot
    schema_with_position = pa.schema([pa.field(POSITION, pa.int64()), *scan.schema])
    if not snapshot.files:
        return relation(database.bind(sqltext.empty(schema_with_position)), schema_with_position)
    selected = set(scan.schema.names)
    stored_types = sqltext.types_of(_select_fields(snapshot.schema, selected))
    source = scan_files(
        snapshot, snapshot.files, columns=selected, more=[f"{_POSITION} AS {POSITION}"]
    )
    casts = sqltext.casts(schema_with_position, {POSITION: "BIGINT"} | stored_types)
    return relation(database.bind(f"SELECT {casts} FROM {source}"), schema_with_position)


def scan_files(
    snapshot: Snapshot,
    files: Sequence[DataFile | NewFile],
    *,
    columns: Collection[str] | None = None,
    more: Sequence[str] = (),
) -> str:
    """Return a FROM item with stored columns of files (default: all), and ``FILE``.

    Partition values are looked up by file index. ``more`` are additional expressions over DuckDB's
    virtual columns.
    """
    stored_schema = _select_fields(snapshot.schema, columns)
    paths = [file.path for file in files]
    in_files = pa.schema(
        [column for column in stored_schema if column.name not in snapshot.partition_by]
    )
    if len(in_files) == len(stored_schema) and not more:
        return sqltext.parquet_scan(stored_schema, paths)
    aliases: dict[str, str] = {}
    projections = []
    for name in stored_schema.names:
        quoted = sqltext.quote(name)
        if name in snapshot.partition_by:
            # Literals from the log: DuckDB would derive partition values from folder names, also
            # from those above the table.
            values = [file.partition.get(name) for file in files]
            literals = ["NULL" if value is None else sqltext.text(value) for value in values]
            value = f"([{', '.join(literals)}]::VARCHAR[])[{_FILE_INDEX}::BIGINT + 1]"
            dtype = stored_schema.field(name).type
            # Binary values are stored as strings.
            cast = (
                f"encode({value})"
                if pat.is_binary(dtype)
                else f"CAST({value} AS {sqltext.column_type(dtype)})"
            )
            projections.append(f"{cast} AS {quoted}")
            continue
        aliases[name] = name
        if name.lower() == _FILE_INDEX:
            aliases[name] = _OWN_FILE_INDEX
        projections.append(f"{sqltext.quote(aliases[name])} AS {quoted}")
    if not aliases:
        # DuckDB must read at least one column that is stored in the files.
        first = next(field for field in snapshot.schema if field.name not in snapshot.partition_by)
        aliases, in_files = {first.name: _OWN_FILE_INDEX}, pa.schema([first])
    source = sqltext.parquet_scan(in_files, paths, aliases=aliases)
    return f"(SELECT {', '.join([*projections, *more])}, {sqltext.FILE} FROM {source})"


def _select_fields(schema: pa.Schema, names: Collection[str] | None) -> pa.Schema:
    """Return the schema fields with these names (default: all), in schema order."""
    if names is None:
        return schema
    return pa.schema([column for column in schema if column.name in names])


def read_files(database: Database, paths: Sequence[str], *, schema: pa.Schema | None) -> Relation:
    """Read Parquet files and, recursively, folders; columns are matched by name."""
    patterns = [sqltext.text(_glob_pattern(path)) for path in paths]
    file_list = ", ".join(patterns)
    native = database.bind(f"SELECT * FROM read_parquet([{file_list}], union_by_name=true)")
    adopted = adopt(database, native)
    return adopted if schema is None else cast(adopted, schema)


def _glob_pattern(path: str) -> str:
    """Return the glob pattern of a Parquet file, or of all files in a folder."""
    storage = storage_for(path)
    escaped = sqltext.literal_path(path)
    if storage.is_directory(path):
        return os.path.join(escaped, "**", "*.parquet")
    if storage.exists(path):
        return escaped
    raise StorageError(
        f"{path} does not exist.", hint="pass Parquet files, or folders with Parquet files"
    )


def cast(rows: Relation, schema: pa.Schema) -> Relation:
    """Cast a relation to the columns and types of a schema; missing columns are null."""
    if rows.schema == schema:
        return rows
    with relation_lock():
        native = rows.native.project(sqltext.casts(schema, sqltext.types_of(rows.schema)))
    return relation(native, schema, single_use=rows.single_use)


def select(rows: Relation, columns: Mapping[str, str]) -> Relation:
    """Select and rename columns."""
    streams.check_columns(rows.schema, list(columns.values()))
    fields, projections = [], []
    for name, column in columns.items():
        fields.append(rows.schema.field(column).with_name(name))
        projections.append(f"{sqltext.quote(column)} AS {sqltext.quote(name)}")
    with relation_lock():
        native = rows.native.project(", ".join(projections))
    return relation(native, pa.schema(fields), single_use=rows.single_use)


def filter_rows(rows: Relation, predicate: str) -> Relation:
    """Filter rows by a SQL predicate."""
    with relation_lock():
        return relation(rows.native.filter(predicate), rows.schema, single_use=rows.single_use)


def range_condition(window: TimeRange) -> str:
    """Return the condition that a time is in a range; null for null times."""
    name = sqltext.quote(window.column)
    start, end = sqltext.timestamp_literal(window.start), sqltext.timestamp_literal(window.end)
    if window.closed == "right":
        return f"({name} > {start} AND {name} <= {end})"
    return f"({name} >= {start} AND {name} < {end})"


def sql(
    database: Database, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
) -> Relation:
    """Return the result of a query over named relations, with bound ``$name`` parameters."""
    # Only for queries of the engine; user queries run in the sandbox (``QuerySandbox``).
    natives = {name: table.native for name, table in tables.items()}
    try:
        native = database.bind(query, natives, parameters=parameters)
    except InvalidSql as error:
        hint = f"available tables: {listing(tables)}; parameters: {listing(parameters)}"
        raise InvalidSql(error.message, hint=hint) from error
    with relation_lock():
        rows = cast_to_storable_types(native)
    result = _to_relation(rows, rows)
    single_use = any(table.single_use for table in tables.values())
    return relation(result.native, result.schema, single_use=single_use)


def last_per_key(database: Database, rows: Relation, key: Sequence[str]) -> Relation:
    """Return the last row of each key in relation order; all rows with null keys are kept."""
    streams.check_columns(rows.schema, key)
    columns, number = sqltext.names(key), sqltext.quote(NUMBER)
    is_last = f"row_number() OVER (PARTITION BY {columns} ORDER BY {number} DESC) = 1"
    query = f"""
        SELECT {sqltext.names(rows.schema.names)}
        FROM (SELECT *, row_number() OVER () AS {number} FROM input)
        QUALIFY NOT ({sqltext.all_present(key)}) OR {is_last}
        ORDER BY {number}
    """
    native = database.bind(query, {"input": rows.native})
    return relation(native, rows.schema, single_use=rows.single_use)
