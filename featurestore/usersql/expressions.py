"""Column expressions over a row, with the same value on every engine."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from featurestore.errors import InvalidSql
from featurestore.usersql.conditions import expression, fix_clock
from featurestore.usersql.text import parse_statement, short

# The feature type, and the SQL type in each dialect, of the kinds that a column can have.
_TYPES: dict[str, tuple[pa.DataType, str, str]] = {
    "boolean": (pa.bool_(), "BOOLEAN", "BOOLEAN"),
    "integer": (pa.int64(), "BIGINT", "BIGINT"),
    "float": (pa.float64(), "DOUBLE", "DOUBLE"),
    "number": (pa.float64(), "DOUBLE", "DOUBLE"),
    "decimal": (pa.float64(), "DOUBLE", "DOUBLE"),
    "text": (pa.string(), "VARCHAR", "STRING"),
    "binary": (pa.binary(), "BLOB", "BINARY"),
    "date": (pa.date32(), "DATE", "DATE"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "TIMESTAMPTZ", "TIMESTAMP"),
}
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


def column_expression(text: str, *, schema: pa.Schema, dialect: str) -> tuple[str, pa.DataType]:
    """Translate an expression over the columns of a row to the SQL of an engine, with its type.

    Whole numbers are int64, other numbers float64, times microseconds in UTC.

    >>> schema = pa.schema([("distance", pa.int64()), ("seats", pa.int64())])
    >>> column_expression("distance > seats", schema=schema, dialect="duckdb")
    ('CAST(("distance" > "seats") AS BOOLEAN)', DataType(bool))

    Raises:
        InvalidSql: The text is not an expression, uses unknown columns, reads the clock, or uses
            functions that differ between engines; the hint suggests an alternative.
    """
    check_column_expression(text)
    typed = expression(text, schema=schema, dialect=dialect)
    if typed.kind not in _TYPES:
        raise InvalidSql(
            f"{short(text)} is {typed.kind}, which cannot be a feature.",
            hint="numbers, texts, dates, times and conditions can",
        )
    kind, duckdb, spark = _TYPES[typed.kind]
    return f"CAST({typed.sql} AS {spark if dialect == 'spark' else duckdb})", kind


def check_column_expression(text: str) -> None:
    """Raise InvalidSql for texts that are invalid independently of the columns."""
    parse_statement(text, what="expression", calls_by_name=True)
    if fix_clock(text, now=_ANY_TIME) != text:
        raise InvalidSql(
            f"{short(text)} reads the clock, so that training and scoring would differ.",
            hint="name the time column of the labels instead",
        )
