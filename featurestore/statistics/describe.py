"""Statistics as a pandas data frame, one row per feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurestore.errors import missing_extra
from featurestore.model.statistics import ColumnStatistics, Statistics

if TYPE_CHECKING:
    import pandas as pd

# Integers that may be missing.
_NULLABLE_INTEGERS = ("count", "nulls", "nan", "distinct", "top_count", "length_min", "length_max")


def descriptive_stats(statistics: Statistics) -> pd.DataFrame:
    """Return a data frame indexed by column name; undefined statistics are missing, never 0.

    Columns: type, kind, role, count, nulls, nan, missing (share of rows), mean, std, min, 25%, 50%,
    75%, max, sum, distinct, top, top_count, top_share (share of rows with one of the frequent
    values of ``ColumnStatistics.top``; 1.0 if these are all values), length_min, length_mean,
    length_max.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise missing_extra("pandas", "pandas") from error
    rows = []
    names = []
    for column in statistics.columns:
        rows.append(_row(column, statistics.rows))
        names.append(column.name)
    frame = pd.DataFrame(rows, index=pd.Index(names, name="feature"))
    if frame.empty:
        return frame
    return frame.astype(dict.fromkeys(_NULLABLE_INTEGERS, "Int64"))


def _row(column: ColumnStatistics, rows: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": column.type,
        "kind": column.kind,
        "role": column.role,
        "count": column.count,
        "nulls": column.nulls,
        "nan": column.nan,
        "missing": None,
        "mean": column.mean,
        "std": column.std,
        "min": column.minimum,
        "25%": column.quantile(0.25),
        "50%": column.quantile(0.5),
        "75%": column.quantile(0.75),
        "max": column.maximum,
        "sum": column.sum,
        "distinct": column.distinct,
        "top": None,
        "top_count": None,
        "top_share": column.top_share,
        "length_min": None,
        "length_mean": None,
        "length_max": None,
    }
    if rows:
        row["missing"] = column.missing / rows
    if column.top:
        row["top"] = column.top[0].value
        row["top_count"] = column.top[0].count
    if column.lengths is not None:
        row["length_min"] = column.lengths.minimum
        row["length_mean"] = column.lengths.mean
        row["length_max"] = column.lengths.maximum
    return row
