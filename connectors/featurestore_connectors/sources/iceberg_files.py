"""DuckDB SQL for the files of an Iceberg snapshot: columns by field id, without deleted rows.

Columns that were renamed, added or widened after a file was written are resolved by field id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb

from featurestore.errors import SourceError, UnsupportedType
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore_connectors.sources import duckdb_rows, iceberg_columns, sqltext
from featurestore_connectors.sources.iceberg_columns import FileGroup, column_name, duckdb_type

if TYPE_CHECKING:
    from featurestore_connectors.sources.iceberg_catalogs import TableFiles

_NUMBER, _FILE = "file_row_number", "filename"


def rows(
    config: SourceConfig,
    connection: duckdb.DuckDBPyConnection,
    table: Any,
    snapshot: Any,
    schema: Any,
    query: SourceQuery,
) -> str:
    """Return a subquery for the rows of a table snapshot, without files outside the query window.

    Raises:
        UnsupportedType: A requested column has an unsupported type.
        InvalidSourceFile: A file lacks a requested column, and nothing else has its values.
        SourceError: The files need a newer reader.
    """
    fields = _readable_fields(schema, query)
    if snapshot is None:
        return _empty_rows(fields)
    scan = table.scan(snapshot_id=snapshot.snapshot_id)
    if query.window is not None:
        scan = scan.filter(_window_filter(schema, query.window))
    partitions, deletes = _plan_paths(config, table, scan)
    if not partitions:
        return _empty_rows(fields)
    if any("://" in path for path in (*partitions, *deletes)):
        duckdb_rows.read_remote_files(connection)
    groups = iceberg_columns.group_files(config, connection, partitions, table.name_mapping())
    for field in fields:
        if _is_requested(field, query):
            for group in groups:
                group.check_values(config, field)
    selects = " UNION ALL ".join(
        _select_files(group, fields, has_deletes=bool(deletes)) for group in groups
    )
    if not deletes:
        return f"({selects}) AS rows"
    return (
        # Delete files contain locations such as file:///path, but the file names of DuckDB are
        # paths.
        f"(WITH deleted AS (SELECT {table.io.sql_path('file_path')} AS file, pos "
        f"FROM read_parquet({sqltext.file_list(sorted(deletes))})) {selects}) AS rows"
    )


def _select_files(group: FileGroup, fields: Sequence[Any], *, has_deletes: bool) -> str:
    """Return a SELECT of the fields from the files of a group."""
    columns = ", ".join(f"{group.column(field)} AS {sqltext.quote(field.name)}" for field in fields)
    text = (
        f"SELECT {columns} FROM read_parquet({sqltext.file_list(list(group.partitions))}, "
        f"schema = {_schema_map(group, fields)}, {_FILE} = true, {_NUMBER} = true) AS rows"
    )
    partitioned = [field for field in fields if group.has_partition_values(field)]
    if partitioned:
        text += f" JOIN {_constants(group, partitioned)} ON constants.file = rows.{_FILE}"
    if has_deletes:
        text += (
            f" WHERE NOT EXISTS (SELECT 1 FROM deleted WHERE deleted.pos = rows.{_NUMBER} AND "
            f"deleted.file = rows.{_FILE})"
        )
    return text


def _schema_map(group: FileGroup, fields: Sequence[Any]) -> str:
    """Return the ``schema`` of ``read_parquet`` for the columns that files have."""
    entries = []
    for field in fields:
        if field.field_id in group.keys:
            key = group.keys[field.field_id]
            entries.append(
                f"{key if isinstance(key, int) else sqltext.text(key)}: {{name: "
                f"'{column_name(field)}', type: '{duckdb_type(field.field_type)}', "
                "default_value: NULL}"
            )
    # DuckDB requires an entry. No field has the id -1.
    no_column = "-1: {name: 'none', type: 'BOOLEAN', default_value: NULL}"
    return f"MAP {{{', '.join(entries or [no_column])}}}"


def _constants(group: FileGroup, fields: Sequence[Any]) -> str:
    """Return the table ``constants`` with the partition values of each file."""
    rows = []
    for path, values in group.partitions.items():
        literals = [iceberg_columns.literal(values[field.field_id], field) for field in fields]
        rows.append(f"({', '.join([sqltext.text(path), *literals])})")
    names = ", ".join(["file", *map(column_name, fields)])
    return f"(VALUES {', '.join(rows)}) AS constants({names})"


def _identity_values(table: Any, data_file: Any) -> Mapping[int, Any]:
    """Return the values of a file's identity partitions by the id of their column."""
    from pyiceberg.transforms import IdentityTransform

    fields = table.specs()[data_file.spec_id].fields
    return {
        field.source_id: data_file.partition[position]
        for position, field in enumerate(fields)
        if isinstance(field.transform, IdentityTransform)
    }


