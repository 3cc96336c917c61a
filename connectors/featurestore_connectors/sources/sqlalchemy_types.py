"""Types of columns that SQLAlchemy reads.

For a table, reflection returns the types. For a query, MySQL and MariaDB send them before the
rows: type codes, lengths, and the character set, which distinguishes text from bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore_connectors.sources.typed_columns import SourceColumn

if TYPE_CHECKING:
    import sqlalchemy as sa

_MAX_DIGITS = 38
_PLAIN: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    str: pa.string(),
    bytes: pa.binary(),
    UUID: pa.string(),
    datetime: TIMESTAMP,
    date: pa.date32(),
}
# Types of MySQL and MariaDB for which SQLAlchemy has no Python type.
_MYSQL_TYPES = {
    "YEAR": pa.int64(),
    "INET4": pa.string(),
    "INET6": pa.string(),
    "JSON": pa.string(),
}
# Codes of types (https://dev.mysql.com/doc/dev/mysql-server/latest/field__types_8h.html).
_CODES: dict[int, tuple[str, pa.DataType]] = {
    1: ("TINYINT", pa.int64()),
    2: ("SMALLINT", pa.int64()),
    3: ("INT", pa.int64()),
    4: ("FLOAT", pa.float32()),
    5: ("DOUBLE", pa.float64()),
    7: ("TIMESTAMP", TIMESTAMP),
    8: ("BIGINT", pa.int64()),
    9: ("MEDIUMINT", pa.int64()),
    10: ("DATE", pa.date32()),
    12: ("DATETIME", TIMESTAMP),
    13: ("YEAR", pa.int64()),
    245: ("JSON", pa.string()),
}
_REFUSED_CODES = {6: "NULL", 11: "TIME", 16: "BIT", 255: "GEOMETRY"}
_DECIMAL_CODES = (0, 246)
_TEXT_CODES = (15, 247, 248, 249, 250, 251, 252, 253, 254)
_CASTS = {
    "BIT": "CAST({} AS UNSIGNED)",
    "GEOMETRY": "ST_AsText({})",
    "NULL": "CAST({} AS SIGNED)",
    "TIME": "TIME_TO_SEC({})",
}


@dataclass(frozen=True)
class QueryColumn:
    """The metadata of a query's column that MySQL sends before the rows.

    ``length`` is that of a number's text, sign and point included; None where the driver hides it.
    """

    name: str
    code: int
    length: int | None
    scale: int | None
    is_binary: bool


def reflected_column(
    name: str, kind: sa.types.TypeEngine[object], *, dialect: sa.Dialect, quoted: str
) -> SourceColumn:
    """Return the column of a table, from its reflected type."""
    is_mysql = dialect.name in ("mysql", "mariadb")
    native = _native(kind, dialect)
    kind_or_none = _reflected_type(kind, native, is_mysql=is_mysql)
    if not is_mysql:
        return SourceColumn(name, quoted, kind_or_none, native)
    word = native.split("(")[0].split(" ")[0]
    return _mysql_column(name, kind_or_none, word, native=native, quoted=quoted)


def described_column(query_column: QueryColumn, *, quoted: str) -> SourceColumn:
    """Return the column of a query, from the metadata of MySQL."""
    if query_column.code in _CODES:
        native, kind_or_none = _CODES[query_column.code]
        return _mysql_column(query_column.name, kind_or_none, native, native=native, quoted=quoted)
    if query_column.code in _TEXT_CODES:
        kind = pa.binary() if query_column.is_binary else pa.string()
        return SourceColumn(query_column.name, quoted, kind, "bytes or text")
    if query_column.code in _DECIMAL_CODES:
        kind_or_none = None
        if query_column.length is not None and query_column.scale is not None:
            # The length includes a sign for signed numbers, but the metadata does not show which are.
            digits = query_column.length - (query_column.scale > 0)
            if digits == _MAX_DIGITS + 1:
                digits = _MAX_DIGITS
            kind_or_none = decimal_type(digits, query_column.scale)
        return _mysql_column(
            query_column.name, kind_or_none, "DECIMAL", native="DECIMAL", quoted=quoted
        )
    native = _REFUSED_CODES.get(query_column.code, f"type {query_column.code}")
    return _mysql_column(query_column.name, None, native, native=native, quoted=quoted)


def _mysql_column(
    name: str, kind: pa.DataType | None, word: str, *, native: str, quoted: str
) -> SourceColumn:
    """Return a column of MySQL, with what the server has to do for it."""
    expression = quoted
    if word == "FLOAT":
        expression = f"({quoted} + 0e0)"  # a float alone is sent as six digits
    way_out = _CASTS.get(word, "CAST({} AS CHAR)").format(quoted)
    return SourceColumn(name, expression, kind, native, way_out=way_out)


def _native(kind: sa.types.TypeEngine[object], dialect: sa.Dialect) -> str:
    """Return what the database calls a type."""
    from sqlalchemy.exc import CompileError
    from sqlalchemy.types import NullType

    if isinstance(kind, NullType):
        return "a type that SQLAlchemy does not know"
    try:
        return str(kind.compile(dialect=dialect)).upper()
    except CompileError:
        return type(kind).__name__


def _reflected_type(
    kind: sa.types.TypeEngine[object], native: str, *, is_mysql: bool
) -> pa.DataType | None:
    from sqlalchemy import types

    if isinstance(kind, types.Float):
        is_small = native.startswith("FLOAT") if is_mysql else native.startswith("REAL")
        return pa.float32() if is_small else pa.float64()
    if isinstance(kind, types.Numeric):
        return decimal_type(kind.precision, kind.scale)
    if native.startswith("BIGINT") and "UNSIGNED" in native:
        return pa.uint64()
    if is_mysql and native.split("(")[0] in _MYSQL_TYPES:
        return _MYSQL_TYPES[native.split("(")[0]]
    try:
        return _PLAIN.get(kind.python_type)
    except NotImplementedError:
        return None


def decimal_type(precision: int | None, scale: int | None) -> pa.DataType | None:
    """Return the type of exact numbers with these digits; None where they are not bounded so."""
    if precision is None or not 0 < precision <= _MAX_DIGITS:
        return None
    scale = scale or 0
    if not 0 <= scale <= precision:
        return None
    return pa.decimal128(precision, scale)


def is_zoned(column: SourceColumn) -> bool:
    """Return whether the times of a column have a zone, so that literals need one too."""
    return "WITH TIME ZONE" in column.native or "DATETIMEOFFSET" in column.native


def converter(column: SourceColumn) -> Callable[[object], object] | None:
    """Return what makes the values of a column ready for Arrow; None where they are."""
    if column.kind is not None and pa.types.is_string(column.kind):
        return _as_text
    if column.kind is not None and pa.types.is_decimal(column.kind):
        return _as_decimal
    return None


def _as_text(value: object) -> object:
    return value if value is None or isinstance(value, str) else str(value)


def _as_decimal(value: object) -> object:
    return Decimal(value) if isinstance(value, int) else value
