"""Hints about columns, as lines for the object that the caller passed.

The lines of ``column_lines`` convert a column of a dataframe. A caller may have passed another
object: an iterator of dataframes, a series, an index, or a stream of Arrow data. Its line first
creates the dataframe, or converts each dataframe of the iterator.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.column_lines import KEEPS_ONE_ROW, PANDAS_EXTENSIONS, detect_language
from featurestore.errors import FeatureStoreError, UnsupportedDataframe

# The variables of dataframes in the lines of ``column_lines``, and of iterators here.
FRAME_VARIABLES = ("df", "table", "rows", "columns", "array")
_FRAMES = "frames"
# Expressions that replace a column, by the variable of the dataframe.
_REPLACED = {"df": "df.assign(**{{{key}: {value}}})", "columns": "{{**columns, {key}: {value}}}"}
_COLUMNS_TO_ROWS = (
    "frames = ([dict(zip(columns, cells)) for cells in zip(*columns.values())] "
    "for columns in frames)"
)
# The statement that creates one dataframe from those of an iterator.
_CONCATENATIONS = {
    "pandas": "df = pd.concat(frames)",
    "polars": "df = pl.concat(frames)",
    "pyarrow": "table = pa.concat_tables(frames)",
    "rows": "rows = [row for rows in frames for row in rows]",
}
# Functions that create a dataframe from a dict of columns, by the library of the columns.
_MAKERS = {"pandas": "pd.DataFrame", "polars": "pl.DataFrame", "pyarrow": "pa.table"}
_KINDS = (
    "pandas or polars DataFrame, pyarrow Table or RecordBatchReader, datasets.Dataset, "
    "anything with __arrow_c_stream__, "
    "numpy array of two axes or more, dict of columns, list of rows or of dicts, "
    "iterator of record batches, Spark DataFrame, "
    "DuckDB relation, "
    "FeatureFrame"
)
_COMMENT = "  # "
_TO_TABLE = "table = pa.table(table)"
_DATASET_TO_TABLE = "table = table.to_table()"
BATCH_TO_TABLE = "table = pa.Table.from_batches([table])"


@contextmanager
def hints_for(preparation: str, *, iterated: str | None = None) -> Iterator[None]:
    """Change the hint of each error to a line for the argument of a call.

    Args:
        preparation: The statement that creates the dataframe, or "" (``prepare_line``).
        iterated: The kind of dataframe (``column_lines.detect_language``) that an iterator yields;
            None if the argument is no iterator.
    """
    try:
        yield
    except FeatureStoreError as error:
        if error.hint is not None:
            error.replace_hint(
                argument_line(error.hint, preparation=preparation, iterated=iterated)
            )
        raise


def argument_line(line: str, *, preparation: str, iterated: str | None = None) -> str:
    """Return the line for an argument; lines without assignments to dataframes are unchanged.

    Arguments are the same as in ``hints_for``.

    >>> argument_line("df = df.rename(columns={'a b': 'a_b'})", preparation="", iterated="pandas")
    "frames = (df.rename(columns={'a b': 'a_b'}) for df in frames)"
    >>> argument_line("df['a'] = df['a'].dt.to_timestamp()", preparation="df = df.to_frame('a')")
    "df = df.to_frame('a'); df['a'] = df['a'].dt.to_timestamp()"
    """
    code, separator, comment = line.partition(_COMMENT)
    if not _parse_assignments(code):
        return line
    if KEEPS_ONE_ROW in comment and iterated in _CONCATENATIONS:
        # Rows with equal keys may be in several dataframes.
        concatenation = _CONCATENATIONS[iterated]
        if preparation == BATCH_TO_TABLE:
            concatenation, preparation = "table = pa.Table.from_batches(frames)", ""
        return f"{concatenation}; {_prepare(code, preparation)}{separator}{comment}"
    code = _prepare(code, preparation)
    if iterated is not None:
        code = _iterate(_parse_assignments(code))
    return f"{code}{separator}{comment}"


def _prepare(code: str, preparation: str) -> str:
    """Return code that first creates the dataframe."""
    # Only the columns that the code uses are converted.
    needed = [line for line in preparation.split("; ") if line.partition(" = ")[0] in code]
    # An inner call may have prepared the dataframe.
    is_prepared = not needed or code.startswith("; ".join(needed))
    return code if is_prepared else "; ".join([*needed, code])


def prepare_line(df: Any) -> str:
    """Return the statement that creates a dataframe from an argument, or "" for dataframes.

    >>> prepare_line(pa.chunked_array([[1, 2]])), prepare_line([{"a": 1}])
    ('table = pa.table(table)', '')
    """
    language = detect_language(df)
    if language == "pandas":
        return _prepare_pandas(df)
    if isinstance(df, np.ndarray):
        return _prepare_array("array", df)
    if language == "columns" and isinstance(df, Mapping):
        return "; ".join(filter(None, (_prepare_column(name, df[name]) for name in df)))
    if language == "pyarrow" and not isinstance(df, pa.Table):
        if isinstance(df, pa.RecordBatch):
            return BATCH_TO_TABLE
        return _DATASET_TO_TABLE if hasattr(df, "to_table") else _TO_TABLE
    return ""


def _prepare_pandas(df: Any) -> str:
    if hasattr(df, "columns"):
        # The levels of a named index are columns.
        return "" if set(df.index.names) == {None} else "df = df.reset_index()"
    if not hasattr(df, "to_frame"):
        return ""
    if hasattr(df, "index"):
        return "df = df.to_frame('col_0')" if df.name is None else "df = df.to_frame()"
    if hasattr(df, "levels"):
        return "df = df.to_frame(index=False)"
    name = "col_0" if df.name is None else df.name
    return f"df = df.to_frame(index=False, name={name!r})"


def _prepare_column(name: object, values: Any) -> str:
    """Return the statement that converts the cells of a column to Python objects, or ""."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if getattr(values.type, "extension_name", "") in PANDAS_EXTENSIONS:
            return f"columns[{name!r}] = columns[{name!r}].to_pandas()"
        return f"columns[{name!r}] = columns[{name!r}].to_pylist()"
    if hasattr(values, "to_arrow"):  # a series of polars
        # Arrow has no type for other integers and for Python objects.
        is_object = str(values.dtype) in ("Object", "Int128", "UInt128")
        method = "to_list()" if is_object else "to_arrow().to_pylist()"
        return f"columns[{name!r}] = columns[{name!r}].{method}"
    if isinstance(values, np.ndarray):
        return _prepare_array(f"columns[{name!r}]", values)
    if hasattr(getattr(values, "dtype", None), "pyarrow_dtype"):
        return f"columns[{name!r}] = pa.array(columns[{name!r}]).to_pylist()"
    return ""


