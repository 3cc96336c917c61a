"""The line to paste that casts a column, in the words of the dataframe that the caller has."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.shapes import items_of, shape_of
from featurestore.model.types import integer_range, is_nested


@dataclass(frozen=True)
class _Language:
    """How a library writes casts: its names of types, and a line for each kind of cast.

    ``{c}`` is the column's name, ``{t}`` the type, ``{low}`` and ``{high}`` its range. Where
    ``ranged`` rounds fractions or parses texts as well, ``whole`` and ``parsed`` are empty.
    """

    types: dict[str, str]
    plain: str
    time: str
    ranged: str
    whole: str = ""
    parsed: str = ""
    items: str = ""
    whole_items: str = ""


# pandas and polars call them alike.
_WHOLE_NUMBERS = {
    "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64",
    "uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip
_PANDAS = _Language(
    types=_WHOLE_NUMBERS
    | {"float": "float32", "double": "float64", "string": "string", "bool": "boolean"},
    whole='df["{c}"] = df["{c}"].round().astype("{t}")',
    ranged='df["{c}"] = df["{c}"].where(df["{c}"].between({low}, {high})).astype("{t}")',
    parsed='df["{c}"] = pd.to_numeric(df["{c}"], errors="coerce").astype("{t}")',
    plain='df["{c}"] = df["{c}"].astype("{t}")',
    time='df["{c}"] = pd.to_datetime(df["{c}"], utc=True)',
    items='df["{c}"] = [np.asarray(cell).astype("{t}") for cell in df["{c}"]]',
    whole_items='df["{c}"] = [np.clip(np.round(cell), {low}, {high}).astype("{t}") '
    'for cell in df["{c}"]]',
)  # fmt: skip
_POLARS = _Language(
    types=_WHOLE_NUMBERS
    | {"float": "Float32", "double": "Float64", "string": "String", "bool": "Boolean"},
    whole='df = df.with_columns(pl.col("{c}").round().cast(pl.{t}, strict=False))',
    ranged='df = df.with_columns(pl.col("{c}").cast(pl.{t}, strict=False))',
    plain='df = df.with_columns(pl.col("{c}").cast(pl.{t}))',
    time='df = df.with_columns(pl.col("{c}").str.to_datetime(time_zone="UTC"))',
)  # fmt: skip
_SPARK = _Language(
    types={
        "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
        "uint8": "smallint", "uint16": "int", "uint32": "bigint", "uint64": "decimal(20, 0)",
        "float": "float", "double": "double", "string": "string", "bool": "boolean",
    },
    whole='df = df.withColumn("{c}", F.expr("try_cast(round({c}) AS {t})"))',
    ranged='df = df.withColumn("{c}", F.expr("try_cast({c} AS {t})"))',
    plain='df = df.withColumn("{c}", F.col("{c}").cast("{t}"))',
    time='df = df.withColumn("{c}", F.to_timestamp("{c}"))',
    items='df = df.withColumn("{c}", F.col("{c}").cast("array<{t}>"))',
)  # fmt: skip
_DUCKDB = _Language(
    types={
        "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
        "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT",
        "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR", "bool": "BOOLEAN",
    },
    ranged='rows = rows.select("* REPLACE (try_cast({c} AS {t}) AS {c})")',
    plain='rows = rows.select("* REPLACE ({c}::{t} AS {c})")',
    time='rows = rows.select("* REPLACE ({c}::TIMESTAMPTZ AS {c})")',
)  # fmt: skip
_LANGUAGES = {"polars": _POLARS, "pyspark": _SPARK, "duckdb": _DUCKDB, "_duckdb": _DUCKDB}


def cast_line(
    library: str, column: str, given: pa.DataType, wanted: pa.DataType, *, rounds: bool = True
) -> str | None:
    """Return the line that casts a column; values that have no equal are rounded or become null.

    Args:
        library: The package of the dataframe; pandas' words for those that are not known.
        column: A feature name.
        given: The type that the column has.
        wanted: The type that it has to get.
        rounds: Whether floats have fractions; else they lie out of range.

    >>> cast_line("pandas", "n", pa.float64(), pa.int64())
    'df["n"] = df["n"].round().astype("Int64")'
    >>> cast_line("pyspark", "n", pa.int64(), pa.int32())
    'df = df.withColumn("n", F.expr("try_cast(n AS int)"))'

    None where there is no such line, as for whole numbers that are times in a unit
    which only the caller knows.
    """
    words = _LANGUAGES.get(library, _PANDAS)
    if pat.is_timestamp(wanted):
        return words.time.format(c=column) if pat.is_string(given) else None
    if shape_of(wanted):
        return _line_of_items(words, column, wanted)
    name = words.types.get(str(wanted))
    if name is None or is_nested(given):
        return None
    if pat.is_string(given) and (pat.is_integer(wanted) or pat.is_floating(wanted)):
        return (words.parsed or words.ranged).format(c=column, t=name)
    if not pat.is_integer(wanted):
        return words.plain.format(c=column, t=name)
    low, high = integer_range(wanted)
    line = words.ranged
    if pat.is_floating(given) and rounds:
        line = words.whole or line
    return line.format(c=column, t=name, low=low, high=high)


def _line_of_items(words: _Language, column: str, wanted: pa.DataType) -> str | None:
    name = words.types.get(str(items_of(wanted)))
    is_flat = len(shape_of(wanted)) == 1
    if not words.items or name is None or not (is_flat or words is _PANDAS):
        return None
    if pat.is_integer(items_of(wanted)) and words.whole_items:
        low, high = integer_range(items_of(wanted))
        return words.whole_items.format(c=column, t=name.lower(), low=low, high=high)
    return words.items.format(c=column, t=name.lower())
