"""Delta versions as DuckDB relations: Parquet files by list, with partition values and later columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from featurestore.delta import deltalog
from featurestore.delta.deltalog import DataFile, TableState
from featurestore.errors import SchemaMismatch, listing
from featurestore.model.types import feature_schema
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta import sqltext
from featurestore_connectors.duckdb_delta.relations import relation
from featurestore_connectors.duckdb_delta.session import Database

# Where a row came from; feature names cannot begin like this.
FILE = "__fs_file"
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def read_table(
    database: Database,
    path: str,
    *,
    version: int | None,
    schema: pa.Schema | None,
    columns: Sequence[str] | None,
) -> Relation:
    """Return a version of a table in feature types; columns that it did not have yet are null."""
    state = deltalog.table_state(path, version)
    deltalog.check_files(state.files)
    wanted = feature_schema(state.schema) if schema is None else schema
    if columns is not None:
        absent = [column for column in columns if column not in wanted.names]
        if absent:
            raise SchemaMismatch(
                f"{path} has no columns {listing(absent)}; it has {listing(wanted.names, limit=50)}."
            )
        wanted = pa.schema([wanted.field(column) for column in columns])
    return relation(database.bind(select(state, state.files, wanted)), wanted)


def select(
    state: TableState,
    files: Sequence[DataFile],
    target: pa.Schema,
    *,
    extra: str = "",
    where: str | None = None,
) -> str:
    """Return a query for the columns of ``target`` from some files of a version.

    ``extra`` is added to the select list (its text begins with a comma); it may use the column ``FILE``.
    """
    stored = pa.schema([field for field in state.schema if field.name in target.names])
    condition = "" if where is None else f" WHERE {where}"
    if not files:
        return f"SELECT *{extra} FROM ({sqltext.empty(target)}){condition}"
    at_hand = sqltext.types_of(stored)
    parts = [
        f"SELECT {sqltext.casts(target, at_hand)}{extra} FROM {source}{condition}"
        for source in _sources(state, files)
    ]
    return " UNION ALL ".join(parts)


def scan_all(state: TableState, files: Sequence[DataFile]) -> str:
    """Return a FROM item that gives the stored columns of some files, and ``FILE``."""
    sources = _sources(state, files)
    if len(sources) == 1:
        return sources[0]
    columns = sqltext.names(state.schema.names)
    return (
        "("
        + " UNION ALL ".join(f"SELECT {columns}, {FILE} FROM {source}" for source in sources)
        + ")"
    )


def _sources(state: TableState, files: Sequence[DataFile]) -> list[str]:
    if not state.partition_by:
        return [parquet(state.schema, [file.path for file in files])]
    if all(_says_the_same(state, file) for file in files):
        return [_by_folder_names(state, files)]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for file in files:
        groups.setdefault(tuple(file.partition.items()), []).append(file.path)
    return [_one_partition(state, dict(values), paths) for values, paths in groups.items()]


def parquet(schema: pa.Schema, paths: Sequence[str]) -> str:
    """Return a FROM item for the columns of a schema from Parquet files, and ``FILE``."""
    # With the schema given DuckDB opens no file before it reads it, and columns that a file lacks are null.
    fields = ", ".join(
        f"{sqltext.text(field.name)}: {{name: {sqltext.text(field.name)}, "
        f"type: {sqltext.text(sqltext.column_type(field.type))}, default_value: NULL}}"
        for field in schema
    )
    return f"read_parquet({sqltext.file_list(paths)}, filename='{FILE}', schema=MAP {{{fields}}})"


def _by_folder_names(state: TableState, files: Sequence[DataFile]) -> str:
    texts = ", ".join(f"{sqltext.quote(name)}: VARCHAR" for name in state.partition_by)
    listed = sqltext.file_list([file.path for file in files])
    options = (
        f"filename='{FILE}', union_by_name=true, hive_partitioning=true, hive_types={{{texts}}}"
    )
    source = f"read_parquet({listed}, {options})"
    return _completed(state, source, {name: sqltext.quote(name) for name in state.partition_by})


def _one_partition(state: TableState, values: Mapping[str, Any], paths: Sequence[str]) -> str:
    options = f"filename='{FILE}', union_by_name=true, hive_partitioning=false"
    source = f"read_parquet({sqltext.file_list(paths)}, {options})"
    return _completed(
        state,
        source,
        {name: str(duckdb.ConstantExpression(value)) for name, value in values.items()},
    )


def _completed(state: TableState, source: str, partition: Mapping[str, str]) -> str:
    """Return a FROM item with every stored column: from the files, from ``partition`` (SQL), or null."""
    kinds = sqltext.types_of(state.schema)
    values = "".join(
        f", CAST({value} AS {kinds[name]}) AS {sqltext.quote(name)}"
        for name, value in partition.items()
    )
    stored = f"COLUMNS(lambda c: c NOT IN ({', '.join(map(sqltext.text, partition))}))"
    # The branch without rows brings the columns that no file has, under their types.
    return (
        f"(SELECT *, CAST(NULL AS VARCHAR) AS {FILE} FROM ({sqltext.empty(state.schema)}) "
        f"UNION ALL BY NAME SELECT {stored}{values} FROM {source})"
    )


def _says_the_same(state: TableState, file: DataFile) -> bool:
    """Tell whether the folders of a file name exactly the partition values that the log has for it."""
    folders = os.path.relpath(file.path, state.path).split(os.sep)[:-1]
    named = dict(folder.split("=", 1) for folder in folders if "=" in folder)
    return len(named) == len(folders) and all(
        name in named and _reads_as(named[name], file.partition[name])
        for name in state.partition_by
    )


def _reads_as(folder: str, value: Any) -> bool:
    if value is None or folder == _NULL_FOLDER:
        return value is None and folder == _NULL_FOLDER
    text = unquote(folder)
    try:
        if isinstance(value, bool):
            return text == str(value).lower()
        if isinstance(value, datetime):
            found = datetime.fromisoformat(text)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)) == value
        if isinstance(value, date):
            return date.fromisoformat(text) == value
        if isinstance(value, int | Decimal):
            return Decimal(text) == value
    except (ValueError, ArithmeticError):
        return False
    return isinstance(value, str) and text == value
