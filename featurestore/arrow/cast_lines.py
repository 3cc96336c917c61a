"""The line to paste that casts a column, in the words of the dataframe that the caller has."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.column_lines import TEXT, cell_line, quoted
from featurestore.arrow.shapes import items_of, shape_of
from featurestore.arrow.types import integer_range, is_exact, is_nested, numpy_type


@dataclass(frozen=True)
class _Language:
    """How a library writes casts: its names of types, and a line for each kind of cast.

    ``{c}`` is the column's name, ``{q}`` the same in SQL, ``{t}`` the type, ``{low}`` and
    ``{high}`` its range. Where ``ranged`` rounds fractions or parses texts as well, ``whole`` and
    ``parsed`` are empty. ``flag`` makes booleans of zeros and ones. ``exact`` makes whole numbers of
    floats and null of all that has a fraction. Where ``date`` is empty, cells of Python are parsed.
    """

    types: dict[str, str]
    plain: str
    to_timestamp: str
    from_date: str
    clipped: str
    to_boolean: str
    exact_integer: str
    to_date: str = ""
    rounded: str = ""
    numeric: str = ""
    items: str = ""
    whole_items: str = ""
    from_boolean: str = ""


# pandas and polars call them alike.
_INTEGER_TYPES = {
    "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64",
    "uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip
_PANDAS = _Language(
    types=_INTEGER_TYPES
    | {"float": "float32", "double": "float64", "string": "string", "bool": "boolean"},
    rounded='df["{c}"] = df["{c}"].round(); df["{c}"] = df["{c}"].where('
    'df["{c}"].between({low}, {high} + 1, inclusive="left")).astype("{t}")',
    exact_integer='df["{c}"] = df["{c}"].where((df["{c}"] % 1 == 0) & '
    'df["{c}"].between({low}, {high} + 1, inclusive="left")).astype("{t}")',
    to_boolean='df["{c}"] = df["{c}"].map({{0: False, 1: True}}).astype("boolean")',
    from_boolean='df["{c}"] = df["{c}"].astype("boolean").astype("{T}")',
    clipped='df["{c}"] = df["{c}"].where(df["{c}"].between({low}, {high})).astype("{t}")',
    numeric='df["{c}"] = pd.to_numeric(df["{c}"], errors="coerce").astype("{t}")',
    plain='df["{c}"] = df["{c}"].astype("{t}")',
    to_timestamp='df["{c}"] = pd.to_datetime(df["{c}"], utc=True)',
    from_date='df["{c}"] = pd.to_datetime(df["{c}"], utc=True)',
    items='df["{c}"] = [np.asarray(cell).astype("{t}") for cell in df["{c}"]]',
    whole_items='df["{c}"] = [np.clip(np.round(cell), {low}, {high}).astype("{t}") '
    'for cell in df["{c}"]]',
)  # fmt: skip
_POLARS = _Language(
    types=_INTEGER_TYPES
    | {"float": "Float32", "double": "Float64", "string": "String", "bool": "Boolean"},
    rounded='df = df.with_columns(pl.col("{c}").round().cast(pl.{t}, strict=False))',
    clipped='df = df.with_columns(pl.col("{c}").cast(pl.{t}, strict=False))',
    exact_integer='df = df.with_columns(pl.when(pl.col("{c}") % 1 == 0).then(pl.col("{c}"))'
    '.cast(pl.{t}, strict=False))',
    to_boolean='df = df.with_columns(pl.col("{c}").replace_strict({{0: False, 1: True}}, default=None))',
    plain='df = df.with_columns(pl.col("{c}").cast(pl.{t}))',
    to_timestamp='df = df.with_columns(pl.col("{c}").str.to_datetime(time_zone="UTC"))',
    from_date='df = df.with_columns('
    'pl.col("{c}").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))',
)  # fmt: skip
_SPARK = _Language(
    types={
        "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
        "uint8": "smallint", "uint16": "int", "uint32": "bigint", "uint64": "decimal(20, 0)",
        "float": "float", "double": "double", "string": "string", "bool": "boolean",
    },
    rounded='df = df.withColumn("{c}", F.expr("try_cast(round({c}) AS {t})"))',
    clipped='df = df.withColumn("{c}", F.expr("try_cast({c} AS {t})"))',
    exact_integer='df = df.withColumn("{c}", F.expr("CASE WHEN {c} % 1 = 0 THEN try_cast({c} AS {t}) END"))',
    to_date='df = df.withColumn("{c}", F.to_date("{c}"))',
    to_boolean='df = df.withColumn("{c}", F.expr("CASE {c} WHEN 0 THEN false WHEN 1 THEN true END"))',
    plain='df = df.withColumn("{c}", F.col("{c}").cast("{t}"))',
    to_timestamp='df = df.withColumn("{c}", F.to_timestamp("{c}"))',
    from_date='df = df.withColumn("{c}", F.to_timestamp("{c}"))',
    items='df = df.withColumn("{c}", F.col("{c}").cast("array<{t}>"))',
)  # fmt: skip
# Names of types in SQL, as DuckDB has them.
SQL_TYPES = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT",
    "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR", "bool": "BOOLEAN",
}  # fmt: skip
_DUCKDB = _Language(
    types=SQL_TYPES,
    clipped="rows = rows.select('* REPLACE (try_cast({q} AS {t}) AS {q})')",
    exact_integer="rows = rows.select('* REPLACE (CASE WHEN {q} % 1 = 0 THEN try_cast({q} AS {t}) END "
    "AS {q})')",
    to_date="rows = rows.select('* REPLACE ({q}::DATE AS {q})')",
    to_boolean="rows = rows.select('* REPLACE (CASE {q} WHEN 0 THEN false WHEN 1 THEN true END AS {q})')",
    plain="rows = rows.select('* REPLACE ({q}::{t} AS {q})')",
    to_timestamp="rows = rows.select('* REPLACE ({q}::TIMESTAMPTZ AS {q})')",
    from_date="rows = rows.select('* REPLACE (make_timestamptz(epoch_us({q}::TIMESTAMP)) AS {q})')",
)  # fmt: skip
_LANGUAGES = {"pandas": _PANDAS, "polars": _POLARS, "pyspark": _SPARK, "duckdb": _DUCKDB}
# Expressions over a cell, for dataframes whose cells are Python's, by what they do.
_TIME = "datetime.datetime.fromisoformat({v})"
_MIDNIGHT = "datetime.datetime({v}.year, {v}.month, {v}.day, tzinfo=datetime.UTC)"
_ROUNDED = "round({v}) if {low} <= {v} <= {high} else None"
_DATE = "datetime.date.fromisoformat({v})"
# pandas stores integers with nulls as floats.
_NUMBER_TEXT = "str(int({v}) if {v} % 1 == 0 else {v})"
_EXACT_INTEGER = "int({v}) if {v} % 1 == 0 and {low} <= {v} <= {high} else None"
_RANGED = "{v} if {low} <= {v} <= {high} else None"
_FLAG = "{0: False, 1: True}.get({v})"
_DECIMAL = "decimal.Decimal(str({v}))"
_PARSED = "int({v}) if {v}.strip().lstrip('-').isdecimal() else None"
_PARSED_FLOAT = "float({v}) if {v}.strip().lstrip('-').replace('.', '', 1).isdecimal() else None"
_ITEMS = 'np.asarray({v}).astype("{t}")'
_ROUNDED_ITEMS = 'np.clip(np.round({v}), {low}, {high}).astype("{t}")'


def cast_line(library: str, column: str, source: pa.DataType, target: pa.DataType) -> str | None:
    """Return the line that casts a column; values that have no equal are rounded or become null.

    Args:
        library: The kind of the dataframe (``column_lines.language_of``).
        column: A feature name.
        source: The type that the column has.
        target: The type that it has to get.

    >>> cast_line("pandas", "n", pa.bool_(), pa.int64())
    'df["n"] = df["n"].astype("boolean").astype("Int64")'
    >>> cast_line("pyspark", "n", pa.int64(), pa.int32())
    'df = df.withColumn("n", F.expr("try_cast(n AS int)"))'

    Returns None if there is no such line, as for whole numbers that are times in a unit
    which only the caller knows.
    """
    is_wide_integer = pat.is_integer(source) and pat.is_decimal(target)
    if is_wide_integer or (pat.is_decimal(source) and is_exact(target)):
        return None  # values that the target holds need no cast; any cast would round the others
    language = _LANGUAGES.get(library)
    if language is not None and pat.is_date32(target):
        if language.to_date:
            return _line(language.to_date, column) if pat.is_string(source) else None
        language = None
    has_decimals = pat.is_decimal(source) or pat.is_decimal(target)
    if language is None or (language is _PANDAS and has_decimals):
        expression = _expression(source, target)
        return None if expression is None else cell_line(library, column, expression)
    if pat.is_timestamp(target):
        line = {True: language.to_timestamp, False: language.from_date}[bool(pat.is_string(source))]
        return _line(line, column) if pat.is_string(source) or pat.is_date(source) else None
    if shape_of(target):
        return _array_line(language, column, target)
    name = language.types.get(str(target))
    if name is None or not _is_castable(source, target):
        return None
    low, high = integer_range(target) if pat.is_integer(target) else (0, 0)
    line = _template(language, source, target)
    return _line(line, column, t=name, T=name.capitalize(), low=low, high=high)


def key_line(library: str, column: str, source: pa.DataType, target: pa.DataType) -> str | None:
    """Return the line that casts a column of keys; nothing is rounded, so no other key is met.

    >>> key_line("pyspark", "k", pa.float64(), pa.int8())
    'df = df.withColumn("k", F.expr("CASE WHEN k % 1 = 0 THEN try_cast(k AS tinyint) END"))'
    """
    if pat.is_floating(source) and pat.is_string(target) and library not in ("duckdb", "pyspark"):
        return cell_line(library, column, _NUMBER_TEXT)
    if not (pat.is_floating(source) and pat.is_integer(target)):
        return cast_line(library, column, source, target)
    language = _LANGUAGES.get(library)
    if language is None:
        return cell_line(library, column, _in_range(_EXACT_INTEGER, target))
    low, high = integer_range(target)
    return _line(language.exact_integer, column, t=language.types[str(target)], low=low, high=high)


def _template(language: _Language, source: pa.DataType, target: pa.DataType) -> str:
    if pat.is_boolean(source):
        return language.from_boolean or language.plain
    if pat.is_boolean(target):
        return language.to_boolean
    if pat.is_string(source) and not pat.is_string(target):
        return language.numeric or language.clipped
    if not pat.is_integer(target):
        return language.plain
    return (language.rounded if pat.is_floating(source) else "") or language.clipped


def _line(template: str, column: str, **values: object) -> str:
    return template.format(c=column, q=quoted(column), **values)


def _is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether there is a cast that means something: numbers, and texts of or for them."""
    if is_nested(source):
        return False
    if pat.is_string(target):
        return not pat.is_binary(source)
    is_number = pat.is_integer(source) or pat.is_floating(source) or pat.is_boolean(source)
    if pat.is_boolean(target):
        return bool(is_number)
    return bool(is_number or pat.is_string(source) or pat.is_decimal(source))


