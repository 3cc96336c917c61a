"""DuckDB SQL for the files of an Iceberg snapshot: columns by field id, without deleted rows.

Columns that were renamed, added or widened after a file was written are resolved by field id
(https://iceberg.apache.org/spec/#column-projection).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import duckdb

from featurestore.errors import SourceError, UnsupportedType
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore_connectors.sources import duckdb_rows, sqltext
from featurestore_connectors.sources.drivers import to_single_line

if TYPE_CHECKING:
    from featurestore_connectors.sources.iceberg_catalogs import TableFiles

_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}
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
        SourceError: The files need a newer reader.
    """
    fields = _readable_fields(schema, query)
    if snapshot is None:
        return _empty_rows(fields)
    scan = table.scan(snapshot_id=snapshot.snapshot_id)
    if query.window is not None:
        scan = scan.filter(_window_filter(schema, query.window))
    paths, deletes = [], set()
    for task in _plan_files(config, scan):
        paths.append(table.io.locate(task.file.file_path))
        # Data files share delete files, so the paths are a set.
        for delete in task.delete_files:
            deletes.add(_delete_path(config, table.io, delete))
    if not paths:
        return _empty_rows(fields)
    if any("://" in path for path in (*paths, *deletes)):
        duckdb_rows.read_remote_files(connection)
    _check_ids(config, connection, [*paths])
    columns = ", ".join(sqltext.quote(field.name) for field in fields)
    source = f"{_scan_parquet(paths)}, schema = {_schema_map(fields)}"
    if not deletes:
        return f"(SELECT {columns} FROM read_parquet({source})) AS rows"
    source += f", {_FILE} = true, {_NUMBER} = true"
    deleted_rows = (
        "SELECT 1 FROM deleted WHERE deleted.pos = rows.file_row_number AND deleted.file = "
        "rows.filename"
    )
    return (
        # Delete files contain locations such as file:///path, but the file names of DuckDB are
        # paths.
        f"(WITH deleted AS (SELECT {table.io.sql_path('file_path')} AS file, pos "
        f"FROM read_parquet({_scan_parquet(sorted(deletes))})) "
        f"SELECT {columns} FROM read_parquet({source}) AS rows WHERE NOT EXISTS ({deleted_rows})) AS rows"
    )


def _plan_files(config: SourceConfig, scan: Any) -> list[Any]:
    """Return the file scan tasks of a scan, with their delete files."""
    try:
        return list(scan.plan_files())
    except (ValueError, NotImplementedError) as error:
        # pyiceberg raises these errors for equality deletes.
        raise SourceError(
            f"Source {config.name!r}: the table has equality deletes, which are not supported.",
            hint="rewrite the data files of the table, or read it with the engine that wrote it",
        ) from error


def _readable_fields(schema: Any, query: SourceQuery) -> list[Any]:
    """Return the readable fields; raise UnsupportedType if other fields are requested."""
    names = query.columns
    readable, unsupported = [], []
    for field in schema.fields:
        # Files that are older than a column with an initial default do not contain its values.
        has_default = getattr(field, "initial_default", None) is not None
        if _duckdb_type(field.field_type) is not None and not has_default:
            readable.append(field)
        elif names is None or field.name in names:
            unsupported.append(f"{field.name!r} ({field.field_type})")
    if unsupported:
        raise UnsupportedType(
            f"{query}: these columns cannot be read without loss: {', '.join(unsupported)}.",
            hint=f"columns={[field.name for field in readable]!r} leaves them out",
        )
    return readable


def _duckdb_type(kind: Any) -> str | None:
    """Return the DuckDB type of an Iceberg type, or None if it is not supported."""
    text = str(kind)
    if text.startswith("decimal("):
        return text.upper()
    if text.startswith("fixed["):
        return "BLOB"
    if text.startswith("list<"):
        element = _duckdb_type(kind.element_type)
        if element is not None and not element.endswith("]"):
            return f"{element}[]"
        return None
    return _TYPES.get(text)


def _schema_map(fields: Sequence[Any]) -> str:
    entries = []
    for field in fields:
        name, kind = sqltext.text(field.name), sqltext.text(str(_duckdb_type(field.field_type)))
        # Files written before a column was added have nulls in it.
        entries.append(f"{field.field_id}: {{name: {name}, type: {kind}, default_value: NULL}}")
    return f"MAP {{{', '.join(entries)}}}"


def _empty_rows(fields: Sequence[Any]) -> str:
    columns = [
        f"NULL::{_duckdb_type(field.field_type)} AS {sqltext.quote(field.name)}" for field in fields
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


def _delete_path(config: SourceConfig, table_files: TableFiles, delete: Any) -> str:
    """Return the path of a delete file; refuse formats other than Parquet."""
    if str(delete.file_format).upper().endswith("PARQUET"):
        return table_files.locate(delete.file_path)
    raise SourceError(
        f"Source {config.name!r}: the table has delete files of format {delete.file_format}, "
        "which is not supported.",
        hint="rewrite the data files of the table, or read it with the engine that wrote it",
    )


def _check_ids(
    config: SourceConfig, connection: duckdb.DuckDBPyConnection, paths: list[str]
) -> None:
    """Refuse files without field ids: their columns would have to be resolved by name."""
    text = (
        f"SELECT file_name FROM parquet_schema({_scan_parquet(paths)}) "
        "GROUP BY file_name HAVING count(field_id) = 0 LIMIT 1"
    )
    try:
        files_without_ids = connection.cursor().execute(text).fetchall()
    except duckdb.Error as error:
        if not isinstance(error, duckdb.IOException) and "does not exist" not in str(error):
            raise duckdb_rows.convert_error(config, error) from error
        raise SourceError(
            f"Source {config.name!r}: a file of the table no longer exists: "
            f"{to_single_line(str(error), None)}",
            hint="the snapshot may have expired during the read",
        ) from error
    if files_without_ids:
        raise SourceError(
            f"Source {config.name!r}: {files_without_ids[0][0]} has no Iceberg field ids: it was not "
            "written for this table, but added to it.",
            hint="rewrite the data files of the table",
        )


def _scan_parquet(paths: Sequence[str]) -> str:
    literals = []
    for path in paths:
        # DuckDB treats *, ? and [ in paths as wildcards.
        escaped = path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")
        literals.append(sqltext.text(escaped))
    return f"[{', '.join(literals)}]"
