"""From a state to results: exact numbers from the counts, distributions from the sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.model.cores import usable_cores
from featurestore.model.statistics import (
    ColumnStatistics,
    Correlations,
    Histogram,
    Lengths,
    Statistics,
    TopValue,
    Value,
)
from featurestore.statistics.accumulator import StatisticsState
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.distribution import Distribution, correlations_of, distribution_of
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import CountedColumn, correlated_columns
from featurestore.statistics.moments import Moments, deviations_of
from featurestore.statistics.times import time_text, within_calendar
from featurestore.statistics.values import Bools, measured_values

_SHOWN_TEXT = 120
_SECONDS_PER_DAY = 86_400
_MICROS_PER_SECOND = 1_000_000


def finish(state: StatisticsState, *, source: Mapping[str, Any] | None = None) -> Statistics:
    """Return the statistics of all rows that a state has counted.

    While the sample holds every row, they do not depend on the order in which rows were counted,
    to the last bit; above that, the last digits of deviations and of Pearson's r may.

    Args:
        state: What the accumulator returned; stays usable.
        source: What was counted, for titles: featuregroup, version, delta_version.

    >>> from featurestore.statistics import statistics_accumulator
    >>> accumulator = statistics_accumulator(pa.schema([("age", pa.int64())]))
    >>> batch = pa.RecordBatch.from_pydict({"age": [31, 45]})
    >>> state = accumulator.update(accumulator.start(), batch)
    >>> finish(state).column("age").mean
    38.0
    """
    state.sample.compact()
    weights = state.sample.weights()
    pearson, spearman = None, None
    names = tuple(each.name for each in correlated_columns(state.columns))
    if len(names) > 1:
        pearson = _correlations("pearson", names, _linear_correlations(state, names, weights))
    distributions = _distributions(state, weights)
    columns = []
    for column in state.columns:
        columns.append(_column(column, state, distributions[column.name]))
    if len(names) > 1:
        ranked = _ranks(names, distributions)
        spearman = _correlations("spearman", names, correlations_of(ranked, weights))
    return Statistics(
        rows=state.rows,
        columns=tuple(columns),
        pearson=pearson,
        spearman=spearman,
        sample_rows=int(weights.sum()),
        sample_distinct=len(weights),
        exact=not state.sample.cut,
        seed=state.seed,
        source=dict(source or {}),
    )


def _linear_correlations(
    state: StatisticsState, names: tuple[str, ...], weights: NDArray[np.int64]
) -> Floats:
    """Return Pearson's r of columns, of the sample while it holds every row."""
    if state.sample.cut:
        return state.co_moments.correlations()
    rows = state.sample.rows()
    deviations: dict[str, tuple[Floats, Bools | None]] = {}
    # Squares of values near the end of float64 leave it; what comes of them is missing.
    with np.errstate(over="ignore", invalid="ignore"):
        for name in names:
            values = measured_values(rows.column(name))
            deviations[name] = (deviations_of(values).values, values.present)
        return correlations_of(deviations, weights)


def _distributions(
    state: StatisticsState, weights: NDArray[np.int64]
) -> dict[str, Distribution | None]:
    """Return the distribution of each column; None where the sample holds nothing of it."""
    rows = state.sample.rows()

    def distribution(column: CountedColumn) -> Distribution | None:
        if column.name not in rows.schema.names:
            return None
        counts = state.counts[column.name]
        values = rows.column(column.name)
        with np.errstate(over="ignore", invalid="ignore"):
            return distribution_of(column, values, weights, counts)

    # Sorting releases the GIL; more columns at a time than cores would only need more memory.
    with ThreadPoolExecutor(usable_cores()) as pool:
        found = list(pool.map(distribution, state.columns))
    names = [column.name for column in state.columns]
    return dict(zip(names, found, strict=True))


def _ranks(
    names: tuple[str, ...], distributions: Mapping[str, Distribution | None]
) -> dict[str, tuple[Floats, NDArray[np.bool_] | None]]:
    ranks = {}
    for name in names:
        distribution = distributions[name]
        if distribution is not None and distribution.ranks is not None:
            ranks[name] = distribution.ranks
    return ranks