def _is_requested(field: Any, query: SourceQuery) -> bool:
    is_window = query.window is not None and query.window.column == field.name
    return query.columns is None or field.name in query.columns or is_window


def _plan_paths(
    config: SourceConfig, table: Any, scan: Any
) -> tuple[dict[str, Mapping[int, Any]], set[str]]:
    """Return the paths of a scan's data files with their partition values, and of delete files."""
    try:
        tasks = list(scan.plan_files())
    except (ValueError, NotImplementedError) as error:
        if "equality delete" not in str(error):
            raise
        raise SourceError(
            f"Source {config.name!r}: the table has equality deletes, which are not supported.",
            hint="rewrite the data files of the table, or read it with the engine that wrote it",
        ) from error
    partitions: dict[str, Mapping[int, Any]] = {}
    deletes: set[str] = set()
    for task in tasks:
        partitions[_locate(config, table.io, task.file)] = _identity_values(table, task.file)
        # Data files share delete files.
        deletes.update(_locate(config, table.io, delete) for delete in task.delete_files)
    return partitions, deletes


def _readable_fields(schema: Any, query: SourceQuery) -> list[Any]:
    """Return the readable fields; raise UnsupportedType if other fields are requested."""
    requested = [field for field in schema.fields if _is_requested(field, query)]
    # DuckDB does not distinguish names by case. A name that is not requested gives way.
    counts = Counter(field.name.lower() for field in requested)
    readable, unsupported = [], []
    for field in schema.fields:
        is_requested = field in requested
        if counts[field.name.lower()] > is_requested:
            if is_requested:
                unsupported.append(f"{field.name!r} (a name that differs in case only)")
        elif duckdb_type(field.field_type) is not None:
            readable.append(field)
        elif is_requested:
            unsupported.append(f"{field.name!r} ({field.field_type})")
    if unsupported:
        raise UnsupportedType(
            f"{query}: these columns cannot be read without loss: {', '.join(unsupported)}.",
            hint=f"columns={[field.name for field in readable]!r} leaves them out",
        )
    return readable


def _empty_rows(fields: Sequence[Any]) -> str:
    columns = [
        f"NULL::{duckdb_type(field.field_type)} AS {sqltext.quote(field.name)}" for field in fields
    ]
    return f"(SELECT {', '.join(columns)} WHERE false) AS rows"


def _window_filter(schema: Any, window: TimeRange) -> Any:
    """Return a filter that keeps all files with rows in a window; it may keep more files."""
    import pyiceberg.expressions

    terms: Any = pyiceberg.expressions  # its annotations do not know names as terms
    kinds = {field.name: str(field.field_type) for field in schema.fields}
    start, end = window.start.isoformat(), window.end.isoformat()
    if kinds.get(window.column) == "timestamp":
        # pyiceberg refuses a zone in literals of type timestamp.
        start, end = start.removesuffix("+00:00"), end.removesuffix("+00:00")
    elif kinds.get(window.column) == "date":
        start, end = window.start.date().isoformat(), window.end.date().isoformat()
    elif kinds.get(window.column) != "timestamptz":
        return terms.AlwaysTrue()
    # Both bounds are inclusive, since the exact window is applied to the rows.
    after = terms.GreaterThanOrEqual(window.column, start)
    return terms.And(after, terms.LessThanOrEqual(window.column, end))


def _locate(config: SourceConfig, table_files: TableFiles, file: Any) -> str:
    """Return the path of a data file or delete file; refuse formats other than Parquet."""
    if str(file.file_format).upper().endswith("PARQUET"):
        return table_files.locate(file.file_path)
    raise SourceError(
        f"Source {config.name!r}: the table has files of format {file.file_format}, which is not "
        "supported.",
        hint="rewrite the data files of the table, or read it with the engine that wrote it",
    )
