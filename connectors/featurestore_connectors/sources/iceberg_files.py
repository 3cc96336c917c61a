"""DuckDB SQL for the files of an Iceberg snapshot: columns by field id, without deleted rows.

Columns that were renamed, added or widened after a file was written are resolved by field id. A
column that a file lacks has the value of the file's partition, else the default of the schema, else
null if it is optional (https://iceberg.apache.org/spec/#column-projection).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import duckdb

from featurestore.errors import InvalidSourceFile, SourceError, UnsupportedType
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore.storage.location import remove_owner
from featurestore_connectors.sources import duckdb_rows, sqltext

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import DataScan, Table
    from pyiceberg.table.name_mapping import NameMapping
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import NestedField

    from featurestore_connectors.sources.iceberg_catalogs import TableFiles

# The values of identity partitions by field id.
PartitionValues: TypeAlias = Mapping[int, Any]
_Element: TypeAlias = Mapping[str, Any]
_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}
# Manifests contain times as days or microseconds since 1970.
_TIMES = {
    "date": "DATE '1970-01-01' + {}",
    "timestamp": "make_timestamp({})",
    "timestamptz": "make_timestamp({})",
}

# A double that is not a float.
_NO_FLOAT = 0.1


@dataclass(frozen=True)
class FileGroup:
    """Parquet files of a table with the same columns and the same partition fields.

    Attributes:
        keys: The columns of the files by the id of their field: the id itself, or the name of the
            column in files without ids.
        partitions: The values of identity partitions by the path of the file and the id of the field.
    """

    keys: Mapping[int, int | str]
    partitions: dict[str, PartitionValues]

    def has_partition_values(self, field: NestedField) -> bool:
        """Return whether the values of a field are those of the partitions."""
        first = next(iter(self.partitions.values()))
        return field.field_id not in self.keys and field.field_id in first

    def column(self, field: NestedField) -> str:
        """Return SQL for the values of a field, in a query with ``rows`` and ``constants``."""
        if field.field_id in self.keys:
            return f"rows.{column_name(field)}"
        if self.has_partition_values(field):
            return _cast(f"constants.{column_name(field)}", field)
        return _cast(literal(field.initial_default, field), field)

    def check_values(self, config: SourceConfig, field: NestedField) -> None:
        """Refuse a required field for which a file, its partition and the schema have no values.

        Raises:
            InvalidSourceFile: The message has the file and the column.
            UnsupportedType: The values of the partitions cannot be read exactly.
        """
        if self.has_partition_values(field):
            _check_partition_type(config, field)
        if not field.required or field.field_id in self.keys:
            return
        for path, values in self.partitions.items():
            if values.get(field.field_id, field.initial_default) is None:
                raise InvalidSourceFile(
                    f"Source {config.name!r}: {remove_owner(path)} lacks the required column "
                    f"{field.name!r}, which has neither a value in the partition of the file nor a "
                    "default.",
                    hint="rewrite the file, or omit the column with columns=[...]",
                )


def _check_partition_type(config: SourceConfig, field: NestedField) -> None:
    """Refuse partition values of type double if pyiceberg reads them as floats, as 0.12 does."""
    if str(field.field_type) != "double":
        return
    from pyiceberg.avro.decoder import new_decoder

    if new_decoder(struct.pack("<d", _NO_FLOAT)).read_double() != _NO_FLOAT:
        raise UnsupportedType(
            f"Source {config.name!r}: the column {field.name!r} is only in the partition values of "
            f"files, and pyiceberg {version('pyiceberg')} reads those of type double with the "
            "precision of a float.",
            hint="omit the column with columns=[...], or rewrite the data files of the table",
        )


def column_name(field: NestedField) -> str:
    """Return the name of a field in the SQL of this package, which no other column has."""
    return f"c{field.field_id}"


def duckdb_type(field_type: Any) -> str | None:
    """Return the DuckDB type of an Iceberg type, or None if it is not supported."""
    text = str(field_type)
    if text.startswith("decimal("):
        return text.upper()
    if text.startswith("fixed["):
        return "BLOB"
    if text.startswith("list<"):
        element = duckdb_type(field_type.element_type)
        if element is not None and not element.endswith("]"):
            return f"{element}[]"
        return None
    return _TYPES.get(text)


def literal(value: Any, field: NestedField) -> str:
    """Return a value of a manifest or a schema as SQL, which can be cast to the type of its field."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    if isinstance(value, int) and str(field.field_type) in _TIMES:
        return _TIMES[str(field.field_type)].format(value)
    return sqltext.text(f"{value:f}" if isinstance(value, Decimal) else str(value))


def _cast(expression: str, field: NestedField) -> str:
    return f"CAST({expression} AS {duckdb_type(field.field_type)})"


