"""Typed parts of a query, the types that DuckDB gives to them, and their conversions on Spark.

DuckDB determines every type: an expression is bound with a null of the type of each operand, so
the rules for literals, decimals and mixed integers are DuckDB's own and are not written again. A
conversion that DuckDB inserts silently is written as a cast on Spark. Spark has no unsigned
integers and no 128-bit integers; they have the storage types of ``featurestore.arrow.types``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from featurestore.errors import InvalidSql

Family = Literal[
    "boolean", "integer", "decimal", "float", "double", "string", "binary", "date", "timestamp",
    "list", "struct", "interval", "null", "another",
]  # fmt: skip
NULL = '"NULL"'
TIMESTAMP_TZ = "TIMESTAMP WITH TIME ZONE"
# DuckDB's scalar types: their family, and the type of their values on Spark.
_TYPES: dict[str, tuple[Family, str]] = {
    "BOOLEAN": ("boolean", "BOOLEAN"),
    "TINYINT": ("integer", "TINYINT"),
    "SMALLINT": ("integer", "SMALLINT"),
    "INTEGER": ("integer", "INT"),
    "BIGINT": ("integer", "BIGINT"),
    "UTINYINT": ("integer", "SMALLINT"),
    "USMALLINT": ("integer", "INT"),
    "UINTEGER": ("integer", "BIGINT"),
    "UBIGINT": ("integer", "DECIMAL(20,0)"),
    "HUGEINT": ("integer", "DECIMAL(38,0)"),
    "FLOAT": ("float", "FLOAT"),
    "DOUBLE": ("double", "DOUBLE"),
    "VARCHAR": ("string", "STRING"),
    "BLOB": ("binary", "BINARY"),
    "DATE": ("date", "DATE"),
    # A session of the store has the time zone UTC, so both types have the same values.
    "TIMESTAMP": ("timestamp", "TIMESTAMP"),
    TIMESTAMP_TZ: ("timestamp", "TIMESTAMP"),
    "INTERVAL": ("interval", "INTERVAL"),
    NULL: ("null", "VOID"),
}
# Unsigned integers: half of their range, and the signed type with the same number of bits.
_UNSIGNED = {
    "UTINYINT": (2**7, "TINYINT"),
    "USMALLINT": (2**15, "SMALLINT"),
    "UINTEGER": (2**31, "INT"),
    "UBIGINT": (2**63, "BIGINT"),
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
# The digits of a decimal that is always exact as a float, and the largest such integer.
_EXACT_DIGITS = {"FLOAT": (7, 2**24), "DOUBLE": (15, 2**53)}
_MAX_CACHED = 10_000
# Spark multiplies a fraction of so many digits exactly by its power of ten.
_MAX_FRACTION = 17
_SHORTEST = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


class DuckDBOnly(Exception):
    """A form that was not compared with Spark; DuckDB runs it.

    Args:
        form: The name of the form.
        hint: A form that runs on every engine.
    """

    def __init__(self, form: str, hint: str | None = None) -> None:
        super().__init__(form)
        self.form = form
        self.hint = hint


class DifferentForm(DuckDBOnly):
    """A form whose result differs between engines; it is refused on every engine."""


def has_refused_form(error: BaseException) -> bool:
    """Return whether an engine raised an error because it refuses a form of a query."""
    cause = error.__cause__
    return cause is not None and (isinstance(cause, DuckDBOnly) or has_refused_form(cause))


@dataclass(frozen=True)
class TypedValue:
    """The Spark SQL of an expression and its DuckDB type.

    ``constant`` is the DuckDB SQL of a constant. ``has_aggregate``, ``has_window`` and ``has_rows``
    are whether the expression aggregates rows, reads a window of rows, or returns several rows.
    """

    sql: str
    type: str
    constant: str | None = None
    has_aggregate: bool = False
    has_window: bool = False
    has_rows: bool = False

    @property
    def stand_in(self) -> str:
        """DuckDB SQL of a constant with the same type."""
        if self.constant is not None:
            return self.constant
        return "NULL" if self.type == NULL else f"CAST(NULL AS {self.type})"

    @property
    def family(self) -> Family:
        """The family of the type."""
        return family_of(self.type)

    def with_sql(self, sql: str, dtype: str | None = None) -> TypedValue:
        """Return the value with other Spark SQL, and the type that this SQL has."""
        return replace(self, sql=sql, type=dtype or self.type)

    def without_constant(self) -> TypedValue:
        """Return the value as one that is not known to be constant."""
        return replace(self, constant=None)


def with_flags(value: TypedValue, operands: Iterable[TypedValue]) -> TypedValue:
    """Return a value that aggregates rows or reads windows if one of its operands does."""
    values = [value, *operands]
    return replace(
        value,
        has_aggregate=any(operand.has_aggregate for operand in values),
        has_window=any(operand.has_window for operand in values),
        has_rows=any(operand.has_rows for operand in values),
    )


def family_of(duckdb_type: str) -> Family:
    """Return the family of a DuckDB type.

    >>> family_of("DECIMAL(10,2)"), family_of("FLOAT[4]"), family_of("STRUCT(a INTEGER)")
    ('decimal', 'list', 'struct')
    """
    if duckdb_type in _TYPES:
        return _TYPES[duckdb_type][0]
    if _DECIMAL.fullmatch(duckdb_type):
        return "decimal"
    if duckdb_type.endswith("]"):
        return "list"
    return "struct" if duckdb_type.startswith("STRUCT(") else "another"


def digits_of(duckdb_type: str) -> tuple[int, int]:
    """Return the precision and the scale of a decimal type."""
    match = _DECIMAL.fullmatch(duckdb_type)
    if match is None:
        raise TypeError(f"{duckdb_type} is not a decimal type")
    return int(match[1]), int(match[2])


def spark_type(duckdb_type: str) -> str:
    """Return the Spark type of the values of a DuckDB type.

    >>> spark_type("UBIGINT"), spark_type("VARCHAR[]")
    ('DECIMAL(20,0)', 'ARRAY<STRING>')
    """
    if duckdb_type in _TYPES:
        return _TYPES[duckdb_type][1]
    if _DECIMAL.fullmatch(duckdb_type):
        return duckdb_type
    if family_of(duckdb_type) == "list":
        return f"ARRAY<{spark_type(duckdb_type[: duckdb_type.rindex('[')])}>"
    raise DuckDBOnly(f"a value of the type {duckdb_type}")


class DuckDBTypes:
    """The types that DuckDB gives to expressions without columns; thread-safe.

    Args:
        connection: A DuckDB connection with the time zone UTC.
        error: The base class of DuckDB's errors, which the core does not import.
    """

    def __init__(self, connection: Any, *, error: type[Exception]) -> None:
        self._connection = connection
        self._error = error
        self._types: dict[str, str] = {}
        self._texts: dict[str, str | None] = {}
        self._running = threading.Lock()

    def type_of(self, sql: str) -> str:
        """Return the type of an expression.

        Raises:
            InvalidSql: DuckDB cannot bind the expression.
        """
        dtype = self._types.get(sql)
        if dtype is None:
            dtype = self._types[sql] = self._read(sql, lambda result: str(result.types[0]))
        return dtype

    def text_of(self, sql: str) -> str | None:
        """Return the value of a constant expression as text.

        Raises:
            InvalidSql: The value does not exist.
        """
        if sql in self._texts:
            return self._texts.get(sql)
        query = f"CAST({sql} AS VARCHAR)"
        text: str | None = self._read(query, lambda result: result.to_arrow_table()[0][0].as_py())
        self._texts[sql] = text
        return text

    def common_type(self, values: list[TypedValue]) -> str:
        """Return the type to which DuckDB converts values before it compares or chooses them."""
        return self.type_of(f"coalesce({', '.join(value.stand_in for value in values)})")

    def _read(self, sql: str, read: Callable[[Any], Any]) -> Any:
        """Return what a function reads of a query for one expression."""
        with self._running:
            # A server translates the queries of many users.
            for cache in (self._types, self._texts):
                if len(cache) > _MAX_CACHED:
                    cache.clear()
            try:
                return read(self._connection.sql(f"SELECT {sql}"))
            except self._error as error:
                message = str(error).partition("\n")[0]
                raise InvalidSql(
                    f"DuckDB rejects the query: {message}", hint="check the types of the operands"
                ) from error


def literal(value: TypedValue, target: str, types: DuckDBTypes) -> str:
    """Return a constant of DuckDB SQL as a Spark literal of a type."""
    converted = f"CAST({value.stand_in} AS {target})"
    family = family_of(target)
    if family == "timestamp":
        micros = types.text_of(f"epoch_us({converted})")
        return f"timestamp_micros({micros or 'NULL'})"
    if family == "binary":
        return f"X'{types.text_of(f'hex({converted})')}'"
    if family not in ("boolean", "integer", "decimal", "float", "double", "string", "date"):
        raise DuckDBOnly(f"a constant of the type {target}")
    text = types.text_of(converted)
    if text is None:
        return f"CAST(NULL AS {spark_type(target)})"
    if family == "string":
        return string_literal(text)
    if family in ("integer", "decimal", "boolean"):
        return f"CAST({text} AS {spark_type(target)})"
    return f"CAST('{_SHORTEST.get(text, text)}' AS {spark_type(target)})"


def string_literal(text: str) -> str:
    """Return a string as a Spark literal, in which a backslash is an escape character."""
    from sqlglot import exp

    return exp.Literal.string(text).sql(dialect="spark")


def convert(value: TypedValue, target: str, types: DuckDBTypes) -> str:
    """Return the Spark SQL of a value that is converted as DuckDB converts it.

    Raises:
        DuckDBOnly: The conversion was not compared with Spark.
        DifferentForm: The conversion differs between engines.
    """
    if value.type == target or {value.type, target} == {"TIMESTAMP", TIMESTAMP_TZ}:
        return value.sql
    if value.type == NULL:
        return f"CAST(NULL AS {spark_type(target)})"
    if value.constant is not None:
        return literal(value, target, types)
    conversion = CONVERSIONS.get((value.family, family_of(target)))
    if conversion is None:
        form = f"the cast of {type_name(value.type)} to {type_name(target)}"
        families = [end for start, end in CONVERSIONS if start == value.family and end != start]
        hint = f"casts of {value.family} on every engine: to {', '.join(families)}"
        raise DuckDBOnly(form, hint if families else None)
    return conversion(value.sql, value.type, target)


def type_name(duckdb_type: str) -> str:
    """Return the name of a type for messages."""
    return duckdb_type.lower().replace(TIMESTAMP_TZ.lower(), "timestamptz").strip('"')


def narrow(sql: str, target: str) -> str:
    """Return an integer as an integer type; a value out of range is an error.

    ``sql`` has an integer type of Spark that has room for the values.
    """
    if target not in _UNSIGNED:
        return f"CAST({sql} AS {spark_type(target)})"
    # Half of the range is subtracted, so that the cast to the signed type checks the range.
    half, signed = _UNSIGNED[target]
    wide = "DECIMAL(38,0)" if target == "UBIGINT" else "BIGINT"
    checked = f"CAST(CAST({sql} AS {wide}) - {half} AS {signed})"
    return f"CAST(CAST({checked} AS {wide}) + {half} AS {spark_type(target)})"


def _plain(sql: str, source: str, target: str) -> str:
    return f"CAST({sql} AS {spark_type(target)})"


def decimal_to_integer(sql: str, source: str, target: str) -> str:
    """Return a decimal as an integer, rounded half away from zero; a cast on Spark truncates."""
    return narrow(f"round({sql}, 0)", target)


def _float_to_integer(sql: str, source: str, target: str) -> str:
    if target in ("UBIGINT", "HUGEINT"):
        raise DifferentForm(
            f"the cast of {type_name(source)} to {type_name(target)}",
            f"cast(cast({{0}} as bigint) as {type_name(target)})",
        )
    # DuckDB rounds half to even; a cast on Spark truncates.
    return narrow(f"CAST(rint(CAST({sql} AS DOUBLE)) AS BIGINT)", target)


def _decimal_to_binary(sql: str, source: str, target: str) -> str:
    """Return a decimal as a float32 or double, rounded as in DuckDB.

    DuckDB divides the digits by a power of ten. If the digits are not exact as a float, it adds the
    whole part and the quotient of the fraction.
    """
    precision, scale = digits_of(source)
    digits, limit = _EXACT_DIGITS[target]
    quotient = f"CAST({sql} AS DOUBLE)"
    if target == "FLOAT":
        short = f"CAST({sql} AS DECIMAL({max(digits + 1, scale)},{scale}))"
        quotient = _divide_digits(sql if precision <= digits else short, scale, target)
    if precision <= digits or scale == 0:
        return quotient if scale else f"CAST({sql} AS {target})"
    if scale > _MAX_FRACTION:
        narrower = f"decimal(38,{_MAX_FRACTION})"
        raise DifferentForm(
            f"the conversion of {type_name(source)} to {target.lower()}",
            f"cast(cast({{0}} as {narrower}) as {target.lower()})",
        )
    integer = f"CAST(CAST({sql} - {sql} % 1 AS DECIMAL(38,0)) AS {target})"
    fraction = _divide_digits(f"({sql} % 1)", scale, target)
    total = f"CAST({integer} + {fraction} AS {target})"
    bound = str(limit).rjust(scale + 1, "0")
    bound = f"{bound[:-scale]}.{bound[-scale:]}"
    return f"if({sql} BETWEEN -{bound} AND {bound}, {quotient}, {total})"


def decimal_to_text(sql: str, source: str, target: str) -> str:
    """Return a decimal as text."""
    precision, scale = digits_of(source)
    if precision > scale:
        return f"CAST({sql} AS STRING)"
    # DuckDB writes no zero before the point of a type that has no digits there.
    return f"regexp_replace(CAST({sql} AS STRING), '^(-?)0', '$1')"


def _divide_digits(sql: str, scale: int, target: str) -> str:
    """Return the digits of a decimal divided by a power of ten."""
    digits = f"CAST(CAST({sql} * {10**scale} AS DECIMAL(38,0)) AS {target})"
    # Spark divides doubles, so the quotient of two float32 is rounded again.
    return f"CAST({digits} / CAST({10**scale} AS {target}) AS {target})"


# The conversions that both engines compute equally, by families.
CONVERSIONS: dict[tuple[Family, Family], Callable[[str, str, str], str]] = {
    ("integer", "integer"): lambda sql, _, target: narrow(sql, target),
    ("integer", "decimal"): _plain,
    ("integer", "float"): _plain,
    ("integer", "double"): _plain,
    ("integer", "boolean"): lambda sql, _source, _target: f"({sql} <> 0)",
    ("integer", "string"): _plain,
    ("decimal", "integer"): decimal_to_integer,
    ("decimal", "decimal"): _plain,
    ("decimal", "float"): _decimal_to_binary,
    ("decimal", "double"): _decimal_to_binary,
    ("decimal", "string"): decimal_to_text,
    ("float", "integer"): _float_to_integer,
    ("float", "double"): _plain,
    ("double", "integer"): _float_to_integer,
    ("boolean", "integer"): lambda sql, _, target: narrow(f"CAST({sql} AS INT)", target),
    ("boolean", "double"): _plain,
    ("boolean", "string"): _plain,
    ("date", "timestamp"): _plain,
    ("date", "string"): _plain,
    ("timestamp", "date"): _plain,
}
