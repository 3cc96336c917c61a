"""Delta versions as DuckDB relations: Parquet files by list, partition values, later columns.

Partition values come from the log, never from the paths of files: a folder ``env=prod`` anywhere
above a store says nothing about its rows.
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

# Where a row came from; feature names cannot begin like this.
FILE = "__fs_file"
# A row's place among all rows of a version: it ascends as they are read.
POSITION = "__fs_position"
# DuckDB's name for the number of a file in its list, and what a column of that name is called
# while it is read.
_FILE_INDEX = "file_index"
_OWN_FILE_INDEX = "__fs_own_file_index"
_POSITION = f"({_FILE_INDEX}::BIGINT << 40) | file_row_number"
# Columns of these names hide DuckDB's.
NAMES_OF_PLACES = (_FILE_INDEX, "file_row_number")


def read_table(
    database: Database,
    path: str,
    *,
    version: int | None,
    schema: pa.Schema | None,
    columns: Sequence[str] | None,
) -> Relation:
    """Return a version of a table in feature types; columns that it did not have yet are null."""
    snapshot = read_snapshot(path, version)
    check_files(snapshot)
    wanted = requested_schema(snapshot.path, snapshot.schema, schema, columns)
    return relation(database.bind(_select(snapshot, wanted)), wanted)


def read_positions(
    database: Database, path: str, *, version: int, schema: pa.Schema, columns: Sequence[str]
) -> Relation:
    """Return columns of a version, behind ``POSITION``, by which their rows are in order.

    None of the table's columns may have one of ``NAMES_OF_PLACES``.
    """
    snapshot = read_snapshot(path, version)
    check_files(snapshot)
    wanted = requested_schema(snapshot.path, snapshot.schema, schema, columns)
    placed = pa.schema([pa.field(POSITION, pa.int64()), *wanted])
    if not snapshot.files:
        return relation(database.bind(sqltext.empty(placed)), placed)
    stored = _only(snapshot.schema, set(wanted.names))
    source = _from_files(snapshot, snapshot.files, stored, more=[f"{_POSITION} AS {POSITION}"])
    casts = sqltext.casts(placed, {POSITION: "BIGINT"} | sqltext.types_of(stored))
    return relation(database.bind(f"SELECT {casts} FROM {source}"), placed)


def _select(snapshot: Snapshot, target: pa.Schema) -> str:
    """Return a query for columns of a version; those that it does not have are null."""
    if not snapshot.files:
        return sqltext.empty(target)
    stored = _only(snapshot.schema, set(target.names))
    columns = sqltext.casts(target, sqltext.types_of(stored))
    return f"SELECT {columns} FROM {_from_files(snapshot, snapshot.files, stored)}"


def scan_all(snapshot: Snapshot, files: Sequence[DataFile | NewFile]) -> str:
    """Return a FROM item that gives the stored columns of some files, and ``FILE``."""
    return _from_files(snapshot, files, snapshot.schema)


def parquet(schema: pa.Schema, paths: Sequence[str]) -> str:
    """Return a FROM item for the columns of a schema from Parquet files, and ``FILE``."""
    return _read_parquet(dict(zip(schema.names, schema.names, strict=True)), schema, paths)


def _from_files(
    snapshot: Snapshot,
    files: Sequence[DataFile | NewFile],
    stored: pa.Schema,
    *,
    more: Sequence[str] = (),
) -> str:
    """Return a FROM item with columns of some files: partition values by the number of the file.

    ``more`` are expressions over what DuckDB says of places.
    """
    paths = [file.path for file in files]
    in_files = _only(stored, set(stored.names).difference(snapshot.partition_by))
    if len(in_files) == len(stored) and not more:
        return parquet(stored, paths)
    aliases: dict[str, str] = {}
    selected = []
    for name in stored.names:
        quoted = sqltext.quote(name)
        if name in snapshot.partition_by:
            values = _values([file.partition.get(name) for file in files])
            value = _typed(f"({values})[{_FILE_INDEX}::BIGINT + 1]", stored.field(name).type)
            selected.append(f"{value} AS {quoted}")
            continue
        aliases[name] = name
        if name.lower() == _FILE_INDEX:
            aliases[name] = _OWN_FILE_INDEX
        selected.append(f"{sqltext.quote(aliases[name])} AS {quoted}")
    if not aliases:
        # DuckDB has to read some column: one that the files hold.
        first = next(each for each in snapshot.schema if each.name not in snapshot.partition_by)
        aliases, in_files = {first.name: _OWN_FILE_INDEX}, pa.schema([first])
    source = _read_parquet(aliases, in_files, paths)
    return f"(SELECT {', '.join([*selected, *more])}, {FILE} FROM {source})"


def _only(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the columns of a schema that have these names, in their order."""
    fields = []
    for field in schema:
        if field.name in names:
            fields.append(field)
    return pa.schema(fields)


def _read_parquet(aliases: dict[str, str], schema: pa.Schema, paths: Sequence[str]) -> str:
    # With the schema given DuckDB opens no file before it reads it, and columns that a file lacks
    # are null.
    fields = []
    for name, alias in aliases.items():
        kind = sqltext.text(sqltext.column_type(schema.field(name).type))
        column = f"name: {sqltext.text(alias)}, type: {kind}, default_value: NULL"
        fields.append(f"{sqltext.text(name)}: {{{column}}}")
    options = f"filename='{FILE}', hive_partitioning=false, schema=MAP {{{', '.join(fields)}}}"
    return f"read_parquet({sqltext.file_list(paths)}, {options})"


def _values(texts: Iterable[str | None]) -> str:
    """Return a list of texts as DuckDB writes it."""
    written = []
    for text in texts:
        if text is None:
            written.append("NULL")
        else:
            written.append(sqltext.text(text))
    return f"[{', '.join(written)}]::VARCHAR[]"


def _typed(text: str, kind: pa.DataType) -> str:
    """Return a text of the log as a value of a column's type; bytes are written as text."""
    if pat.is_binary(kind):
        return f"encode({text})"
    return f"CAST({text} AS {sqltext.column_type(kind)})"