def _expression(source: pa.DataType, target: pa.DataType) -> str | None:
    """Return the expression that casts a Python cell, None if none exists."""
    if pat.is_date32(target):
        return _DATE if pat.is_string(source) else None
    if pat.is_timestamp(target):
        midnight = _MIDNIGHT if pat.is_date(source) else None
        return _TIME if pat.is_string(source) else midnight
    if shape_of(target):
        return _array_expression(items_of(target))
    if not _is_castable(source, target):
        return None
    if pat.is_string(target):
        return TEXT
    if pat.is_decimal(target):
        return None if pat.is_boolean(source) else _DECIMAL
    if pat.is_boolean(target):
        return _FLAG
    if pat.is_floating(target):
        return _PARSED_FLOAT if pat.is_string(source) else _as_float(target)
    if pat.is_boolean(source):
        return "int({v})"
    expression = _RANGED if pat.is_integer(source) else _ROUNDED
    return _in_range(_PARSED if pat.is_string(source) else expression, target)


def _array_expression(items: pa.DataType) -> str:
    name = numpy_type(items).name
    if pat.is_integer(items):
        return _in_range(_ROUNDED_ITEMS, items).replace("{t}", name)
    return _ITEMS.replace("{t}", name)


def _as_float(target: pa.DataType) -> str:
    return "float({v})" if pat.is_float64(target) else "float(np.float32({v}))"


def _in_range(expression: str, target: pa.DataType) -> str:
    if not pat.is_integer(target):
        return expression
    low, high = integer_range(target)
    return expression.replace("{low}", str(low)).replace("{high}", str(high))


def _array_line(language: _Language, column: str, target: pa.DataType) -> str | None:
    name = language.types.get(str(items_of(target)))
    is_flat = len(shape_of(target)) == 1
    if not language.items or name is None or not (is_flat or language is _PANDAS):
        return None
    if pat.is_integer(items_of(target)) and language.whole_items:
        low, high = integer_range(items_of(target))
        return _line(language.whole_items, column, t=name.lower(), low=low, high=high)
    return _line(language.items, column, t=name.lower())
