"""From a state to results: exact numbers from the counts, distributions from the sample."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.statistics import (
    ColumnStatistics,
    Correlations,
    Histogram,
    Lengths,
    Statistics,
    TopValue,
    Value,
)
from featurestore.model.times import from_micros
from featurestore.statistics.accumulator import StatisticsState
from featurestore.statistics.columns import Counts
from featurestore.statistics.distribution import Distribution, distribution_of, rank_correlations
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import CountedColumn, correlated_columns

_SHOWN_TEXT = 120
_MICROS = 1_000_000
_DAY = 86_400


def finish(state: StatisticsState, *, source: Mapping[str, Any] | None = None) -> Statistics:
    """Return the statistics of all rows that a state has counted.

    Args:
        state: What the accumulator returned; stays usable.
        source: What was counted, for titles: featuregroup, version, delta_version.
    """
    state.sample.compact()
    rows, weights = state.sample.rows(), state.sample.weights()
    correlated = tuple(each.name for each in correlated_columns(state.columns))
    sampled = set(rows.schema.names)

    def distribution(column: CountedColumn) -> Distribution | None:
        if column.name not in sampled:
            return None
        bounds = state.counts[column.name]
        return distribution_of(
            column, rows.column(column.name), weights, low=bounds.minimum, high=bounds.maximum
        )

    # Sorting releases the GIL; more columns at a time than cores would only need more memory.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(
            zip(
                (each.name for each in state.columns),
                pool.map(distribution, state.columns),
                strict=True,
            )
        )
    ranked = {
        name: ranks
        for name in correlated
        if (one := found[name]) and (ranks := one.ranks) is not None
    }
    return Statistics(
        rows=state.rows,
        columns=tuple(_column(each, state, found[each.name]) for each in state.columns),
        pearson=_correlations("pearson", correlated, state.co_moments.correlations)
        if len(correlated) > 1
        else None,
        spearman=_correlations("spearman", correlated, lambda: rank_correlations(ranked, weights))
        if len(correlated) > 1
        else None,
        sample_rows=int(weights.sum()),
        sample_distinct=len(weights),
        exact=not state.sample.cut,
        seed=state.seed,
        source=dict(source or {}),
    )


def _column(
    column: CountedColumn, state: StatisticsState, found: Distribution | None
) -> ColumnStatistics:
    counts = state.counts[column.name]
    present = counts.rows - counts.nulls - counts.nan
    std = _std(counts, column.type) if column.measured else None
    summed = column.kind in ("number", "boolean") and counts.moments.n
    shown = _show(column.type)
    return ColumnStatistics(
        name=column.name,
        type=str(column.type),
        kind=column.kind,
        role=column.role,
        count=present,
        nulls=counts.nulls,
        nan=counts.nan,
        infinite=counts.infinite,
        sum=_total(counts) if summed else None,
        mean=_mean(counts, shown) if column.measured else None,
        std=std,
        minimum=None if counts.minimum is None else shown(counts.minimum),
        maximum=None if counts.maximum is None else shown(counts.maximum),
        lengths=_lengths(counts, present),
        **({} if found is None else _sampled(found, column, state)),
    )


def _sampled(found: Distribution, column: CountedColumn, state: StatisticsState) -> dict[str, Any]:
    """Return the fields of ``ColumnStatistics`` that come from the sample."""
    if not column.measured and column.kind != "text":
        return {}
    shown = _show(column.type)
    exact = not state.sample.cut
    result: dict[str, Any] = {
        "distinct": found.distinct
        if exact
        else found.estimate_distinct(state.counts[column.name].rows),
        "distinct_exact": exact,
        "top": tuple(TopValue(shown(value), count) for value, count in found.top),
        "top_complete": found.top_complete,
    }
    if column.measured:
        scale = _moment_text if column.kind == "time" else _number
        result["quantiles"] = tuple(scale(each, column.type) for each in found.quantiles)
        if found.edges is not None and found.bins is not None:
            edges = tuple(scale(each, column.type) for each in found.edges)
            result["histogram"] = Histogram(edges, tuple(int(each) for each in found.bins))
    return result


def _correlations(
    method: Literal["pearson", "spearman"], names: tuple[str, ...], compute: Any
) -> Correlations:
    matrix: Floats = compute()
    rows = tuple(tuple(None if math.isnan(each) else float(each) for each in row) for row in matrix)
    return Correlations(method, names, rows)


def _total(counts: Counts) -> int | float | None:
    total = counts.total if isinstance(counts.total, int) else counts.total[0] + counts.total[1]
    return total if math.isfinite(total) else None


def _mean(counts: Counts, shown: Any) -> float | str | None:
    n = counts.moments.n
    if not n:
        return None
    if isinstance(counts.total, tuple):
        mean = (counts.total[0] + counts.total[1]) / n
        return mean if math.isfinite(mean) else None
    mean = counts.total / n
    text = shown(mean)
    return text if isinstance(text, str) else mean


def _std(counts: Counts, kind: pa.DataType) -> float | None:
    variance = counts.moments.variance
    if variance is None or not math.isfinite(variance):
        return None
    unit = _DAY if pat.is_date(kind) else 1 / _MICROS if pat.is_timestamp(kind) else 1
    return math.sqrt(variance) * unit


def _lengths(counts: Counts, present: int) -> Lengths | None:
    if counts.shortest is None or counts.longest is None:
        return None
    return Lengths(counts.shortest, counts.longest, counts.length / present)


def _show(kind: pa.DataType) -> Any:
    """Return the function that makes a counted value fit for JSON."""
    if pat.is_date(kind) or pat.is_timestamp(kind):
        return lambda value: _moment_text(value, kind)
    if pat.is_boolean(kind):
        return lambda value: bool(value) if isinstance(value, int) else value
    if pat.is_string(kind):
        return lambda value: value if len(value) <= _SHOWN_TEXT else f"{value[:_SHOWN_TEXT]}…"
    return lambda value: _number(value, kind)


def _number(value: Value, kind: pa.DataType) -> Value:
    """Return a whole number as int where the column holds whole numbers."""
    if isinstance(value, float) and value.is_integer() and pat.is_integer(kind):
        return int(value)
    return value


def _moment_text(value: float, kind: pa.DataType) -> str:
    if pat.is_date(kind):
        days = math.floor(value)
        if days == value:
            return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=float(value))).isoformat()
    return from_micros(round(value)).isoformat()
