"""Columns of Iceberg data files as DuckDB SQL: their types, ids or names, and missing columns.

A column that a file lacks has the value of the file's partition, else the default of the schema,
else null if it is optional (https://iceberg.apache.org/spec/#column-projection).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from typing import Any

import duckdb

from featurestore.errors import InvalidSourceFile, SourceError, UnsupportedType
from featurestore.plugins.source import SourceConfig
from featurestore.storage.location import remove_owner
from featurestore_connectors.sources import duckdb_rows, sqltext

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
    partitions: dict[str, Mapping[int, Any]]

    def has_partition_values(self, field: Any) -> bool:
        """Return whether the values of a field are those of the partitions."""
        first = next(iter(self.partitions.values()))
        return field.field_id not in self.keys and field.field_id in first

    def column(self, field: Any) -> str:
        """Return SQL for the values of a field, in a query with ``rows`` and ``constants``."""
        if field.field_id in self.keys:
            return f"rows.{column_name(field)}"
        if self.has_partition_values(field):
            return _cast(f"constants.{column_name(field)}", field)
        return _cast(literal(field.initial_default, field), field)

    def check_values(self, config: SourceConfig, field: Any) -> None:
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


def _check_partition_type(config: SourceConfig, field: Any) -> None:
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


def column_name(field: Any) -> str:
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


def literal(value: Any, field: Any) -> str:
    """Return a value of a manifest or a schema as SQL, which can be cast to the type of its field."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    if isinstance(value, int) and str(field.field_type) in _TIMES:
        return _TIMES[str(field.field_type)].format(value)
    return sqltext.text(f"{value:f}" if isinstance(value, Decimal) else str(value))


def _cast(expression: str, field: Any) -> str:
    return f"CAST({expression} AS {duckdb_type(field.field_type)})"


def group_files(
    config: SourceConfig,
    connection: duckdb.DuckDBPyConnection,
    partitions: Mapping[str, Mapping[int, Any]],
    name_mapping: Any,
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
    elements: Sequence[Mapping[str, Any]], name_mapping: Any
) -> dict[int, int | str] | None:
    """Return the keys of the columns of a file; None if it has no ids and the table no mapping."""
    ids = [element["id"] for element in elements if element["id"] is not None]
    if ids:
        return {field_id: field_id for field_id in ids}
    if name_mapping is None:
        return None
    names = [element["name"] for element in _top_level(elements)]
    mapped_ids = {name: mapped.field_id for mapped in name_mapping for name in mapped.names}
    return {mapped_ids[name]: name for name in names if mapped_ids.get(name) is not None}


def _top_level(elements: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the columns of a file from the elements of its schema, which are in depth-first order."""
    # The first element is the schema itself.
    position = 1
    while position < len(elements):
        yield elements[position]
        below = 1
        while below:
            below += (elements[position]["children"] or 0) - 1
            position += 1
