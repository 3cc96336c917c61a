"""Conversion of frames to other dataframes, text and HTML.

Hints suggest the frame methods that replace methods of other libraries. Copies in pandas record their
lineage inputs in ``DataFrame.attrs``. pandas copies ``attrs`` in selections, assignments and most other
methods, but not in merges and named aggregations. If a group is created from such a frame, its
lineage is known without a declaration.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrays import combine_chunks, flatten_items, to_cells
from featurestore.arrow.bounds import find_out_of_range, out_of_range_error
from featurestore.arrow.types import array_item_type, array_shape, describe, is_number
from featurestore.errors import (
    InvalidArgument,
    UnsupportedType,
    did_you_mean,
    listing,
    missing_extra,
)
from featurestore.model import display
from featurestore.model.display import escape_line
from featurestore.model.json_object import JsonMapping
from featurestore.model.times import to_python_values
from featurestore.registry import featuregroups, origins
from featurestore.registry.origins import GROUP, Object

if TYPE_CHECKING:
    from featurestore.session import Session


_SPARK_NAMES = """
agg alias approxQuantile cache checkpoint coalesce colRegex collect corr createGlobalTempView
createOrReplaceGlobalTempView createOrReplaceTempView createTempView crossJoin crosstab cube
distinct dropDuplicates dropna dtypes exceptAll explain fillna first foreach foreachPartition
groupBy intersect isEmpty join limit localCheckpoint mapInArrow mapInPandas orderBy persist
printSchema randomSplit rdd repartition rollup selectExpr sort storageLevel subtract summary
tail take toDF toJSON toLocalIterator toPandas transform union unionByName unpersist where
withColumn withColumnRenamed withColumns withWatermark write writeStream writeTo
"""
SPARK = frozenset(_SPARK_NAMES.split())
_PANDAS_NAMES = """
T apply applymap assign astype at copy describe drop_duplicates eval iat iloc index info insert
isna isnull items iterrows itertuples loc map mean median melt merge min max nlargest notna
nsmallest nunique pivot pivot_table plot pop query rename reset_index resample rolling round sem
set_index shape size sort_index sort_values std sum to_csv to_dict to_excel to_json to_parquet
to_records transpose value_counts values var groupby
"""
PANDAS = frozenset(_PANDAS_NAMES.split())
DataframeType = Literal["pandas", "polars", "arrow", "numpy", "python", "spark"]


def check_dataframe_type(dataframe_type: str | None) -> None:
    """Refuse an unknown ``dataframe_type``."""
    dataframe_types = ("pandas", "polars", "arrow", "numpy", "python", "spark")
    if dataframe_type is not None and dataframe_type not in dataframe_types:
        raise InvalidArgument(
            f"dataframe_type={dataframe_type!r} is not one of {listing(dataframe_types)} or None.",
            hint=did_you_mean(dataframe_type, dataframe_types, write="dataframe_type={!r}")
            or "dataframe_type='pandas'",
        )


def to_pandas(table: pa.Table) -> Any:
    """Convert a table to a pandas DataFrame; array values become numpy arrays of their shape."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise missing_extra("pandas", "pandas") from error
    with warnings.catch_warnings():
        # Older pyarrow versions use a deprecated pandas name, which callers cannot change.
        warnings.filterwarnings("ignore", "DatetimeTZBlock is deprecated", DeprecationWarning)
        frame = table.to_pandas()
    for index, field in enumerate(table.schema):
        # Arrow converts nested lists to arrays of arrays.
        if len(array_shape(field.type)) > 1 and is_number(array_item_type(field.type)):
            # numpy would try to build a matrix from cells of equal shape; assignment to an object
            # array keeps one array per cell.
            cells = np.empty(len(frame), dtype=object)
            cells[:] = to_cells(combine_chunks(table.column(index)))
            frame[field.name] = cells
    return frame


# Frame methods that correspond to methods of other dataframe libraries.
_FRAME_METHODS = {
    "collect": 'frame.to_arrow(), or dataframe_type="python"',
    "dtypes": "frame.schema",
    "limit": "frame.head(n)",
    "printSchema": "print(frame.schema)",
    "randomSplit": "frame.sample(fraction=..., seed=...), or splits= of create_training_dataset",
    "query": 'frame.filter("temp > 20")',
    "rename": '"group.feature as name" in get_features',
    "shape": "frame.count(), len(frame.columns)",
    "take": "frame.head(n)",
    "toPandas": "frame.to_pandas()",
    "where": 'frame.filter("temp > 20")',
    "withColumnRenamed": '"group.feature as name" in get_features',
}


