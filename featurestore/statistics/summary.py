"""Computation of statistics from a state: exact counts, and distributions of the sample."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.errors import missing_extra
from featurestore.model.statistics import (
    MAX_TEXT_CHARACTERS,
    ColumnStatistics,
    Correlations,
    Histogram,
    Lengths,
    Statistics,
    TopValue,
    Value,
)
from featurestore.model.times import from_micros, to_micros
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.distribution import (
    Distribution,
    number_distribution,
    string_distribution,
)
from featurestore.statistics.moments import CoMoments, Moments, co_moments, weighted_moments
from featurestore.statistics.state import (
    CountedColumn,
    StatisticsState,
    correlated_columns,
    paired_columns,
)
from featurestore.statistics.values import Values, measured_values

if TYPE_CHECKING:
    import pandas as pd

# Integer columns of the data frame that may contain missing values.
_NULLABLE_INTEGERS = ("count", "nulls", "nan", "distinct", "top_count", "length_min", "length_max")
_MICROS_PER_DAY = 86_400_000_000
_FIRST_DAY = (date.min - date(1970, 1, 1)).days
_LAST_DAY = (date.max - date(1970, 1, 1)).days
_FIRST_MICROS = to_micros(datetime.min.replace(tzinfo=UTC))
_LAST_MICROS = to_micros(datetime.max.replace(tzinfo=UTC))
_SECONDS_PER_DAY = 86_400
_MICROS_PER_SECOND = 1_000_000


def finish(state: StatisticsState, *, source: Mapping[str, Any] | None = None) -> Statistics:
    """Compute the statistics from a state.

    If the sample contains all rows, the statistics are bitwise independent of the row order.
    Otherwise, the last digits of standard deviations and of Pearson's r may depend on it.

    Args:
        state: The accumulated state; it can be updated further.
        source: The description of the table: featuregroup, version, delta_version.

    >>> from featurestore.statistics import statistics_accumulator
    >>> accumulator = statistics_accumulator(pa.schema([("age", pa.int64())]))
    >>> batch = pa.RecordBatch.from_pydict({"age": [31, 45]})
    >>> state = accumulator.update(accumulator.start(), batch)
    >>> finish(state).column("age").mean
    38.0
    """
    state.sample.compact()
    weights = state.sample.weights()
    # Squares of values near the limits of float64 overflow; the affected statistics are missing.
    with np.errstate(over="ignore", invalid="ignore"):
        rows = state.sample.rows()
        sampled = {
            column.name: measured_values(rows.column(column.name))
            for column in state.columns
            if column.measured
        }
        distributions = _compute_distributions(state, sampled, weights)
        moments = _select_moments(state, sampled, weights)
        pearson, spearman = _compute_correlations(state, sampled, distributions, weights)
    columns = []
    for column in state.columns:
        distribution = distributions.get(column.name)
        columns.append(_column_statistics(column, state, distribution, moments[column.name]))
    return Statistics(
        rows=state.rows,
        columns=tuple(columns),
        pearson=pearson,
        spearman=spearman,
        sample_rows=int(weights.sum()),
        sample_distinct=len(weights),
        exact=not state.sample.is_truncated,
        seed=state.seed,
        source=dict(source or {}),
    )


def _select_moments(
    state: StatisticsState, sampled: Mapping[str, Values], weights: NDArray[np.int64]
) -> dict[str, Moments]:
    """Return the moments of each column, computed from the sample if it contains all rows."""
    moments = {}
    for name, counts in state.counts.items():
        moments[name] = counts.moments
        # The sample is ordered by hash, so its moments do not depend on the row order of the table.
        if name in sampled and not state.sample.is_truncated:
            moments[name] = weighted_moments(sampled[name], weights)
    return moments


def _compute_correlations(
    state: StatisticsState,
    sampled: Mapping[str, Values],
    distributions: Mapping[str, Distribution],
    weights: NDArray[np.int64],
) -> tuple[Correlations | None, Correlations | None]:
    """Return Pearson's and Spearman's correlations.

    Pearson's correlations cover all rows if the pairs were counted, otherwise only the sample.
    """
    names = tuple(column.name for column in correlated_columns(state.columns))
    if len(names) < 2:
        return None, None
    is_truncated = state.sample.is_truncated
    is_counted = is_truncated and bool(paired_columns(state.columns))
    linear = state.co_moments
    if not is_counted:
        linear = co_moments([sampled[name] for name in names], weights=weights)
    ranks = [distributions[name].ranks for name in names]
    ranked = co_moments([rank for rank in ranks if rank is not None], weights=weights)
    return (
        _correlations("pearson", names, linear, sampled=is_truncated and not is_counted),
        _correlations("spearman", names, ranked, sampled=is_truncated),
    )


def _compute_distributions(
    state: StatisticsState, sampled: Mapping[str, Values], weights: NDArray[np.int64]
) -> dict[str, Distribution]:
    """Return the distribution of each column with sampled values."""
    rows = state.sample.rows()
    column_distributions = {}
    # Threads are not faster, because most of the time is spent in calls that hold the GIL.
    for column in state.columns:
        counts = state.counts[column.name]
        if column.measured:
            column_distributions[column.name] = number_distribution(
                column, sampled[column.name], weights, counts
            )
        elif column.value_kind == "text":
            column_distributions[column.name] = string_distribution(
                rows.column(column.name), weights, counts
            )
    return column_distributions


def _column_statistics(
    column: CountedColumn,
    state: StatisticsState,
    distribution: Distribution | None,
    moments: Moments,
) -> ColumnStatistics:
    """Return the statistics of one column."""
    counts = state.counts[column.name]
    present = counts.rows - counts.nulls - counts.nan
    optional_fields: dict[str, Any] = {}
    if counts.minimum is not None and counts.maximum is not None:
        optional_fields["minimum"] = _format_value(counts.minimum, column.type)
        optional_fields["maximum"] = _format_value(counts.maximum, column.type)
    if column.measured and counts.moments.n:
        optional_fields["mean"] = _column_mean(counts, column)
        optional_fields["std"] = _column_std(moments, column.type)
        # A sum of times has no meaning.
        if column.value_kind != "time":
            total = counts.total
            optional_fields["sum"] = (
                total if isinstance(total, int) else _finite_or_none(total[0] + total[1])
            )
    if counts.shortest is not None and counts.longest is not None:
        optional_fields["lengths"] = Lengths(
            counts.shortest, counts.longest, counts.length / present
        )
    if distribution is not None:
        optional_fields |= _fields_from_sample(distribution, column, state)
    return ColumnStatistics(
        name=column.name,
        type=str(column.type),
        kind=column.value_kind,
        role=column.role,
        count=present,
        nulls=counts.nulls,
        nan=counts.nan,
        infinite=counts.infinite,
        **optional_fields,
    )


def _fields_from_sample(
    distribution: Distribution, column: CountedColumn, state: StatisticsState
) -> dict[str, Any]:
    """Return the fields of ``ColumnStatistics`` that are computed from the sample."""
    counts = state.counts[column.name]
    exact = counts.values is not None or not state.sample.is_truncated
    distinct = distribution.distinct
    if not exact:
        distinct = distribution.estimate_distinct(counts.rows)
    top = [TopValue(_format_value(value, column.type), count) for value, count in distribution.top]
    fields: dict[str, Any] = {
        "distinct": distinct,
        "distinct_exact": exact,
        "top": tuple(top),
        "top_complete": distribution.top_complete,
        "sampled": distribution.rows,
    }
    if column.measured:
        fields["quantiles"] = _format_computed_values(distribution.quantiles, column, counts)
        if distribution.edges is not None and distribution.bins is not None:
            edges = _format_computed_values(distribution.edges, column, counts)
            fields["histogram"] = Histogram(edges, tuple(distribution.bins.tolist()))
    return fields


def _format_computed_values(
    values: tuple[float, ...], column: CountedColumn, counts: ColumnCounts
) -> tuple[float | str, ...]:
    if column.value_kind != "time" and not pat.is_integer(column.type):
        return values
    return tuple([_format_computed(value, column, counts) for value in values])


def _correlations(
    method: Literal["pearson", "spearman"],
    names: tuple[str, ...],
    moments: CoMoments,
    *,
    sampled: bool,
) -> Correlations:
    coefficients = moments.correlations()
    values = coefficients.astype(object)
    values[np.isnan(coefficients)] = None
    return Correlations(method, names, tuple(map(tuple, values.tolist())), sampled)


def _column_mean(counts: ColumnCounts, column: CountedColumn) -> float | str | None:
    """Return the mean, formatted as a time for time columns, or None if it overflows."""
    if isinstance(counts.total, tuple):
        return _finite_or_none((counts.total[0] + counts.total[1]) / counts.moments.n)
    mean = counts.total / counts.moments.n
    if column.value_kind == "time":
        return str(_format_computed(mean, column, counts))
    return mean


def _column_std(moments: Moments, dtype: pa.DataType) -> float | None:
    """Return the standard deviation, in seconds for time columns."""
    variance = moments.variance
    if variance is None or not math.isfinite(variance):
        return None
    std = math.sqrt(variance)
    if pat.is_date(dtype):
        # Times are counted in days or microseconds, and deviations of times are reported in
        # seconds.
        return std * _SECONDS_PER_DAY
    if pat.is_timestamp(dtype):
        return std * (1 / _MICROS_PER_SECOND)
    return std


def _finite_or_none(value: float) -> float | None:
    """Return a finite number, or None for an overflow, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def _format_value(value: Any, dtype: pa.DataType) -> Value:
    """Convert a column value to the representation in statistics."""
    if pat.is_date(dtype) or pat.is_timestamp(dtype):
        return time_text(value, dtype)
    if pat.is_boolean(dtype):
        return bool(value)
    if pat.is_string(dtype) and len(value) > MAX_TEXT_CHARACTERS:
        return f"{value[:MAX_TEXT_CHARACTERS]}…"
    return _to_integer(value, dtype)