def _prepare_array(variable: str, array: Any) -> str:
    """Return the statement that replaces the masked cells of an array, or ""."""
    if isinstance(array, np.matrix):
        return f"{variable} = np.asarray({variable})"
    if not isinstance(array, np.ma.MaskedArray) or array.ndim > 2 or array.dtype.names:
        return ""
    if array.dtype.kind in "mM":
        return f"{variable} = {variable}.filled(np.array('NaT', {variable}.dtype))"
    return f"{variable} = {variable}.astype(object).filled(None)"


def _parse_assignments(code: str) -> list[ast.Assign]:
    """Return the statements of a line, or nothing unless all assign and use a dataframe."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return []
    assignments = [statement for statement in statements if isinstance(statement, ast.Assign)]
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    # A line that already uses the iterator is complete.
    is_line = not names.isdisjoint(FRAME_VARIABLES) and _FRAMES not in names
    return assignments if is_line and len(assignments) == len(statements) else []


def _find_frame(value: ast.expr) -> str | None:
    """Return the dataframe variable that an expression reads, or None."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return next((name for name in FRAME_VARIABLES if name in names), None)


def _iterate(statements: list[ast.Assign]) -> str:
    """Return the line that applies statements to each dataframe of ``frames``."""
    steps = []
    variable = None
    for statement in statements:
        variable = variable or _find_frame(statement.value)
        if variable is None:  # names that the next statement uses
            steps.append(ast.unparse(statement))
            continue
        (target,) = statement.targets
        value = ast.unparse(statement.value)
        result = variable
        if isinstance(target, ast.Subscript):
            key = ast.unparse(target.slice)
            value = _REPLACED[ast.unparse(target.value)].format(key=key, value=value)
        else:
            result = ast.unparse(target)
        steps.append(f"{_FRAMES} = ({value} for {variable} in {_FRAMES})")
        variable = result
    if variable == "columns":  # an iterator of dicts would be one of rows
        steps.append(_COLUMNS_TO_ROWS)
    return "; ".join(steps)


