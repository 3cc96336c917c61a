"""DuckDB SQL text: quoted identifiers, literals, type names, casts, and scans of Parquet files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import decimal_places

_TYPE_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP WITH TIME ZONE",
    pa.timestamp("us"): "TIMESTAMP",
    # Parquet files need a type; all values are null.
    pa.null(): "BOOLEAN",
}
_WILDCARDS = re.compile(r"[\[*?]")
# The column with a row's file path. Feature names cannot start with this prefix.
FILE = "__fs_file"


def quote(name: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def names(columns: Sequence[str], *, table: str | None = None) -> str:
    """Return a comma-separated list of quoted column names, optionally qualified by a table."""
    prefix = ""
    if table is not None:
        prefix = f"{table}."
    return ", ".join([prefix + quote(column) for column in columns])


def all_present(columns: Sequence[str]) -> str:
    """Return the condition that all columns are not null.

    >>> all_present(["a", "b"])
    '"a" IS NOT NULL AND "b" IS NOT NULL'
    """
    return " AND ".join([f"{quote(column)} IS NOT NULL" for column in columns])


def text(value: str) -> str:
    """Return a string literal."""
    return "'" + value.replace("'", "''") + "'"


def timestamp_literal(value: datetime) -> str:
    """Return a timezone-aware datetime as a literal."""
    return f"TIMESTAMPTZ '{value.isoformat(sep=' ', timespec='microseconds')}'"


def column_type(dtype: pa.DataType) -> str:
    """Return the DuckDB type of a feature or storage type.

    >>> column_type(pa.list_(pa.float32(), 4))
    'FLOAT[4]'
    """
    if dtype in _TYPE_NAMES:
        return _TYPE_NAMES[dtype]
    if pat.is_decimal(dtype):
        return f"DECIMAL({dtype.precision},{dtype.scale})"
    if pat.is_fixed_size_list(dtype):
        return f"{column_type(dtype.value_type)}[{dtype.list_size}]"
    if pat.is_list(dtype):
        return f"{column_type(dtype.value_type)}[]"
    if pat.is_struct(dtype):
        fields = []
        for index in range(dtype.num_fields):
            field = dtype.field(index)
            fields.append(f"{quote(field.name)} {column_type(field.type)}")
        return f"STRUCT({', '.join(fields)})"
    raise TypeError(f"{dtype} is not a feature type")


def casts(target: pa.Schema, source: Mapping[str, str]) -> str:
    """Return a select list that casts columns to the schema ``target``.

    ``source`` maps available columns to their DuckDB types. Missing columns are null.
    """
    expressions = []
    for field in target:
        target_type = column_type(field.type)
        name = quote(field.name)
        if field.name not in source:
            expressions.append(f"CAST(NULL AS {target_type}) AS {name}")
        elif source[field.name] == target_type:
            expressions.append(name)
        else:
            expressions.append(f"CAST({name} AS {target_type}) AS {name}")
    return ", ".join(expressions)


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the DuckDB type of each schema column."""
    return dict(zip(schema.names, map(column_type, schema.types), strict=True))


def empty(schema: pa.Schema) -> str:
    """Return a query that has the columns of a schema and no rows."""
    return f"SELECT {casts(schema, {})} WHERE false"


def label_key(value: str, label_type: pa.DataType, key_type: pa.DataType) -> str:
    """Cast a label key to the type of a group's key; null (no match) if out of range.

    >>> label_key("l.a", pa.int64(), pa.int32())
    'TRY_CAST(l.a AS INTEGER)'
    """
    if label_type == key_type:
        return value
    if pat.is_null(label_type):
        return f"CAST(NULL AS {column_type(key_type)})"
    cast = f"TRY_CAST({value} AS {column_type(key_type)})"
    if decimal_places(label_type) <= decimal_places(key_type):
        return cast
    # The cast rounds, so the result is compared with the original value.
    return f"CASE WHEN TRY_CAST({cast} AS {column_type(label_type)}) = {value} THEN {cast} END"


def literal_path(path: str) -> str:
    """Escape DuckDB's glob wildcards in a path.

    >>> literal_path("a[1]*")
    'a[[]1][*]'
    """
    return _WILDCARDS.sub(r"[\g<0>]", path)


def parquet_scan(
    schema: pa.Schema, paths: Sequence[str], *, aliases: Mapping[str, str] | None = None
) -> str:
    """Return a FROM item with the columns of a schema from Parquet files, and ``FILE``.

    ``aliases`` maps columns to their names in the result, if these differ.
    """
    # With an explicit schema, DuckDB does not open files before it reads their rows, and missing
    # columns are null.
    fields = []
    for column in schema:
        alias = text((aliases or {}).get(column.name, column.name))
        options = f"name: {alias}, type: {text(column_type(column.type))}, default_value: NULL"
        fields.append(f"{text(column.name)}: {{{options}}}")
    files = ", ".join([text(literal_path(path)) for path in paths])
    options = f"filename='{FILE}', hive_partitioning=false, schema=MAP {{{', '.join(fields)}}}"
    return f"read_parquet([{files}], {options})"