def _format_computed(value: float, column: CountedColumn, counts: ColumnCounts) -> float | str:
    """Convert a number computed from a measured column to the representation in statistics."""
    if column.value_kind != "time":
        return _to_integer(value, column.type)
    low, high = counts.minimum, counts.maximum
    if not isinstance(low, int) or not isinstance(high, int):
        return time_text(value, column.type)
    return time_text(clip_to_calendar(value, column.type, low=low, high=high), column.type)


def _to_integer(value: Any, dtype: pa.DataType) -> Any:
    """Convert integral floats of integer columns to int."""
    if isinstance(value, float) and value.is_integer() and pat.is_integer(dtype):
        return int(value)
    return value


def time_text(value: float, dtype: pa.DataType) -> str:
    """Format days (for dates) or microseconds (for timestamps) since 1970 as a time.

    >>> time_text(19723, pa.date32()), time_text(19723.5, pa.date32())
    ('2024-01-01', '2024-01-01T12:00:00+00:00')
    >>> time_text(253402300800000000, pa.timestamp("us", tz="UTC"))
    '10000-01-01T00:00:00.000000+00:00'
    """
    if not pat.is_date(dtype):
        return _format_instant(round(value))
    days = math.floor(value)
    if days == value or not _FIRST_DAY <= days <= _LAST_DAY:
        return str(np.datetime64(days, "D"))
    return _format_instant(days * _MICROS_PER_DAY + round((value - days) * _MICROS_PER_DAY))


