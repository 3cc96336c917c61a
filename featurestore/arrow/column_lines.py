"""Lines to paste that convert or rename columns, in the words of the dataframe's library.

A conversion is an expression over one cell, ``{v}``, which keeps the value: as text, as a count, as
a list of its parts. Each library has one template that applies an expression to a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The placeholder of the cell in an expression, and the condition for cells without a value.
_CELL = "cell"
_SET_ARROW = "table = table.set_column(table.column_names.index({c!r}), {c!r}, {values})"
_TEMPLATES = {
    "pandas": "df[{c!r}] = [{e} for cell in df[{c!r}]]",
    "polars": "df = df.with_columns(pl.Series({c!r}, [{e} for cell in df[{c!r}].to_list()]))",
    "pyarrow": _SET_ARROW.replace(
        "{values}", "pa.array([{e} for cell in table[{c!r}].to_pylist()])"
    ),
    "rows": "rows = [{{**row, {c!r}: {e}}} for row in rows for cell in [row.get({c!r})]]",
    "named tuples": "rows = [{{**row._asdict(), {c!r}: {e}}} for row in rows "
    "for cell in [row._asdict()[{c!r}]]]",
    "rows of Spark": "rows = [{{**row.asDict(), {c!r}: {e}}} for row in rows "
    "for cell in [row[{c!r}]]]",
    "tuples": "rows = [[*row[:{i}], {e}, *row[{i} + 1:]] for row in rows for cell in [row[{i}]]]",
    "columns": "columns[{c!r}] = [{e} for cell in columns[{c!r}]]",
    "numpy images": "columns = {{{c!r}: [{e} for cell in array]}}",
    "records of numpy": "columns = {{name: list(array[name]) for name in array.dtype.names}}; "
    "columns[{c!r}] = [{e} for cell in columns[{c!r}]]",
    "numpy": "columns = {{f'col_{{i}}': list(column) for i, column in enumerate(array.T)}}; "
    "columns[{c!r}] = [{e} for cell in columns[{c!r}]]",
}  # fmt: skip
# Conversions to text that a library does by itself, and that leave nulls as they are.
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
    "rows of Spark": _RENAME_PREFIX + "rows = [{{names.get(name, name): cell "
    "for name, cell in row.asDict().items()}} for row in rows]",
    "rows": _RENAME_PREFIX
    + "rows = [{{names.get(name, name): cell for name, cell in row.items()}} "
    "for row in rows]",
}

_ROW_KEYS = "tuple({cell} for name in {key!r})"
_LAST_ROWS = "rows = list({{{row_key}: row for row in rows}}.values())"
# What keeps one row of each key: the last one, where the library has an order of rows.
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
    "rows of Spark": _LAST_ROWS.replace("{row_key}", _ROW_KEYS.replace("{cell}", "row[name]")),
    "tuples": "rows = list({{tuple(row[i] for i in {numbers!r}): row for row in rows}}.values())",
    "columns": "last = {{cells: row for row, cells in "
    "enumerate(zip(*(columns[name] for name in {key!r})))}}.values(); "
    "columns = {{name: [cells[row] for row in last] for name, cells in columns.items()}}",
}


def language_of(df: object) -> str:
    """Return the kind of dataframe whose words hints use.

    >>> language_of([{"a": 1}]), language_of({"a": [1]}), language_of([(1, 2)])
    ('rows', 'columns', 'tuples')
    """
    library = type(df).__module__.split(".")[0].lstrip("_")
    if library in ("pandas", "polars", "pyarrow", "duckdb", "pyspark", "numpy"):
        return library
    if isinstance(df, Mapping):
        return "columns"
    if isinstance(df, list | tuple) and df:
        return _row_language(df[0])
    # What else has an Arrow stream becomes a table by ``pa.table(df)``.
    return "pyarrow" if hasattr(df, "__arrow_c_stream__") else "rows"


def cell_line(
    language: str, column: str, expression: str, *, missing_condition: str = ""
) -> str | None:
    """Return the line that replaces the cells of a column by an expression over them, ``{v}``.

    Args:
        language: A kind that ``language_of`` names.
        column: The column's name.
        expression: What takes the place of a cell that has a value.
        missing_condition: The condition of cells without a value.

    Returns None if the library has no Python objects as cells.

    >>> cell_line("columns", "z", "[{v}.real, {v}.imag]")
    "columns['z'] = [None if cell is None else [cell.real, cell.imag] for cell in columns['z']]"
    """
    if expression == TEXT and language in _TEXTS:
        return _TEXTS[language].format(c=column, q=quoted(column))
    template = _TEMPLATES.get(language)
    if template is None:
        return None
    null_safe = unless_missing(expression, missing_condition or _missing_condition(language))
    number = column.removeprefix("col_")
    return template.format(c=column, i=number, e=null_safe.replace("{v}", _CELL))


def rename_line(language: str, names: Sequence[Any], new_names: Sequence[str]) -> str:
    """Return the line that gives the columns of a dataframe other names.

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
    """Return the line that keeps one row of each key.

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
    return f"{line}  # keeps one row of each key"


def quoted(name: str) -> str:
    """Return a name as SQL has it.

    >>> quoted("wind speed")
    '"wind speed"'
    """
    return '"{}"'.format(name.replace('"', '""'))


def unless_missing(expression: str, missing_condition: str) -> str:
    """Return an expression that leaves cells without a value null.

    >>> unless_missing("str({v})", "{v} is None")
    'None if {v} is None else str({v})'
    """
    return f"None if {missing_condition} else {expression}"


def _missing_condition(language: str) -> str:
    if language == "pandas":
        return "pd.isna({v})"
    return "{v} is None"


def _row_language(row: Any) -> str:
    if isinstance(row, Mapping):
        return "rows"
    if hasattr(row, "_fields"):
        return "named tuples"
    return "rows of Spark" if hasattr(row, "asDict") else "tuples"