def _column(
    column: CountedColumn, state: StatisticsState, distribution: Distribution | None
) -> ColumnStatistics:
    counts = state.counts[column.name]
    present = counts.rows - counts.nulls - counts.nan
    result: dict[str, Any] = {}
    if counts.minimum is not None and counts.maximum is not None:
        result["minimum"] = _shown(counts.minimum, column.type)
        result["maximum"] = _shown(counts.maximum, column.type)
    if column.measured and counts.moments.n:
        result["mean"] = _mean(counts, column)
        moments = counts.moments
        if distribution is not None and not state.sample.cut:
            moments = distribution.moments
        result["std"] = _std(moments, column.type)
        if column.kind != "time":
            result["sum"] = _sum(counts)
    if counts.shortest is not None and counts.longest is not None:
        result["lengths"] = Lengths(counts.shortest, counts.longest, counts.length / present)
    if distribution is not None:
        result |= _sampled(distribution, column, state)
    return ColumnStatistics(
        name=column.name,
        type=str(column.type),
        kind=column.kind,
        role=column.role,
        count=present,
        nulls=counts.nulls,
        nan=counts.nan,
        infinite=counts.infinite,
        **result,
    )


def _sampled(
    distribution: Distribution, column: CountedColumn, state: StatisticsState
) -> dict[str, Any]:
    """Return the fields of ``ColumnStatistics`` that come from the sample."""
    counts = state.counts[column.name]
    exact = counts.values is not None or not state.sample.cut
    distinct = distribution.distinct
    if not exact:
        distinct = distribution.estimate_distinct(counts.rows)
    top = []
    for value, count in distribution.top:
        top.append(TopValue(_shown(value, column.type), count))
    result: dict[str, Any] = {
        "distinct": distinct,
        "distinct_exact": exact,
        "top": tuple(top),
        "top_complete": distribution.top_complete,
        "sampled": distribution.rows,
    }
    if column.measured:
        result["quantiles"] = _all_computed(distribution.quantiles, column, counts)
        if distribution.edges is not None and distribution.bins is not None:
            edges = _all_computed(distribution.edges, column, counts)
            result["histogram"] = Histogram(edges, tuple(distribution.bins.tolist()))
    return result


def _all_computed(
    values: tuple[float, ...], column: CountedColumn, counts: ColumnCounts
) -> tuple[float | str, ...]:
    if column.kind != "time" and not pat.is_integer(column.type):
        return values
    return tuple([_computed(value, column, counts) for value in values])


def _correlations(
    method: Literal["pearson", "spearman"], names: tuple[str, ...], matrix: Floats
) -> Correlations:
    rows = tuple(tuple(map(_finite, row)) for row in matrix.tolist())
    return Correlations(method, names, rows)


def _sum(counts: ColumnCounts) -> int | float | None:
    if isinstance(counts.total, int):
        return counts.total
    return _finite(counts.total[0] + counts.total[1])


def _mean(counts: ColumnCounts, column: CountedColumn) -> float | str | None:
    if isinstance(counts.total, tuple):
        return _finite((counts.total[0] + counts.total[1]) / counts.moments.n)
    mean = counts.total / counts.moments.n
    if column.kind == "time":
        return str(_computed(mean, column, counts))
    return mean


def _std(moments: Moments, kind: pa.DataType) -> float | None:
    variance = moments.variance
    if variance is None or not math.isfinite(variance):
        return None
    std = math.sqrt(variance)
    if pat.is_date(kind):
        return std * _SECONDS_PER_DAY
    if pat.is_timestamp(kind):
        return std * (1 / _MICROS_PER_SECOND)
    return std


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; None for what left the range of float64."""
    return value if math.isfinite(value) else None


def _shown(value: Any, kind: pa.DataType) -> Value:
    """Return a value of a column as results hold it."""
    if pat.is_date(kind) or pat.is_timestamp(kind):
        return time_text(value, kind)
    if pat.is_boolean(kind):
        return bool(value)
    if pat.is_string(kind) and len(value) > _SHOWN_TEXT:
        return f"{value[:_SHOWN_TEXT]}…"
    return _number(value, kind)


def _computed(value: float, column: CountedColumn, counts: ColumnCounts) -> float | str:
    """Return a number that was computed from a measured column, as results hold it."""
    if column.kind != "time":
        return _number(value, column.type)
    low, high = counts.minimum, counts.maximum
    if not isinstance(low, int) or not isinstance(high, int):
        return time_text(value, column.type)
    return time_text(within_calendar(value, column.type, low=low, high=high), column.type)


def _number(value: Any, kind: pa.DataType) -> Any:
    """Return a whole number as int where the column holds whole numbers."""
    if isinstance(value, float) and value.is_integer() and pat.is_integer(kind):
        return int(value)
    return value
