"""SQL text for DuckDB.

Quoted identifiers, literals, and the DuckDB type of an Arrow feature type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.types as pat

_NAMED = {
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
    pa.null(): "BOOLEAN",
}
_WILDCARDS = re.compile(r"[\[*?]")


def quote(name: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def names(columns: Sequence[str], *, table: str | None = None) -> str:
    """Return a list of quoted columns, of one table when it is named."""
    prefix = ""
    if table is not None:
        prefix = f"{table}."
    return ", ".join([prefix + quote(column) for column in columns])


def all_present(columns: Sequence[str]) -> str:
    """Return the condition that no column is null.

    >>> all_present(["a", "b"])
    '"a" IS NOT NULL AND "b" IS NOT NULL'
    """
    return " AND ".join([f"{quote(column)} IS NOT NULL" for column in columns])


def text(value: str) -> str:
    """Return a string literal."""
    return "'" + value.replace("'", "''") + "'"


def moment(value: datetime) -> str:
    """Return an aware datetime as a literal."""
    return f"TIMESTAMPTZ '{value.isoformat(sep=' ', timespec='microseconds')}'"


def column_type(kind: pa.DataType) -> str:
    """Return the DuckDB type that holds a feature or storage type.

    >>> column_type(pa.list_(pa.float32(), 4))
    'FLOAT[4]'
    """
    if kind in _NAMED:
        return _NAMED[kind]
    if pat.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pat.is_fixed_size_list(kind):
        return f"{column_type(kind.value_type)}[{kind.list_size}]"
    if pat.is_list(kind):
        return f"{column_type(kind.value_type)}[]"
    if pat.is_struct(kind):
        fields = []
        for index in range(kind.num_fields):
            field = kind.field(index)
            fields.append(f"{quote(field.name)} {column_type(field.type)}")
        return f"STRUCT({', '.join(fields)})"
    raise TypeError(f"{kind} is no feature type")


def casts(target: pa.Schema, source: Mapping[str, str]) -> str:
    """Return a select list that gives the columns of ``target``.

    ``source`` maps the columns at hand to their DuckDB types; those that it lacks become nulls.
    """
    parts = []
    for field in target:
        wanted = column_type(field.type)
        name = quote(field.name)
        if field.name not in source:
            parts.append(f"CAST(NULL AS {wanted}) AS {name}")
        elif source[field.name] == wanted:
            parts.append(name)
        else:
            parts.append(f"CAST({name} AS {wanted}) AS {name}")
    return ", ".join(parts)


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the DuckDB type of each column of a schema of feature or storage types."""
    return dict(zip(schema.names, map(column_type, schema.types), strict=True))


def empty(schema: pa.Schema) -> str:
    """Return a query for no rows of a schema."""
    return f"SELECT {casts(schema, {})} WHERE false"


def file_list(paths: Sequence[str]) -> str:
    """Return a list of paths for ``read_parquet``, with glob characters taken literally."""
    listed = map(text, map(literal_path, paths))
    return f"[{', '.join(listed)}]"


def literal_path(path: str) -> str:
    """Return a path in which DuckDB's glob sees no wildcard.

    >>> literal_path("a[1]*")
    'a[[]1][*]'
    """
    return _WILDCARDS.sub(r"[\g<0>]", path)