def clip_to_calendar(value: float, dtype: pa.DataType, *, low: float, high: float) -> float:
    """Clip a computed time to Python's calendar if all values of the column are within it.

    Means, quantiles and edges are computed as float64, which has a resolution of 32 microseconds in
    the year 9999, so that a result may be slightly outside of the calendar.
    """
    is_date = pat.is_date(dtype)
    first = _FIRST_DAY if is_date else _FIRST_MICROS
    last = _LAST_DAY if is_date else _LAST_MICROS
    return max(min(value, max(last, high)), min(first, low))


def parse_seconds(text: str) -> float:
    """Parse a time formatted by ``time_text`` to seconds since 1970.

    >>> parse_seconds("1970-01-02"), parse_seconds("10000-01-01T00:00:00.000000+00:00")
    (86400.0, 253402300800.0)
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:  # outside Python's calendar
        return float(np.datetime64(text.removesuffix("+00:00"), "s").astype(np.int64))
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return instant.timestamp()


def _format_instant(micros: int) -> str:
    if _FIRST_MICROS <= micros <= _LAST_MICROS:
        return from_micros(micros).isoformat()
    # The minimum of int64 is NaT in numpy.
    micros = min(max(micros, int(_INT64.min) + 1), int(_INT64.max))
    return f"{np.datetime64(micros, 'us')}+00:00"


def descriptive_stats(statistics: Statistics) -> pd.DataFrame:
    """Return a data frame of statistics, indexed by column name.

    Columns: type, kind, role, count, nulls, nan, missing (share of rows), mean, std, min, 25%, 50%,
    75%, max, sum, distinct, top, top_count, top_share (the share of rows with a value that is
    listed in ``ColumnStatistics.top``; 1.0 if all values are listed), length_min, length_mean,
    length_max. Undefined statistics are missing, never 0.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise missing_extra("pandas", "pandas") from error
    rows = []
    names = []
    for column in statistics.columns:
        rows.append(_column_row(column, statistics.rows))
        names.append(column.name)
    frame = pd.DataFrame(rows, index=pd.Index(names, name="feature"))
    if frame.empty:
        return frame
    return frame.astype(dict.fromkeys(_NULLABLE_INTEGERS, "Int64"))


def _column_row(column: ColumnStatistics, rows: int) -> dict[str, Any]:
    """Return the row of a column in the data frame of ``descriptive_stats``."""
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


_INT64 = np.iinfo(np.int64)


def show_or_return_table(table: pd.DataFrame, *, plot: bool) -> pd.DataFrame | None:
    """Display a table and return None if ``plot``, otherwise return the table."""
    if not plot:
        return table
    # A notebook renders HTML; in a terminal, IPython prints the text.
    if "IPython" in sys.modules:
        from IPython.display import display

        display(table)  # type: ignore[no-untyped-call]
    else:
        sys.stdout.write(f"{table.to_string()}\n")
    return None