def to_polars(table: pa.Table) -> Any:
    """Convert a table to a polars DataFrame."""
    try:
        import polars
    except ImportError as error:
        raise missing_extra("polars", "polars") from error
    return polars.from_arrow(table)


def to_numpy(table: pa.Table) -> np.ndarray[Any, Any]:
    """Convert a table to a 2-D array of the common column type.

    Nulls become NaN in numeric columns and None in others. Each element of a numeric array becomes
    a column; but a single array column keeps its shape, such as (rows, 28, 28, 1). Strings, times
    and mixed types become an object array.

    Raises:
        OutOfRange: A time is outside of the years 1 to 9999, as in a damaged file.
        UnsupportedType: A column of arrays has nulls.

    >>> to_numpy(pa.table({"a": [1, 2], "b": [0.5, None]}))
    array([[1. , 0.5],
           [2. , nan]])
    """
    if not table.num_columns:
        return np.empty((table.num_rows, 0))
    named_columns = zip(table.column_names, table.columns, strict=True)
    arrays = [_as_array(combine_chunks(column), name) for name, column in named_columns]
    if len(arrays) == 1 and arrays[0].dtype.kind in "biuf":
        return arrays[0].reshape(table.num_rows, *(array_shape(table.schema.types[0]) or (1,)))
    # Objects keep integers exact: a common type of integers and strings would be strings.
    if any(array.dtype.kind not in "biuf" for array in arrays):
        arrays = [array.astype(object) for array in arrays]
    return np.concatenate(arrays, axis=1)


def _as_array(array: pa.Array, name: str) -> np.ndarray[Any, Any]:
    data_type = array.type
    if array_shape(data_type) and is_number(array_item_type(data_type)):
        if array.null_count:
            raise UnsupportedType(
                f"Column {name!r} has null lists, which a 2-D array does not support.",
                hint="use to_arrow()",
            )
        return _to_float_array(flatten_items(array)).reshape(len(array), -1)
    if is_number(data_type):
        return _to_float_array(array).reshape(-1, 1)
    result = np.empty((len(array), 1), dtype=object)
    try:
        result[:, 0] = array.to_pylist()
    except OverflowError as error:
        # Writes refuse such times: the file of the group is damaged, or of another program.
        row = find_out_of_range(array)
        assert row is not None
        raise out_of_range_error(
            array,
            row,
            column=name,
            shown="A row",
            hint="use to_arrow(), and featurestore fg verify",
        ) from error
    return result


def _to_float_array(array: pa.Array) -> np.ndarray[Any, Any]:
    # A numpy boolean has no null, so nulls need a type with NaN.
    if pat.is_boolean(array.type) and array.null_count:
        array = array.cast(pa.float32())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def suggest_replacement(name: str) -> str | None:
    """Return the frame method that replaces a method of another library, or None.

    >>> suggest_replacement("groupBy")
    'frame.to_spark().groupBy'
    >>> suggest_replacement("describe")
    'frame.to_pandas().describe'
    """
    suggestions = []
    if name in _FRAME_METHODS:
        suggestions.append(_FRAME_METHODS[name])
    if name in SPARK:
        suggestions.append(f"frame.to_spark().{name}")
    elif name in PANDAS:
        suggestions.append(f"frame.to_pandas().{name}")
    return ", or ".join(suggestions) or None


def format_table(table: pa.Table, *, limit: int, width: int = 20, more: bool = False) -> str:
    """Format a table in the layout of Spark's ``show``: right-aligned, truncated to ``width``.

    Args:
        table: The rows to format.
        limit: The maximum number of rows, for the last line.
        width: The maximum width of a cell; longer cells end in "...".
        more: Whether there are rows beyond ``limit``.

    >>> print(format_table(pa.table({"a": [1, None]}), limit=2), end="")
    +----+
    |   a|
    +----+
    |   1|
    |NULL|
    +----+
    """
    names = table.column_names
    widths = [max(3, len(name)) for name in names]
    rows = []
    for values in _to_row_tuples(table):
        cells = []
        for index, value in enumerate(values):
            cell = _truncate(format_cell(value), width)
            widths[index] = max(widths[index], len(cell))
            cells.append(cell)
        rows.append(cells)
    rule = "+" + "+".join("-" * width for width in widths) + "+"
    body = [_format_line(cells, widths) for cells in rows]
    lines = [rule, _format_line(names, widths), rule, *body, rule]
    if more:
        unit = "row"
        if limit != 1:
            unit = "rows"
        lines.append(f"only showing top {limit} {unit}")
    return "\n".join(lines) + "\n"


