"""Drift between two tables, computed from their statistics: distributions, missing and new values.

The population stability index (PSI) compares the shares p and q in the same bins as the sum of
(q - p) * ln(q / p). Numbers are binned by the deciles of the first table, categories by value. PSI
and the Kolmogorov-Smirnov distance are above zero even for two samples of the same distribution, so
differences that are expected by chance are not reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from featurestore.errors import InvalidArgument
from featurestore.model.arguments import with_suggestions
from featurestore.model.drift import DriftReport, DriftThresholds, FeatureDrift
from featurestore.model.roles import MODEL_ROLES
from featurestore.model.statistics import ColumnStatistics, Statistics, TopValue, Value
from featurestore.statistics.moments import Floats
from featurestore.statistics.summary import parse_seconds

# Added to the row count of every bin, because the logarithm of an empty bin is infinite.
_SMOOTHING_ROWS = 0.5
_DECILES = np.linspace(0.0, 1.0, 11)[1:-1]
_MAX_VALUES = 20


@dataclass(frozen=True)
class Cumulative:
    """A cumulative distribution function.

    ``left`` is the share of values below each of the ``points``, ``right`` the share of values up
    to and including the point. Between points, the function is constant if it is stepwise (all
    values are points), and linear otherwise.
    """

    points: Floats
    left: Floats
    right: Floats
    stepwise: bool

    def share_up_to(self, x: Floats) -> Floats:
        """Return the share of values <= x."""
        return self._share_at(x, np.searchsorted(self.points, x, side="right") - 1)

    def share_below(self, x: Floats) -> Floats:
        """Return the share of values < x."""
        return self._share_at(x, np.searchsorted(self.points, x, side="left") - 1)

    def _share_at(self, x: Floats, index: NDArray[np.intp]) -> Floats:
        """Return the share at x; ``index`` is the last point before x, -1 if x is before the first point."""
        last = len(self.points) - 1
        position = np.clip(index, 0, last)
        share = np.where(index < 0, 0.0, self.right[position])
        if self.stepwise:
            return np.asarray(share)
        # Values between two points increase linearly from the right share of the previous point to
        # the left share of the next point.
        next_position = np.clip(index + 1, 0, last)
        width = self.points[next_position] - self.points[position]
        rises = (index >= 0) & (next_position > position) & (width > 0)
        fraction = (x - self.points[position]) / np.where(width > 0, width, 1.0)
        rise = fraction * (self.left[next_position] - self.right[position])
        return np.asarray(share + np.where(rises, rise, 0.0))


def cumulative(column: ColumnStatistics) -> Cumulative | None:
    """Return the distribution function of a measured column, or None if it has no values."""
    if column.top_complete and column.top:
        return cumulative_from_counts([(value.value, value.count) for value in column.top])
    if column.quantiles:
        return cumulative_from_quantiles(column.quantiles)
    return None


def cumulative_from_quantiles(quantiles: Sequence[Value]) -> Cumulative:
    """Return the distribution function with linear pieces between evenly spaced quantiles."""
    values = np.array([as_number(quantile) for quantile in quantiles])
    grid = np.linspace(0.0, 1.0, len(values))
    # Equal quantiles are one point, at which the function jumps from the first to the last of their
    # probabilities.
    points, first = np.unique(values, return_index=True)
    last = np.append(first[1:], len(values)) - 1
    return Cumulative(points, grid[first], grid[last], stepwise=False)


def cumulative_from_counts(value_counts: Sequence[tuple[Value, int]]) -> Cumulative:
    """Return the stepwise distribution function of completely counted values."""
    values = np.array([as_number(value) for value, _ in value_counts])
    counts = np.array([count for _, count in value_counts], dtype=np.float64)
    order = np.argsort(values)
    shares = np.cumsum(counts[order])
    shares /= shares[-1]
    left_shares = np.concatenate(([0.0], shares[:-1]))
    return Cumulative(values[order], left_shares, shares, stepwise=True)


def kolmogorov_smirnov(a: Cumulative, b: Cumulative) -> float:
    """Return the Kolmogorov-Smirnov distance, the maximum difference of two functions."""
    points = np.union1d(a.points, b.points)
    up_to = np.abs(a.share_up_to(points) - b.share_up_to(points)).max()
    below = np.abs(a.share_below(points) - b.share_below(points)).max()
    return float(max(up_to, below))


def as_number(value: bool | float | str) -> float:
    """Convert a value in statistics to a number; times become seconds since 1970."""
    if isinstance(value, str):
        return parse_seconds(value)
    return float(value)


@runtime_checkable
class HasStatistics(Protocol):
    """An object with statistics, such as a feature group."""

    def statistics(self) -> Statistics:
        """Return the statistics."""
        ...


@with_suggestions
def compare_statistics(
    before: Statistics | HasStatistics,
    after: Statistics | HasStatistics,
    *,
    thresholds: DriftThresholds | None = None,
) -> DriftReport:
    """Compare the distribution of each feature; keys and times of a group are excluded.

    Args:
        before: The reference table (for example training data, or an earlier Delta version): its
            statistics, or the feature group.
        after: The table that may have drifted.
        thresholds: The thresholds above which a difference is drift.

    >>> def table(*quantiles):
    ...     delay = ColumnStatistics("delay", "double", "number", "feature", 100, 0)
    ...     return Statistics(100, (replace(delay, quantiles=quantiles),), sample_rows=100)
    >>> [each.name for each in compare_statistics(table(0.0, 1.0), table(5.0, 6.0)).drifted]
    ['delay']
    """
    before, after = _resolve_statistics(before, "before"), _resolve_statistics(after, "after")
    thresholds = thresholds or DriftThresholds()
    old, new = _feature_columns(before), _feature_columns(after)
    features = []
    retyped = []
    for name, column in old.items():
        if name not in new:
            continue
        if column.kind != new[name].kind:
            retyped.append(name)
            continue
        features.append(
            _compare_column(
                _TableColumn(column, before), _TableColumn(new[name], after), thresholds
            )
        )
    features.sort(key=lambda drift: (not drift.drifted, -(drift.psi or 0.0), drift.name))
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    return DriftReport(
        before=before.source,
        after=after.source,
        rows_before=before.rows,
        rows_after=after.rows,
        features=tuple(features),
        added=tuple(added),
        removed=tuple(removed),
        retyped=tuple(retyped),
        thresholds=thresholds,
    )


def _resolve_statistics(source: Statistics | HasStatistics, argument: str) -> Statistics:
    """Return the statistics of a source, or raise InvalidArgument if it has none."""
    if isinstance(source, Statistics):
        return source
    if isinstance(source, HasStatistics):
        return source.statistics()
    raise InvalidArgument(
        f"{argument}={source!r} has no statistics.",
        hint="pass statistics: get_featuregroup_statistics('weather', delta_version=3), "
        "or dataset.statistics('train')",
    )


def _feature_columns(statistics: Statistics) -> dict[str, ColumnStatistics]:
    features = {}
    for column in statistics.columns:
        if column.role in MODEL_ROLES:
            features[column.name] = column
    return features


@dataclass(frozen=True)
class _TableColumn:
    """A column and the statistics of its table."""

    column: ColumnStatistics
    table: Statistics

    @property
    def missing(self) -> float:
        return self.column.missing / max(self.table.rows, 1)

    @property
    def sampled(self) -> float:
        """The number of sampled values; estimated for statistics from older releases."""
        if self.column.sampled is not None:
            return max(self.column.sampled, 1)
        sampled = self.table.sample_rows / max(self.table.rows, 1)
        return max(self.column.count * sampled, 1.0)


def _compare_column(
    old: _TableColumn, new: _TableColumn, thresholds: DriftThresholds
) -> FeatureDrift:
    """Return all drift measures of a column, with the reasons if it drifted."""
    psi, bins = _population_stability(old, new)
    new_values = _unseen_values(old.column, new.column)
    gone_values = _unseen_values(new.column, old.column)
    new_rows = sum(new_value.count for new_value in new_values)
    drift = FeatureDrift(
        name=old.column.name,
        kind=old.column.kind,
        psi=psi,
        ks=_ks_distance(old.column, new.column),
        missing_before=old.missing,
        missing_after=new.missing,
        new_values=_most_frequent_values(new_values),
        new_share=new_rows / new.sampled,
        gone_values=_most_frequent_values(gone_values),
        values_complete=_is_complete(old.column) and _is_complete(new.column),
    )
    return replace(drift, reasons=_drift_reasons(drift, old.column, new.column, bins, thresholds))


def _is_complete(column: ColumnStatistics) -> bool:
    """Return True if all values that must be compared individually were counted."""
    return column.top_complete or column.kind not in ("text", "boolean")


def _drift_reasons(
    drift: FeatureDrift,
    old: ColumnStatistics,
    new: ColumnStatistics,
    bins: int,
    thresholds: DriftThresholds,
) -> tuple[str, ...]:
    """Describe the measures that exceed both their threshold and the variation by chance."""
    reasons = []
    spread = 1 / max(old.count, 1) + 1 / max(new.count, 1)
    # Without drift, PSI / spread is approximately chi-squared with bins - 1 degrees of freedom. The
    # bounds are exceeded by chance in one of a thousand comparisons.
    degrees = bins - 1
    chance_psi = spread * (degrees + 3.1 * math.sqrt(2 * max(degrees, 1)) + 4)
    if drift.psi is not None and drift.psi > max(thresholds.psi, chance_psi):
        reasons.append(f"PSI {drift.psi:.3g} > {thresholds.psi:g}")
    # 1.95 is the critical value of the Kolmogorov-Smirnov test for this probability.
    if drift.ks is not None and drift.ks > max(thresholds.ks, 1.95 * math.sqrt(spread)):
        reasons.append(f"KS {drift.ks:.3g} > {thresholds.ks:g}")
    change = drift.missing_after - drift.missing_before
    if abs(change) > thresholds.missing:
        reasons.append(f"missing {drift.missing_before:.1%} -> {drift.missing_after:.1%}")
    if drift.kind in ("text", "boolean") and drift.new_share > thresholds.new:
        reasons.append(f"new values in {drift.new_share:.1%} of rows")
    return tuple(reasons)


def _population_stability(old: _TableColumn, new: _TableColumn) -> tuple[float | None, int]:
    """Return the PSI, or None without comparable values, and the number of bins."""
    if old.column.count == 0 or new.column.count == 0:
        return None, 0
    shares = None
    if old.column.kind in ("text", "boolean"):
        shares = _category_shares(old, new)
    elif old.column.kind in ("number", "time"):
        shares = _bin_shares(old.column, new.column)
    if shares is None:
        return None, 0
    old_shares = _smooth_shares(shares[0], old.sampled)
    new_shares = _smooth_shares(shares[1], new.sampled)
    return float(((new_shares - old_shares) * np.log(new_shares / old_shares)).sum()), len(
        old_shares
    )


def _smooth_shares(shares: Floats, rows: float) -> Floats:
    return (shares * rows + _SMOOTHING_ROWS) / (rows + _SMOOTHING_ROWS * len(shares))


def _bin_shares(old: ColumnStatistics, new: ColumnStatistics) -> tuple[Floats, Floats] | None:
    """Return the shares of both tables in the bins of the first table."""
    old_distribution, new_distribution = cumulative(old), cumulative(new)
    if old_distribution is None or new_distribution is None:
        return None
    # A few distinct values are compared individually, because deciles would merge several values.
    if old.top_complete and len(old.top) <= len(_DECILES) + 1:
        edges = old_distribution.points
    else:
        edges = np.unique(np.interp(_DECILES, old_distribution.right, old_distribution.points))
    return _shares_between(old_distribution, edges), _shares_between(new_distribution, edges)


def _shares_between(distribution: Cumulative, edges: Floats) -> Floats:
    return np.diff(np.concatenate(([0.0], distribution.share_up_to(edges), [1.0])))


def _category_shares(old: _TableColumn, new: _TableColumn) -> tuple[Floats, Floats] | None:
    before, after = _value_shares(old), _value_shares(new)
    if not before or not after:
        return None
    values = list(dict.fromkeys([*before, *after]))
    return _align_shares(values, before), _align_shares(values, after)


def _most_frequent_values(top_values: Sequence[TopValue]) -> tuple[Value, ...]:
    return tuple(top_value.value for top_value in top_values[:_MAX_VALUES])


def _value_shares(table_column: _TableColumn) -> dict[Value, float]:
    shares = {}
    for top_value in table_column.column.top:
        shares[top_value.value] = top_value.count / table_column.sampled
    return shares


def _align_shares(values: Sequence[Value], shares: Mapping[Value, float]) -> Floats:
    """Return the share of each listed value, followed by the total share of all other values."""
    listed_shares = np.array([shares.get(value, 0.0) for value in values])
    return np.append(listed_shares, max(1.0 - listed_shares.sum(), 0.0))


def _unseen_values(old: ColumnStatistics, new: ColumnStatistics) -> list[TopValue]:
    """Return frequent values of the second column that do not occur in the first column.

    The list is empty unless all distinct values of the first column are known.
    """
    if not old.top_complete or old.kind not in ("text", "boolean", "number"):
        return []
    old_values = {top_value.value for top_value in old.top}
    return [top_value for top_value in new.top if top_value.value not in old_values]


def _ks_distance(old: ColumnStatistics, new: ColumnStatistics) -> float | None:
    """Return the Kolmogorov-Smirnov distance of two columns, or None if they are not measured."""
    if old.kind not in ("number", "time", "boolean"):
        return None
    old_distribution, new_distribution = cumulative(old), cumulative(new)
    if old_distribution is None or new_distribution is None:
        return None
    return kolmogorov_smirnov(old_distribution, new_distribution)