def group_files(
    config: SourceConfig,
    connection: duckdb.DuckDBPyConnection,
    partitions: Mapping[str, PartitionValues],
    name_mapping: NameMapping | None,
) -> list[FileGroup]:
    """Return the files of a table in groups; ``partitions`` is that of ``FileGroup``.

    Raises:
        SourceError: A file cannot be read, or has no ids and the table no name mapping.
    """
    text = (
        "SELECT list(file_name), elements FROM (SELECT file_name, list({'name': name, 'id': "
        "field_id, 'children': num_children} ORDER BY column_id) AS elements FROM "
        f"parquet_schema({sqltext.file_list(list(partitions))}) GROUP BY file_name) GROUP BY elements"
    )
    try:
        layouts = connection.cursor().execute(text).fetchall()
    except duckdb.Error as error:
        if "No files found" in str(error):
            reason = str(error).partition("\n")[0]
            raise duckdb_rows.missing_file_error(config, reason) from error
        raise duckdb_rows.convert_error(config, error) from error
    groups: dict[tuple[int, tuple[int, ...]], FileGroup] = {}
    for number, (paths, elements) in enumerate(layouts):
        keys = _find_keys(elements, name_mapping)
        if keys is None:
            raise SourceError(
                f"Source {config.name!r}: {remove_owner(paths[0])} has no Iceberg field ids: it was "
                "not written for this table, but added to it, and the table has no name mapping.",
                hint="set the property schema.name-mapping.default of the table, or rewrite its data "
                "files",
            )
        for path in paths:
            values = partitions[path]
            empty_group = FileGroup(keys, {})
            group = groups.setdefault((number, tuple(values)), empty_group)
            group.partitions[path] = values
    return list(groups.values())


def _find_keys(
    elements: Sequence[_Element], name_mapping: NameMapping | None
) -> dict[int, int | str] | None:
    """Return the keys of the columns of a file; None if it has no ids and the table no mapping."""
    ids = [element["id"] for element in elements if element["id"] is not None]
    if ids:
        return {field_id: field_id for field_id in ids}
    if name_mapping is None:
        return None
    names = [element["name"] for element in _top_level(elements)]
    mapped_ids = {name: mapped.field_id for mapped in name_mapping for name in mapped.names}
    ids_of_names = [(mapped_ids.get(name), name) for name in names]
    return {field_id: name for field_id, name in ids_of_names if field_id is not None}


def _top_level(elements: Sequence[_Element]) -> Iterator[_Element]:
    """Yield the columns of a file from the elements of its schema, which are in depth-first order."""
    # The first element is the schema itself.
    position = 1
    while position < len(elements):
        yield elements[position]
        below = 1
        while below:
            below += (elements[position]["children"] or 0) - 1
            position += 1


_NUMBER, _FILE = "file_row_number", "filename"


def rows(
    config: SourceConfig,
    connection: duckdb.DuckDBPyConnection,
    table: Table,
    snapshot: Snapshot | None,
    schema: Schema,
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
    groups = group_files(config, connection, partitions, table.name_mapping())
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
        f"(WITH deleted AS (SELECT {table_files_of(table).sql_path('file_path')} AS file, pos "
        f"FROM read_parquet({sqltext.file_list(sorted(deletes))})) {selects}) AS rows"
    )


def _select_files(group: FileGroup, fields: Sequence[NestedField], *, has_deletes: bool) -> str:
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


def _schema_map(group: FileGroup, fields: Sequence[NestedField]) -> str:
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


def _constants(group: FileGroup, fields: Sequence[NestedField]) -> str:
    """Return the table ``constants`` with the partition values of each file."""
    rows = []
    for path, values in group.partitions.items():
        literals = [literal(values[field.field_id], field) for field in fields]
        rows.append(f"({', '.join([sqltext.text(path), *literals])})")
    names = ", ".join(["file", *map(column_name, fields)])
    return f"(VALUES {', '.join(rows)}) AS constants({names})"


def _identity_values(table: Table, data_file: DataFile) -> PartitionValues:
    """Return the values of a file's identity partitions by the id of their column."""
    from pyiceberg.transforms import IdentityTransform

    fields = table.specs()[data_file.spec_id].fields
    return {
        field.source_id: data_file.partition[position]
        for position, field in enumerate(fields)
        if isinstance(field.transform, IdentityTransform)
    }


def _is_requested(field: NestedField, query: SourceQuery) -> bool:
    is_window = query.window is not None and query.window.column == field.name
    return query.columns is None or field.name in query.columns or is_window


def _plan_paths(
    config: SourceConfig, table: Table, scan: DataScan
) -> tuple[dict[str, PartitionValues], set[str]]:
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
    partitions: dict[str, PartitionValues] = {}
    deletes: set[str] = set()
    table_files = table_files_of(table)
    for task in tasks:
        partitions[_locate(config, table_files, task.file)] = _identity_values(table, task.file)
        # Data files share delete files.
        deletes.update(_locate(config, table_files, delete) for delete in task.delete_files)
    return partitions, deletes


def _readable_fields(schema: Schema, query: SourceQuery) -> list[NestedField]:
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


def _empty_rows(fields: Sequence[NestedField]) -> str:
    columns = [
        f"NULL::{duckdb_type(field.field_type)} AS {sqltext.quote(field.name)}" for field in fields
    ]
    return f"(SELECT {', '.join(columns)} WHERE false) AS rows"


def _window_filter(schema: Schema, window: TimeRange) -> Any:
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


def table_files_of(table: Table) -> TableFiles:
    """Return the file access that ``iceberg_catalogs`` sets for a table."""
    return cast("TableFiles", table.io)


def _locate(config: SourceConfig, table_files: TableFiles, file: DataFile) -> str:
    """Return the path of a data file or delete file; refuse formats other than Parquet."""
    if str(file.file_format).upper().endswith("PARQUET"):
        return table_files.locate(file.file_path)
    raise SourceError(
        f"Source {config.name!r}: the table has files of format {file.file_format}, which is not "
        "supported.",
        hint="rewrite the data files of the table, or read it with the engine that wrote it",
    )