def library_name(df: object) -> str:
    """Return the name of the package that defines a dataframe's class.

    >>> library_name([{"a": 1}])
    'builtins'
    """
    return type(df).__module__.split(".")[0]


def bare_array_error(df: object, values: str) -> UnsupportedDataframe:
    """Return the error for an Arrow array; ``values`` is the expression of a pyarrow array.

    >>> bare_array_error(pa.array([1]), "table").hint
    "table = pa.table({'col_0': table})"
    """
    return UnsupportedDataframe(
        f"An Arrow array of type {type(df).__name__} is one column, not a dataframe.",
        hint=f"table = pa.table({{'col_0': {values}}})",
    )


def row_iterator_line(first: Any) -> str | None:
    """Return the line for an iterator of rows or columns, or None for an iterator of dataframes.

    A row is not a dataframe, and its iterator would be read one row at a time.

    >>> row_iterator_line((1, "x")), row_iterator_line([{"id": 1}])
    ('rows = list(frames)', None)
    """
    if isinstance(first, Mapping):
        libraries = set(map(library_name, first.values()))
        are_columns = all(isinstance(values, Sized) for values in first.values())
        if are_columns and len(libraries) == 1 and libraries <= _MAKERS.keys():
            return f"frames = map({_MAKERS[libraries.pop()]}, frames)"
        return "rows = list(frames)  # or, for columns: frames = map(pd.DataFrame, frames)"
    if not isinstance(first, list | tuple) or hasattr(first, "__arrow_c_array__"):
        return None
    if first and isinstance(first, list) and detect_language(first) != "tuples":
        return None  # rows with names
    if first and isinstance(first[0], list | tuple):
        return "rows = [row for chunk in frames for row in chunk]  # or rows = list(frames)"
    return "rows = list(frames)"


def not_a_dataframe_error(df: object) -> UnsupportedDataframe:
    """Return the error for an argument that is not a dataframe.

    >>> not_a_dataframe_error("trips.parquet").hint
    "rows = duckdb.read_parquet('trips.parquet')"
    """
    if library_name(df) == "pandas" and hasattr(df, "dtype"):
        return UnsupportedDataframe(
            f"A pandas {type(df).__name__} is not a dataframe.",
            hint="df = pd.DataFrame({'col_0': df})",
        )
    if isinstance(df, str | os.PathLike):
        path = os.fspath(df)
        return UnsupportedDataframe(
            f"{path!r} is a file name, not a dataframe: read the file first.",
            hint=_read_snippet(str(path)),
        )
    return UnsupportedDataframe(
        f"{df!r:.60} of type {type(df).__name__} is not a dataframe. Supported: {_KINDS}.",
        hint="pass rows, such as [{'column': 1}]",
    )


def _read_snippet(path: str) -> str:
    """Return a code snippet that reads the file.

    >>> _read_snippet("trips.parquet")
    "rows = duckdb.read_parquet('trips.parquet')"
    """
    ending = os.path.splitext(path)[1].lower()
    if ending in (".csv", ".tsv", ".txt", ".gz"):
        return f"df = pd.read_csv({path!r})  # or larger than memory: duckdb.read_csv({path!r})"
    if ending in (".json", ".jsonl", ".ndjson"):
        return f"rows = duckdb.read_json({path!r})"
    if ending in (".xls", ".xlsx"):
        return f"df = pd.read_excel({path!r})"
    if ending in (".parquet", ".pq"):
        return f"rows = duckdb.read_parquet({path!r})"
    return f"rows = duckdb.read_parquet({path + '/*.parquet'!r})  # or pd.read_csv(...)"