def table_to_html(table: pa.Table, *, caption: str) -> str:
    """Convert a table to HTML for notebooks; every cell is escaped.

    >>> table_to_html(pa.table({"a": ["<b>"]}), caption="1 row")[-35:]
    '&lt;b&gt;</td></tr></tbody></table>'
    """
    head = [(field.name, describe(field.type)) for field in table.schema]
    rows = [
        [_truncate(format_cell(value), 60) for value in values] for values in _to_row_tuples(table)
    ]
    return display.table(head, rows, caption=caption)


def format_cell(value: object) -> str:
    """Format a value: null as NULL, booleans in lower case, times without trailing zeros.

    >>> format_cell(None), format_cell(True), format_cell([1, None])
    ('NULL', 'true', '[1, NULL]')
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
        if value.microsecond:
            text = f"{text}.{value.microsecond:06d}".rstrip("0")
        return text
    if isinstance(value, bytes):
        return f"[{value.hex(' ')}]"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_cell, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(map(format_cell, value.values())) + "}"
    # Control characters of a value could change the terminal or break the table.
    return escape_line(str(value))


def _to_row_tuples(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [to_python_values(column) for column in table.columns]
    return list(zip(*columns, strict=True))


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [text.rjust(width) for text, width in zip(cells, widths, strict=True)]
    return f"|{'|'.join(padded)}|"


def _truncate(string: str, width: int) -> str:
    if len(string) <= width:
        return string
    return string[: width - 3] + "..."


_ATTRIBUTE = "featurestore.inputs"
_IDENTITY_FIELDS = ("featuregroup", "source", "version", "delta_version")


def record_inputs(frame: Any, inputs: Sequence[JsonMapping], location: str) -> Any:
    """Record lineage inputs in a pandas dataframe, and return the dataframe."""
    if inputs:
        # ``to_parquet`` writes attrs as JSON, so they contain plain values only.
        records = [
            {name: source[name] for name in _IDENTITY_FIELDS if source.get(name) is not None}
            for source in inputs
        ]
        frame.attrs[_ATTRIBUTE] = {"store": _store_key(location), "inputs": records}
    return frame


def recorded_inputs(df: object, location: str) -> list[dict[str, Any]]:
    """Return the inputs that a pandas dataframe has recorded from a store.

    ``attrs`` may come from a file, so invalid records are omitted.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(df, pandas.DataFrame):
        return []
    recorded = df.attrs.get(_ATTRIBUTE)
    if not isinstance(recorded, dict) or recorded.get("store") != _store_key(location):
        return []
    inputs = recorded.get("inputs")
    return list(filter(_is_input, inputs)) if isinstance(inputs, list) else []


def existing_inputs(session: Session, df: object) -> tuple[JsonMapping, ...]:
    """Return the recorded inputs of a dataframe without groups that have never existed."""
    recorded = recorded_inputs(df, session.location)
    if not recorded:
        return ()
    with session.registry.reading() as connection:
        return tuple(
            source
            for source in recorded
            if "featuregroup" not in source
            or featuregroups.find(connection, source["featuregroup"], source["version"]) is not None
            # A copy of rows keeps the origins of a group that was removed meanwhile.
            or origins.is_stored(
                connection, Object(GROUP, source["featuregroup"], source["version"])
            )
        )


def _is_input(record: object) -> bool:
    if not isinstance(record, dict) or not set(record) <= set(_IDENTITY_FIELDS):
        return False
    names = [record[name] for name in ("featuregroup", "source") if name in record]
    numbers = [record[name] for name in ("version", "delta_version") if name in record]
    is_complete = "featuregroup" not in record or "version" in record
    return (
        len(names) == 1
        and is_complete
        and all(isinstance(name, str) for name in names)
        and all(type(number) is int for number in numbers)
    )


def _store_key(location: str) -> str:
    """Identify a store without its path, since files may be passed to others."""
    return hashlib.sha256(location.encode()).hexdigest()[:16]
