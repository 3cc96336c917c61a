"""Arrow types without a feature type: the line that gives a column another, in its library's words."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.column_lines import TEXT, cell_line, quoted

_PANDAS_CAST = "df[{c!r}] = df[{c!r}].astype(pd.ArrowDtype(pa.{t}()))"
_ARROW_CAST = (
    "table = table.set_column(table.column_names.index({c!r}), {c!r}, table[{c!r}].cast('{t}'))"
)
# Casts of whole columns that keep the value and the unit, where cells of Python would lose digits.
_CASTS = {"pandas": _PANDAS_CAST, "pyarrow": _ARROW_CAST}
# polars' times and durations are numbers underneath, inside of lists and structs too.
_POLARS_NUMBERS = "df = df.with_columns(pl.col({c!r}).to_physical())"
# pandas' own types inside of Arrow, whose storage is a number or two.
_OF_PANDAS = {"pandas.period": "dt.to_timestamp()"}
_SET_PANDAS = (
    "table = table.set_column(table.column_names.index({c!r}), {c!r}, "
    "pa.array(table[{c!r}].to_pandas().{t}))"
)
_OF_NULLS = {
    "pandas": "df[{c!r}] = df[{c!r}].astype('float64')",
    "polars": "df = df.with_columns(pl.col({c!r}).cast(pl.Float64))",
    "pyarrow": _ARROW_CAST.replace("{t}", "float64"),
}
_MAPS = {
    "duckdb": "rows = rows.select('* REPLACE (map_entries({q}) AS {q})')",
    "pyspark": "df = df.withColumn({c!r}, F.map_entries({c!r}))",
}
# Where nanoseconds go when a column of times keeps its microseconds.
_NANOSECONDS = {
    "pandas": "df['{c}_ns'] = df['{c}'].dt.nanosecond; df['{c}'] = df['{c}'].dt.floor('us')",
    "polars": "df = df.with_columns((pl.col('{c}').dt.nanosecond() % 1000).alias('{c}_ns'), "
    "pl.col('{c}').dt.truncate('1us'))",
    "pyarrow": "table = table.append_column('{c}_ns', pc.nanosecond(table['{c}'])).set_column("
    "table.column_names.index('{c}'), '{c}', "
    "pc.floor_temporal(table['{c}'], unit='microsecond'))",
    "columns": "times = columns['{c}']; columns['{c}_ns'] = [None if pd.isna(cell) else "
    "cell.nanosecond for cell in map(pd.Timestamp, times)]; columns['{c}'] = "
    "[None if pd.isna(cell) else cell.floor('us') for cell in map(pd.Timestamp, times)]",
    "rows": "rows = [{{**row, '{c}': None if pd.isna(cell) else cell.floor('us'), "
    "'{c}_ns': None if pd.isna(cell) else cell.nanosecond}} for row in rows "
    "for cell in [pd.Timestamp(row.get('{c}'))]]",
    "duckdb": "rows = rows.select('* REPLACE (make_timestamp(epoch_ns({c}) // 1000) AS {c}), "
    "epoch_ns({c}) % 1000 AS {c}_ns')",
}


def type_line(language: str, column: str, kind: pa.DataType) -> str | None:
    r"""Return the line that makes a column of an Arrow type storable, keeping its values.

    >>> type_line("polars", "t", pa.time64("ns"))
    "df = df.with_columns(pl.col('t').to_physical())"
    >>> type_line("duckdb", "t", pa.time64("us"))
    'rows = rows.select(\'* REPLACE (CAST("t" AS VARCHAR) AS "t")\')'

    Returns None if the type has no such line.
    """
    if pat.is_map(kind) and language in _MAPS:
        return _MAPS[language].format(c=column, q=quoted(column))
    if language == "polars" and _holds_numbers_only(kind):
        return _POLARS_NUMBERS.format(c=column)
    extension = getattr(kind, "extension_name", "")
    if extension in _OF_PANDAS:
        return _SET_PANDAS.format(c=column, t=_OF_PANDAS[extension])
    if pat.is_null(kind) and language in _OF_NULLS:
        return _OF_NULLS[language].format(c=column)
    if language in _CASTS and (pat.is_time(kind) or pat.is_duration(kind)):
        name = "string" if pat.is_time(kind) else "int64"
        return _CASTS[language].format(c=column, t=name)
    if language in ("duckdb", "pyspark"):
        return None if pat.is_nested(kind) else cell_line(language, column, TEXT)
    expression = _expression(kind)
    if expression is None:
        return None
    return cell_line(language, column, expression)


def nanoseconds_line(language: str, column: str) -> str:
    """Return the line that keeps a time to the microsecond, and its nanoseconds in a column.

    >>> nanoseconds_line("pandas", "t")
    "df['t_ns'] = df['t'].dt.nanosecond; df['t'] = df['t'].dt.floor('us')"
    """
    return _NANOSECONDS.get(language, _NANOSECONDS["pandas"]).format(c=column)


def _holds_numbers_only(kind: pa.DataType) -> bool:
    if pat.is_time(kind) or pat.is_duration(kind):
        return True
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return _holds_numbers_only(kind.value_type)
    return False


def _expression(kind: pa.DataType) -> str | None:
    """Return the lossless expression over a Python cell, None if none exists."""
    if pat.is_time(kind):
        return "{v}.isoformat()"
    if pat.is_duration(kind):
        return "{v}.value" if kind.unit == "ns" else "{v} // datetime.timedelta(microseconds=1)"
    if str(kind) == "month_day_nano_interval":
        return "list({v})"
    if pat.is_map(kind):
        return "[{'key': key, 'value': value} for key, value in {v}]"
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return _around(kind.value_type, "[None if item is None else {e} for item in {v}]", "item")
    if pat.is_union(kind) or pat.is_decimal(kind):
        return TEXT
    return _of_struct(kind) if pat.is_struct(kind) else None


def _of_struct(kind: pa.StructType) -> str | None:
    changes = []
    for index in range(kind.num_fields):
        field = kind.field(index)
        inner = _expression(field.type)
        if inner is not None:
            value = f"{{v}}[{field.name!r}]"
            changed = inner.replace("{v}", value)
            changes.append(f"{field.name!r}: None if {value} is None else {changed}")
    return f"{{**{{v}}, {', '.join(changes)}}}" if changes else None


def _around(kind: pa.DataType, template: str, item: str) -> str | None:
    inner = _expression(kind)
    if inner is None:
        return None
    return template.replace("{e}", inner.replace("{v}", item))
