"""Code snippets that convert, rename or deduplicate columns, in a dataframe library's syntax.

A conversion is an expression for one cell, ``{v}``, that preserves its value: as a string, as an
integer, or as a list of components. Each library has one template that applies an expression to a
column. ``type_line`` converts columns of Arrow types without a feature type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

# The placeholder of the cell in an expression, and the condition for missing cells.
_CELL = "cell"
_SET_ARROW = "table = table.set_column(table.column_names.index({c!r}), {c!r}, {values})"
_SET_CELLS = "columns[{c!r}] = [{e} for cell in columns[{c!r}]]"
_COLUMNS_OF_RECORDS = "columns = {{name: list(array[name]) for name in array.dtype.names}}"
_COLUMNS_OF_MATRIX = "columns = {{f'col_{{i}}': list(column) for i, column in enumerate(array.T)}}"
_TEMPLATES = {
    "pandas": "df[{c!r}] = [{e} for cell in df[{c!r}]]",
    "polars": "df = df.with_columns(pl.Series({c!r}, [{e} for cell in df[{c!r}].to_list()]))",
    "pyarrow": _SET_ARROW.replace(
        "{values}", "pa.array([{e} for cell in table[{c!r}].to_pylist()])"
    ),
    "rows": "rows = [{{**row, {c!r}: {e}}} for row in rows for cell in [row.get({c!r})]]",
    "named tuples": "rows = [{{**row._asdict(), {c!r}: {e}}} for row in rows "
    "for cell in [row._asdict()[{c!r}]]]",
    "Spark rows": "rows = [{{**row.asDict(), {c!r}: {e}}} for row in rows "
    "for cell in [row[{c!r}]]]",
    "tuples": "rows = [[*row[:{i}], {e}, *row[{i} + 1:]] for row in rows for cell in [row[{i}]]]",
    "columns": _SET_CELLS,
    "numpy images": "columns = {{{c!r}: [{e} for cell in array]}}",
    "rows of images": "columns = {{{c!r}: [{e} for cell in rows]}}",
    "numpy records": f"{_COLUMNS_OF_RECORDS}; {_SET_CELLS}",
    "numpy": f"{_COLUMNS_OF_MATRIX}; {_SET_CELLS}",
}  # fmt: skip
# Conversions to strings that a library supports directly, and that preserve nulls.
_TEXTS = {
    "pandas": "df[{c!r}] = df[{c!r}].map(str, na_action='ignore')",
    "duckdb": "rows = rows.select('* REPLACE (CAST({q} AS VARCHAR) AS {q})')",
    "pyspark": "df = df.withColumn({c!r}, F.col({c!r}).cast('string'))",
}
TEXT = "str({v})"
_RENAME_PREFIX = "names = {renames!r}; "
_RENAMES = {
    "pandas": "df = df.rename(columns={renames!r})",
    "polars": "df = df.rename({renames!r})",
    "pyspark": "df = df.withColumnsRenamed({renames!r})",
    "pyarrow": "table = table.rename_columns({names!r})",
    "duckdb": "rows = rows.project({columns!r})",
    "columns": _RENAME_PREFIX
    + "columns = {{names.get(name, name): cells for name, cells in columns.items()}}",
    "named tuples": _RENAME_PREFIX + "rows = [{{names.get(name, name): cell "
    "for name, cell in row._asdict().items()}} for row in rows]",
    "Spark rows": _RENAME_PREFIX + "rows = [{{names.get(name, name): cell "
    "for name, cell in row.asDict().items()}} for row in rows]",
    "rows": _RENAME_PREFIX
    + "rows = [{{names.get(name, name): cell for name, cell in row.items()}} "
    "for row in rows]",
}

KEEPS_ONE_ROW = "keeps one row of each key"
_ROW_KEYS = "tuple({cell} for name in {key!r})"
_LAST_ROWS = "rows = list({{{row_key}: row for row in rows}}.values())"
# Snippets that select one row of each key: the last row, where the library has a row order.
_UNIQUE = {
    "pandas": "df = df.drop_duplicates({key!r}, keep='last')",
    "polars": "df = df.unique({key!r}, keep='last', maintain_order=True)",
    "pyspark": "df = df.dropDuplicates({key!r})",
    "duckdb": "rows = rows.query('rows', 'SELECT DISTINCT ON ({columns}) * FROM rows')",
    "pyarrow": "table = table.take(list({{cells: row for row, cells in "
    "enumerate(zip(*(table[name].to_pylist() for name in {key!r})))}}.values()))",
    "rows": _LAST_ROWS.replace("{row_key}", _ROW_KEYS.replace("{cell}", "row.get(name)")),
    "named tuples": _LAST_ROWS.replace(
        "{row_key}", _ROW_KEYS.replace("{cell}", "getattr(row, name)")
    ),
    "Spark rows": _LAST_ROWS.replace("{row_key}", _ROW_KEYS.replace("{cell}", "row[name]")),
    "tuples": "rows = list({{tuple(row[i] for i in {numbers!r}): row for row in rows}}.values())",
    "columns": "last = {{cells: row for row, cells in "
    "enumerate(zip(*(columns[name] for name in {key!r})))}}.values(); "
    "columns = {{name: [cells[row] for row in last] for name, cells in columns.items()}}",
}

_PANDAS_CAST = "df[{c!r}] = df[{c!r}].astype(pd.ArrowDtype(pa.{t}()))"
_ARROW_CAST = (
    "table = table.set_column(table.column_names.index({c!r}), {c!r}, table[{c!r}].cast('{t}'))"
)
# Casts of whole columns that preserve value and unit, where Python objects would lose digits.
_CASTS = {"pandas": _PANDAS_CAST, "pyarrow": _ARROW_CAST}
# The times and durations of polars are stored as integers, also in lists and structs.
_POLARS_NUMBERS = "df = df.with_columns(pl.col({c!r}).to_physical())"
# Arrow extension types of pandas, whose storage is one integer or two.
PANDAS_EXTENSIONS = {"pandas.period": "dt.to_timestamp()"}
_SET_PANDAS = {
    "pyarrow": "table = table.set_column(table.column_names.index({c!r}), {c!r}, "
    "pa.array(table[{c!r}].to_pandas().{t}))",
    "columns": "columns[{c!r}] = columns[{c!r}].{t}",
}
# Counts of units in the Python objects of durations.
_DURATIONS = {
    "s": "{v} // datetime.timedelta(seconds=1)",
    "ms": "{v} // datetime.timedelta(milliseconds=1)",
    "us": "{v} // datetime.timedelta(microseconds=1)",
    "ns": "{v}.value",
}
_OF_NULLS = {
    "pandas": "df[{c!r}] = df[{c!r}].astype('float64')",
    "polars": "df = df.with_columns(pl.col({c!r}).cast(pl.Float64))",
    "pyarrow": _ARROW_CAST.replace("{t}", "float64"),
}
_MAPS = {
    "duckdb": "rows = rows.select('* REPLACE (map_entries({q}) AS {q})')",
    "pyspark": "df = df.withColumn({c!r}, F.map_entries({c!r}))",
}
_NANOSECONDS_OF_COLUMN = (
    "columns['{c}'] = pd.Series(pd.to_datetime(columns['{c}'], utc=True)); "
    "columns['{c}_ns'] = columns['{c}'].dt.nanosecond; "
    "columns['{c}'] = columns['{c}'].dt.floor('us')"
)
# The column for the nanoseconds when a time column is stored in microseconds.
_NANOSECONDS = {
    "pandas": "df['{c}_ns'] = df['{c}'].dt.nanosecond; df['{c}'] = df['{c}'].dt.floor('us')",
    "polars": "df = df.with_columns((pl.col('{c}').dt.nanosecond() % 1000).alias('{c}_ns'), "
    "pl.col('{c}').dt.truncate('1us'))",
    "pyarrow": "table = table.append_column('{c}_ns', pc.nanosecond(table['{c}'])).set_column("
    "table.column_names.index('{c}'), '{c}', "
    "pc.floor_temporal(table['{c}'], unit='microsecond'))",
    "columns": _NANOSECONDS_OF_COLUMN,
    "numpy": f"{_COLUMNS_OF_MATRIX}; {_NANOSECONDS_OF_COLUMN}",
    "numpy records": f"{_COLUMNS_OF_RECORDS}; {_NANOSECONDS_OF_COLUMN}",
    "duckdb": "rows = rows.select('* REPLACE (make_timestamp(epoch_ns({c}) // 1000) AS {c}), "
    "epoch_ns({c}) % 1000 AS {c}_ns')",
}


def detect_language(df: object) -> str:
    """Return the kind of dataframe that determines the syntax of hints.

    >>> detect_language([{"a": 1}]), detect_language({"a": [1]}), detect_language([(1, 2)])
    ('rows', 'columns', 'tuples')
    """
    # Some DuckDB releases define their classes in ``_duckdb``.
    library = type(df).__module__.split(".")[0].lstrip("_")
    if library in ("pandas", "polars", "pyarrow", "duckdb", "pyspark"):
        return library
    if isinstance(df, np.ndarray):
        if df.ndim > 2:
            return "numpy images"
        return "numpy" if df.dtype.names is None else "numpy records"
    if isinstance(df, Mapping):
        return "columns"
    if isinstance(df, list | tuple) and df:
        row = df[0]
        if isinstance(row, Mapping):
            return "rows"
        if hasattr(row, "_fields"):
            return "named tuples"
        if isinstance(row, np.ndarray) and row.ndim > 1:
            return "rows of images"
        return "Spark rows" if hasattr(row, "asDict") else "tuples"
    # Any other object with an Arrow stream is converted by ``pa.table(df)``.
    return "pyarrow" if hasattr(df, "__arrow_c_stream__") else "rows"


def cell_line(
    language: str, column: str, expression: str, *, missing_condition: str = ""
) -> str | None:
    """Return the code snippet that replaces the cells of a column by an expression of ``{v}``.

    Args:
        language: A kind returned by ``detect_language``.
        column: The column name.
        expression: The replacement of a cell that has a value.
        missing_condition: The condition for missing cells.

    Returns None if the library has no Python objects as cells.

    >>> cell_line("columns", "z", "[{v}.real, {v}.imag]")
    "columns['z'] = [None if cell is None else [cell.real, cell.imag] for cell in columns['z']]"
    """
    if expression == TEXT and language in _TEXTS:
        return _TEXTS[language].format(c=column, q=quoted(column))
    template = _TEMPLATES.get(language)
    if template is None:
        return None
    if not missing_condition:
        missing_condition = "pd.isna({v})" if language == "pandas" else "{v} is None"
    null_safe = preserve_missing(expression, missing_condition)
    # Rows without names have the columns ``col_0``, ``col_1``, ...
    number = column.removeprefix("col_")
    return template.format(c=column, i=number, e=null_safe.replace("{v}", _CELL))


def rename_line(language: str, names: Sequence[Any], new_names: Sequence[str]) -> str:
    """Return the code snippet that renames the columns of a dataframe.

    >>> rename_line("polars", ["id", "wind speed"], ["id", "wind_speed"])
    "df = df.rename({'wind speed': 'wind_speed'})"
    """
    renames = {}
    columns = []
    for name, new_name in zip(names, new_names, strict=True):
        if name != new_name:
            renames[name] = new_name
        columns.append(f"{quoted(str(name))} AS {quoted(new_name)}")
    template = _RENAMES.get(language, _RENAMES["rows"])
    return template.format(renames=renames, names=list(new_names), columns=", ".join(columns))


def deduplicate_line(language: str, key: Sequence[str]) -> str:
    """Return the code snippet that selects one row of each key.

    >>> deduplicate_line("polars", ["id"])
    "df = df.unique(['id'], keep='last', maintain_order=True)  # keeps one row of each key"
    """
    template = _UNIQUE.get(language)
    if template is None:
        return "keep one row of each key"
    numbers = []
    if language == "tuples":
        numbers = [int(name.removeprefix("col_")) for name in key]
    columns = ", ".join(map(quoted, key))
    line = template.format(key=list(key), numbers=numbers, columns=columns)
    return f"{line}  # {KEEPS_ONE_ROW}"


def quoted(name: str) -> str:
    """Quote a name for SQL.

    >>> quoted("wind speed")
    '"wind speed"'
    """
    return '"{}"'.format(name.replace('"', '""'))


def preserve_missing(expression: str, missing_condition: str) -> str:
    """Return an expression that preserves missing cells as null.

    >>> preserve_missing("str({v})", "{v} is None")
    'None if {v} is None else str({v})'
    """
    return f"None if {missing_condition} else {expression}"


def type_line(language: str, column: str, kind: pa.DataType) -> str | None:
    r"""Return the code snippet that makes a column of an Arrow type storable without loss.

    >>> type_line("polars", "t", pa.time64("ns"))
    "df = df.with_columns(pl.col('t').to_physical())"
    >>> type_line("duckdb", "t", pa.time64("us"))
    'rows = rows.select(\'* REPLACE (CAST("t" AS VARCHAR) AS "t")\')'

    Returns None if no snippet exists for the type.
    """
    if pat.is_map(kind) and language in _MAPS:
        return _MAPS[language].format(c=column, q=quoted(column))
    if language == "polars" and _contains_only_numbers(kind):
        return _POLARS_NUMBERS.format(c=column)
    extension = getattr(kind, "extension_name", "")
    if extension in PANDAS_EXTENSIONS and language in _SET_PANDAS:
        return _SET_PANDAS[language].format(c=column, t=PANDAS_EXTENSIONS[extension])
    if pat.is_null(kind) and language in _OF_NULLS:
        return _OF_NULLS[language].format(c=column)
    if language in _CASTS and (pat.is_time(kind) or pat.is_duration(kind)):
        name = "string" if pat.is_time(kind) else "int64"
        return _CASTS[language].format(c=column, t=name)
    if language in ("duckdb", "pyspark"):
        return None if pat.is_nested(kind) else cell_line(language, column, TEXT)
    expression = _cell_expression(kind)
    if expression is None:
        return None
    # ``pd.isna`` of a list is an array.
    missing = "{v} is None or {v} is pd.NA" if language == "pandas" else ""
    return cell_line(language, column, expression, missing_condition=missing)


def nanoseconds_line(language: str, column: str) -> str:
    """Return the code snippet that splits times into microseconds and remaining nanoseconds.

    >>> nanoseconds_line("pandas", "t")
    "df['t_ns'] = df['t'].dt.nanosecond; df['t'] = df['t'].dt.floor('us')"
    """
    template = _NANOSECONDS.get(language)
    if template is None:
        return cell_line(language, column, TEXT) or "round the times to microseconds"
    return template.format(c=column)


def _contains_only_numbers(kind: pa.DataType) -> bool:
    if pat.is_time(kind) or pat.is_duration(kind):
        return True
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return _contains_only_numbers(kind.value_type)
    return False


def _cell_expression(kind: pa.DataType) -> str | None:
    """Return the lossless expression for a Python object, or None if there is none."""
    if pat.is_time(kind):
        return "{v}.isoformat()"
    if pat.is_duration(kind):
        return _DURATIONS[kind.unit]
    if str(kind) == "month_day_nano_interval":
        return "list({v})"
    if pat.is_map(kind):
        return "[{'key': key, 'value': value} for key, value in {v}]"
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return _wrap_item(
            kind.value_type, "[None if item is None else {e} for item in {v}]", "item"
        )
    if pat.is_union(kind) or pat.is_decimal(kind):
        return TEXT
    return _struct_expression(kind) if pat.is_struct(kind) else None


def _wrap_item(kind: pa.DataType, template: str, item: str) -> str | None:
    inner = _cell_expression(kind)
    if inner is None:
        return None
    return template.replace("{e}", inner.replace("{v}", item))


def _struct_expression(kind: pa.StructType) -> str | None:
    """Return the expression that converts the fields of a dict, or None if none needs it."""
    changes = []
    for index in range(kind.num_fields):
        field = kind.field(index)
        inner = _cell_expression(field.type)
        if inner is not None:
            value = f"{{v}}[{field.name!r}]"
            changed = inner.replace("{v}", value)
            changes.append(f"{field.name!r}: None if {value} is None else {changed}")
    return f"{{**{{v}}, {', '.join(changes)}}}" if changes else None
