"""Drift from two statistics.

Population stability, Kolmogorov-Smirnov, missing values, new categories.

The population stability index compares shares p and q of the same bins: sum of (q - p) * ln(q / p).
Numbers are binned by the deciles of the first table, categories by value. Both measures are also
above zero when nothing changed; what two samples of these sizes differ by chance is no drift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from featurestore.errors import InvalidArgument
from featurestore.model.arguments import answering
from featurestore.model.drift import DriftReport, DriftThresholds, FeatureDrift
from featurestore.model.roles import MODEL_ROLES
from featurestore.model.statistics import ColumnStatistics, Statistics, TopValue, Value
from featurestore.statistics.cumulative import Cumulative, cumulative, distance
from featurestore.statistics.exactsum import Floats

# Added to the rows of every bin: the logarithm of an empty one is endless.
_HALF_A_ROW = 0.5
_DECILES = np.linspace(0.0, 1.0, 11)[1:-1]
_MOST_VALUES = 20


@runtime_checkable
class HasStatistics(Protocol):
    """What can be asked for its statistics: a feature group."""

    def statistics(self) -> Statistics:
        """Return the statistics."""
        ...


@answering
def compare_statistics(
    before: Statistics | HasStatistics,
    after: Statistics | HasStatistics,
    *,
    thresholds: DriftThresholds | None = None,
) -> DriftReport:
    """Return what changed of each feature; keys and times of a group are left out.

    Args:
        before: The table to compare with (the training data, an earlier Delta version): its
            statistics, or the feature group.
        after: The table that may have drifted.
        thresholds: What counts as drift.

    >>> def table(*quantiles):
    ...     delay = ColumnStatistics("delay", "double", "number", "feature", 100, 0)
    ...     return Statistics(100, (replace(delay, quantiles=quantiles),), sample_rows=100)
    >>> [each.name for each in compare_statistics(table(0.0, 1.0), table(5.0, 6.0)).drifted]
    ['delay']
    """
    before, after = _statistics(before, "before"), _statistics(after, "after")
    thresholds = thresholds or DriftThresholds()
    old, new = _features(before), _features(after)
    features = []
    retyped = []
    for name, column in old.items():
        if name not in new:
            continue
        if column.kind != new[name].kind:
            retyped.append(name)
            continue
        features.append(_drift(_Side(column, before), _Side(new[name], after), thresholds))
    features.sort(key=lambda each: (not each.drifted, -(each.psi or 0.0), each.name))
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


def _statistics(given: Statistics | HasStatistics, argument: str) -> Statistics:
    if isinstance(given, Statistics):
        return given
    if isinstance(given, HasStatistics):
        return given.statistics()
    raise InvalidArgument(
        f"{argument}={given!r} has no statistics.",
        hint="give statistics: get_featuregroup_statistics('weather', delta_version=3), "
        "or dataset.statistics('train')",
    )


def _features(statistics: Statistics) -> dict[str, ColumnStatistics]:
    features = {}
    for column in statistics.columns:
        if column.role in MODEL_ROLES:
            features[column.name] = column
    return features


@dataclass(frozen=True)
class _Side:
    """One column and the table that it is of."""

    column: ColumnStatistics
    table: Statistics

    @property
    def missing(self) -> float:
        return self.column.missing / max(self.table.rows, 1)

    @property
    def sampled(self) -> float:
        """How many values the sample has; nearly, in statistics of older releases."""
        if self.column.sampled is not None:
            return max(self.column.sampled, 1)
        sampled = self.table.sample_rows / max(self.table.rows, 1)
        return max(self.column.count * sampled, 1.0)


def _drift(old: _Side, new: _Side, thresholds: DriftThresholds) -> FeatureDrift:
    psi, bins = _stability(old, new)
    appeared = _unseen(old.column, new.column)
    gone = _unseen(new.column, old.column)
    new_rows = sum(each.count for each in appeared)
    drift = FeatureDrift(
        name=old.column.name,
        kind=old.column.kind,
        psi=psi,
        ks=_distance(old.column, new.column),
        missing_before=old.missing,
        missing_after=new.missing,
        new_values=_first_values(appeared),
        new_share=new_rows / new.sampled,
        gone_values=_first_values(gone),
        values_complete=_is_complete(old.column) and _is_complete(new.column),
    )
    return replace(drift, reasons=_reasons(drift, old.column, new.column, bins, thresholds))


def _is_complete(column: ColumnStatistics) -> bool:
    """Tell whether the values that are compared one by one were all counted."""
    return column.top_complete or column.kind not in ("text", "boolean")


def _reasons(
    drift: FeatureDrift,
    old: ColumnStatistics,
    new: ColumnStatistics,
    bins: int,
    thresholds: DriftThresholds,
) -> tuple[str, ...]:
    """Return what passed its threshold and is more than chance."""
    reasons = []
    spread = 1 / max(old.count, 1) + 1 / max(new.count, 1)
    # Without drift PSI is about chi-squared with bins-1 degrees, times spread. One in a thousand
    # lies above these.
    degrees = bins - 1
    chance = spread * (degrees + 3.1 * math.sqrt(2 * max(degrees, 1)) + 4)
    if drift.psi is not None and drift.psi > max(thresholds.psi, chance):
        reasons.append(f"PSI {drift.psi:.3g} > {thresholds.psi:g}")
    if drift.ks is not None and drift.ks > max(thresholds.ks, 1.95 * math.sqrt(spread)):
        reasons.append(f"KS {drift.ks:.3g} > {thresholds.ks:g}")
    change = drift.missing_after - drift.missing_before
    if abs(change) > thresholds.missing:
        reasons.append(f"missing {drift.missing_before:.1%} -> {drift.missing_after:.1%}")
    if drift.kind in ("text", "boolean") and drift.new_share > thresholds.new:
        reasons.append(f"new values in {drift.new_share:.1%} of rows")
    return tuple(reasons)


def _stability(old: _Side, new: _Side) -> tuple[float | None, int]:
    """Return the population stability index and its number of bins.

    None where there is nothing to compare.
    """
    if old.column.count == 0 or new.column.count == 0:
        return None, 0
    shares = None
    if old.column.kind in ("text", "boolean"):
        shares = _category_shares(old, new)
    elif old.column.kind in ("number", "time"):
        shares = _bin_shares(old.column, new.column)
    if shares is None:
        return None, 0
    p = _smoothed(shares[0], old.sampled)
    q = _smoothed(shares[1], new.sampled)
    return float(((q - p) * np.log(q / p)).sum()), len(p)


def _smoothed(shares: Floats, rows: float) -> Floats:
    return (shares * rows + _HALF_A_ROW) / (rows + _HALF_A_ROW * len(shares))


def _bin_shares(old: ColumnStatistics, new: ColumnStatistics) -> tuple[Floats, Floats] | None:
    """Return the shares of both tables below, between and above the edges of the first."""
    a, b = cumulative(old), cumulative(new)
    if a is None or b is None:
        return None
    if old.top_complete and len(old.top) <= len(_DECILES) + 1:
        edges = a.points
    else:
        edges = np.unique(np.interp(_DECILES, a.right, a.points))
    return _shares_between(a, edges), _shares_between(b, edges)


def _shares_between(distribution: Cumulative, edges: Floats) -> Floats:
    return np.diff(np.concatenate(([0.0], distribution.up_to(edges), [1.0])))


def _category_shares(old: _Side, new: _Side) -> tuple[Floats, Floats] | None:
    before, after = _value_shares(old), _value_shares(new)
    if not before or not after:
        return None
    values = list(dict.fromkeys([*before, *after]))
    return _shares_of(values, before), _shares_of(values, after)


def _first_values(found: Sequence[TopValue]) -> tuple[Value, ...]:
    return tuple(each.value for each in found[:_MOST_VALUES])


def _value_shares(side: _Side) -> dict[Value, float]:
    shares = {}
    for each in side.column.top:
        shares[each.value] = each.count / side.sampled
    return shares


def _shares_of(values: Sequence[Value], shares: Mapping[Value, float]) -> Floats:
    """Return the share of each value, and last of all others.

    Those that are frequent in neither table.
    """
    known = np.array([shares.get(value, 0.0) for value in values])
    return np.append(known, max(1.0 - known.sum(), 0.0))


def _unseen(old: ColumnStatistics, new: ColumnStatistics) -> list[TopValue]:
    """Return the frequent values of the second that the first never had.

    None unless all values of the first are known.
    """
    if not old.top_complete or old.kind not in ("text", "boolean", "number"):
        return []
    known = {each.value for each in old.top}
    return [each for each in new.top if each.value not in known]


def _distance(old: ColumnStatistics, new: ColumnStatistics) -> float | None:
    if old.kind not in ("number", "time", "boolean"):
        return None
    a, b = cumulative(old), cumulative(new)
    if a is None or b is None:
        return None
    return distance(a, b)
