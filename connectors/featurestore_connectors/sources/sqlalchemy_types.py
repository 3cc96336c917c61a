"""Columns of databases that SQLAlchemy reads: the type that each comes as, or none.

Of a table its reflection tells the types. Of a query MySQL and MariaDB tell them in what they send
before the rows: codes, lengths, and the character set of texts, which bytes have none of.
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

_MOST_DIGITS = 38
_PLAIN: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    str: pa.string(),
    bytes: pa.binary(),
    UUID: pa.string(),
    datetime: TIMESTAMP,
    date: pa.date32(),
}
# Types of MySQL and MariaDB that are no more than objects to SQLAlchemy.
_OF_MYSQL = {
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
_WAYS_OUT = {
    "BIT": "CAST({} AS UNSIGNED)",
    "GEOMETRY": "ST_AsText({})",
    "NULL": "CAST({} AS SIGNED)",
    "TIME": "TIME_TO_SEC({})",
}


@dataclass(frozen=True)
class Described:
    """What MySQL tells of a column of a query before its rows.

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
    """Return how a column of a table is read, from what reflection tells of its type."""
    is_mysql = dialect.name in ("mysql", "mariadb")
    native = _native(kind, dialect)
    found = _reflected_type(kind, native, is_mysql=is_mysql)
    if not is_mysql:
        return SourceColumn(name, quoted, found, native)
    word = native.split("(")[0].split(" ")[0]
    return _mysql_column(name, found, word, native=native, quoted=quoted)


def described_column(told: Described, *, quoted: str) -> SourceColumn:
    """Return how a column of a query is read, from what MySQL tells of it."""
    if told.code in _CODES:
        native, found = _CODES[told.code]
        return _mysql_column(told.name, found, native, native=native, quoted=quoted)
    if told.code in _TEXT_CODES:
        kind = pa.binary() if told.is_binary else pa.string()
        return SourceColumn(told.name, quoted, kind, "bytes or text")
    if told.code in _DECIMAL_CODES:
        found = None
        if told.length is not None and told.scale is not None:
            # A sign is among them where the numbers may have one, which is not told.
            digits = told.length - (told.scale > 0)
            if digits == _MOST_DIGITS + 1:
                digits = _MOST_DIGITS
            found = decimal_type(digits, told.scale)
        return _mysql_column(told.name, found, "DECIMAL", native="DECIMAL", quoted=quoted)
    native = _REFUSED_CODES.get(told.code, f"type {told.code}")
    return _mysql_column(told.name, None, native, native=native, quoted=quoted)


def _mysql_column(
    name: str, kind: pa.DataType | None, word: str, *, native: str, quoted: str
) -> SourceColumn:
    """Return a column of MySQL, with what the server has to do for it."""
    expression = quoted
    if word == "FLOAT":
        expression = f"({quoted} + 0e0)"  # a float alone is sent as six digits
    way_out = _WAYS_OUT.get(word, "CAST({} AS CHAR)").format(quoted)
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
    if is_mysql and native.split("(")[0] in _OF_MYSQL:
        return _OF_MYSQL[native.split("(")[0]]
    try:
        return _PLAIN.get(kind.python_type)
    except NotImplementedError:
        return None


def decimal_type(precision: int | None, scale: int | None) -> pa.DataType | None:
    """Return the type of exact numbers with these digits; None where they are not bounded so."""
    if precision is None or not 0 < precision <= _MOST_DIGITS:
        return None
    scale = scale or 0
    if not 0 <= scale <= precision:
        return None
    return pa.decimal128(precision, scale)


def is_zoned(column: SourceColumn) -> bool:
    """Tell whether a column's times have a zone, so that literals beside them need one."""
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
