"""Scans of Delta versions: file lists, partition values and added columns as DuckDB relations.

Partition values come from the log, never from file paths: a folder ``env=prod`` above the store is
unrelated to its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta.datafile import DataFile
from featurestore.delta.presence import check_files
from featurestore.delta.schema import requested_schema
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta import sqltext
from featurestore_connectors.duckdb_delta.files import NewFile
from featurestore_connectors.duckdb_delta.relations import relation
from featurestore_connectors.duckdb_delta.session import Database

# The path of a row's file; feature names cannot start with this prefix.
FILE = "__fs_file"
# The row id: the ascending position of a row among all rows of a version.
POSITION = "__fs_position"
# DuckDB's virtual column for a file's index in the list, and the alias of a user column with the
# same name.
_FILE_INDEX = "file_index"
_OWN_FILE_INDEX = "__fs_own_file_index"
_POSITION = f"({_FILE_INDEX}::BIGINT << 40) | file_row_number"
# Columns of these names hide DuckDB's virtual columns.
RESERVED_NAMES = (_FILE_INDEX, "file_row_number")


def read_table(
    database: Database,
    path: str,
    *,
    version: int | None,
    schema: pa.Schema | None,
    columns: Sequence[str] | None,
) -> Relation:
    """Return a version of a table in feature types; columns that were added later are null."""
    snapshot = read_snapshot(path, version)
    check_files(snapshot)
    target_schema = requested_schema(snapshot.path, snapshot.schema, schema, columns)
    return relation(database.bind(_select(snapshot, target_schema)), target_schema)


def read_positions(
    database: Database, path: str, *, version: int, schema: pa.Schema, columns: Sequence[str]
) -> Relation:
    """Return columns of a version, preceded by ``POSITION``, in the order of ``POSITION``.

    The table must not have a column named in ``RESERVED_NAMES``.
    """
    snapshot = read_snapshot(path, version)
    check_files(snapshot)
    target_schema = requested_schema(snapshot.path, snapshot.schema, schema, columns)
    schema_with_position = pa.schema([pa.field(POSITION, pa.int64()), *target_schema])
    if not snapshot.files:
        return relation(database.bind(sqltext.empty(schema_with_position)), schema_with_position)
    stored_schema = _select_fields(snapshot.schema, set(target_schema.names))
    source = _from_files(
        snapshot, snapshot.files, stored_schema, more=[f"{_POSITION} AS {POSITION}"]
    )
    casts = sqltext.casts(
        schema_with_position, {POSITION: "BIGINT"} | sqltext.types_of(stored_schema)
    )
    return relation(database.bind(f"SELECT {casts} FROM {source}"), schema_with_position)


def _select(snapshot: Snapshot, target: pa.Schema) -> str:
    """Return a query for columns of a version; missing columns are null."""
    if not snapshot.files:
        return sqltext.empty(target)
    stored_schema = _select_fields(snapshot.schema, set(target.names))
    columns = sqltext.casts(target, sqltext.types_of(stored_schema))
    return f"SELECT {columns} FROM {_from_files(snapshot, snapshot.files, stored_schema)}"


def scan_all(snapshot: Snapshot, files: Sequence[DataFile | NewFile]) -> str:
    """Return a FROM item with the stored columns of some files, and ``FILE``."""
    return _from_files(snapshot, files, snapshot.schema)


def parquet(schema: pa.Schema, paths: Sequence[str]) -> str:
    """Return a FROM item for the columns of a schema from Parquet files, and ``FILE``."""
    return _read_parquet(dict(zip(schema.names, schema.names, strict=True)), schema, paths)


def _from_files(
    snapshot: Snapshot,
    files: Sequence[DataFile | NewFile],
    stored_schema: pa.Schema,
    *,
    more: Sequence[str] = (),
) -> str:
    """Return a FROM item with columns of some files; partition values are looked up by file index.

    ``more`` are expressions over DuckDB's virtual columns.
    """
    paths = [file.path for file in files]
    in_files = _select_fields(
        stored_schema, set(stored_schema.names).difference(snapshot.partition_by)
    )
    if len(in_files) == len(stored_schema) and not more:
        return parquet(stored_schema, paths)
    aliases: dict[str, str] = {}
    projections = []
    for name in stored_schema.names:
        quoted = sqltext.quote(name)
        if name in snapshot.partition_by:
            values = _values([file.partition.get(name) for file in files])
            value = _typed(f"({values})[{_FILE_INDEX}::BIGINT + 1]", stored_schema.field(name).type)
            projections.append(f"{value} AS {quoted}")
            continue
        aliases[name] = name
        if name.lower() == _FILE_INDEX:
            aliases[name] = _OWN_FILE_INDEX
        projections.append(f"{sqltext.quote(aliases[name])} AS {quoted}")
    if not aliases:
        # DuckDB must read at least one column that is in the files.
        first = next(field for field in snapshot.schema if field.name not in snapshot.partition_by)
        aliases, in_files = {first.name: _OWN_FILE_INDEX}, pa.schema([first])
    source = _read_parquet(aliases, in_files, paths)
    return f"(SELECT {', '.join([*projections, *more])}, {FILE} FROM {source})"


def _select_fields(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the fields of a schema with these names, in schema order."""
    return pa.schema([field for field in schema if field.name in names])


def _read_parquet(aliases: dict[str, str], schema: pa.Schema, paths: Sequence[str]) -> str:
    # With an explicit schema DuckDB does not open files before it reads them, and missing columns
    # are null.
    fields = []
    for name, alias in aliases.items():
        kind = sqltext.text(sqltext.column_type(schema.field(name).type))
        column = f"name: {sqltext.text(alias)}, type: {kind}, default_value: NULL"
        fields.append(f"{sqltext.text(name)}: {{{column}}}")
    options = f"filename='{FILE}', hive_partitioning=false, schema=MAP {{{', '.join(fields)}}}"
    return f"read_parquet({sqltext.file_list(paths)}, {options})"


def _values(texts: Iterable[str | None]) -> str:
    """Return a list of strings as a DuckDB literal."""
    literals = []
    for text in texts:
        if text is None:
            literals.append("NULL")
        else:
            literals.append(sqltext.text(text))
    return f"[{', '.join(literals)}]::VARCHAR[]"


def _typed(text: str, kind: pa.DataType) -> str:
    """Return the cast of a partition value's text to the column's type; binaries are stored as text."""
    if pat.is_binary(kind):
        return f"encode({text})"
    return f"CAST({text} AS {sqltext.column_type(kind)})"
