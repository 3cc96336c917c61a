"""Statistics as a pandas frame, one row a feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurestore.errors import missing_extra
from featurestore.model.statistics import ColumnStatistics, Statistics

if TYPE_CHECKING:
    import pandas as pd

_QUARTILES = {"25%": 0.25, "50%": 0.5, "75%": 0.75}


def descriptive_stats(statistics: Statistics) -> pd.DataFrame:
    """Return a frame indexed by column name; what does not exist is missing in it, never 0.

    Columns: type, kind, role, count, nulls, nan, missing (share of rows), mean, std, min, 25%, 50%, 75%, max, sum,
    distinct, top, top_count, length_min, length_mean, length_max.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise missing_extra("pandas", "pandas") from error
    rows = [_row(each, statistics.rows) for each in statistics.columns]
    frame = pd.DataFrame(
        rows, index=pd.Index([each.name for each in statistics.columns], name="feature")
    )
    whole = dict.fromkeys(
        ("count", "nulls", "nan", "distinct", "top_count", "length_min", "length_max"), "Int64"
    )
    return frame.astype(whole) if len(frame) else frame


def _row(column: ColumnStatistics, rows: int) -> dict[str, Any]:
    top = column.top[0] if column.top else None
    lengths = column.lengths
    return {
        "type": column.type,
        "kind": column.kind,
        "role": column.role,
        "count": column.count,
        "nulls": column.nulls,
        "nan": column.nan,
        "missing": column.missing / rows if rows else None,
        "mean": column.mean,
        "std": column.std,
        "min": column.minimum,
        **{name: column.quantile(probability) for name, probability in _QUARTILES.items()},
        "max": column.maximum,
        "sum": column.sum,
        "distinct": column.distinct,
        "top": None if top is None else top.value,
        "top_count": None if top is None else top.count,
        "length_min": None if lengths is None else lengths.minimum,
        "length_mean": None if lengths is None else lengths.mean,
        "length_max": None if lengths is None else lengths.maximum,
    }
