"""Drift from two statistics: population stability, Kolmogorov-Smirnov, missing values, new categories.

The population stability index compares shares p and q of the same bins: sum of (q - p) * ln(q / p). Numbers are
binned by the deciles of the first table, categories by value. Both measures are also above zero when nothing
changed; what two samples of these sizes differ by chance is no drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from featurestore.errors import InvalidArgument
from featurestore.model.drift import DriftReport, DriftThresholds, FeatureDrift
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.statistics.cumulative import cumulative, distance
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


def compare_statistics(
    before: Statistics | HasStatistics,
    after: Statistics | HasStatistics,
    *,
    thresholds: DriftThresholds | None = None,
) -> DriftReport:
    """Return what changed of each feature; keys and times of a group are left out.

    Args:
        before: The table to compare with (the training data, an earlier Delta version): its statistics, or the
            feature group.
        after: The table that may have drifted.
        thresholds: What counts as drift.
    """
    before, after = _statistics(before, "before"), _statistics(after, "after")
    limits = thresholds or DriftThresholds()
    old = {each.name: each for each in before.columns if each.role == "feature"}
    new = {each.name: each for each in after.columns if each.role == "feature"}
    shared = [name for name in old if name in new]
    same = [name for name in shared if old[name].kind == new[name].kind]
    features = [
        _feature(_Side(old[name], before), _Side(new[name], after), limits) for name in same
    ]
    return DriftReport(
        before=before.source,
        after=after.source,
        rows_before=before.rows,
        rows_after=after.rows,
        features=tuple(
            sorted(features, key=lambda each: (not each.drifted, -(each.psi or 0.0), each.name))
        ),
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        retyped=tuple(name for name in shared if name not in same),
        thresholds=limits,
    )


def _statistics(given: Statistics | HasStatistics, argument: str) -> Statistics:
    if isinstance(given, Statistics):
        return given
    if isinstance(given, HasStatistics):
        return given.statistics()
    raise InvalidArgument(
        f"{argument}={given!r} has no statistics.",
        hint="give statistics: get_featuregroup_statistics('weather', delta_version=3), or dataset.statistics('train')",
    )


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
        """How many values the sample has, nearly."""
        sampled = self.table.sample_rows / max(self.table.rows, 1)
        return max(self.column.count * sampled, 1.0)


def _feature(old: _Side, new: _Side, limits: DriftThresholds) -> FeatureDrift:
    psi, bins = _stability(old, new)
    unseen, gone = _unseen(old.column, new.column), _unseen(new.column, old.column)
    found = FeatureDrift(
        name=old.column.name,
        kind=old.column.kind,
        psi=psi,
        ks=_distance(old.column, new.column),
        missing_before=old.missing,
        missing_after=new.missing,
        new_values=tuple(value for value, _ in unseen[:_MOST_VALUES]),
        new_share=sum(count for _, count in unseen) / new.sampled,
        gone_values=tuple(value for value, _ in gone[:_MOST_VALUES]),
    )
    return replace(found, reasons=_reasons(found, old.column, new.column, bins, limits))


def _reasons(
    found: FeatureDrift,
    old: ColumnStatistics,
    new: ColumnStatistics,
    bins: int,
    limits: DriftThresholds,
) -> tuple[str, ...]:
    """Return what passed its threshold and is more than chance."""
    reasons = []
    spread = 1 / max(old.count, 1) + 1 / max(new.count, 1)
    # Without drift PSI is about chi-squared with bins-1 degrees, times spread. One in a thousand lies above these.
    chance = spread * ((bins - 1) + 3.1 * math.sqrt(2 * max(bins - 1, 1)) + 4)
    if found.psi is not None and found.psi > max(limits.psi, chance):
        reasons.append(f"PSI {found.psi:.3g} > {limits.psi:g}")
    if found.ks is not None and found.ks > max(limits.ks, 1.95 * math.sqrt(spread)):
        reasons.append(f"KS {found.ks:.3g} > {limits.ks:g}")
    change = found.missing_after - found.missing_before
    if abs(change) > limits.missing:
        reasons.append(f"missing {found.missing_before:.1%} -> {found.missing_after:.1%}")
    if found.kind in ("text", "boolean") and found.new_share > limits.new:
        reasons.append(f"new values in {found.new_share:.1%} of rows")
    return tuple(reasons)


def _stability(old: _Side, new: _Side) -> tuple[float | None, int]:
    """Return the population stability index and its number of bins."""
    kind = old.column.kind
    if old.column.count == 0 or new.column.count == 0:
        return None, 0
    if kind in ("text", "boolean"):
        shares = _category_shares(old, new)
    elif kind in ("number", "time"):
        shares = _bin_shares(old.column, new.column)
    else:
        return None, 0
    if shares is None:
        return None, 0
    p, q = (_smoothed(each, side.sampled) for each, side in zip(shares, (old, new), strict=True))
    return float(((q - p) * np.log(q / p)).sum()), len(p)


def _smoothed(shares: Floats, rows: float) -> Floats:
    return (shares * rows + _HALF_A_ROW) / (rows + _HALF_A_ROW * len(shares))


def _bin_shares(old: ColumnStatistics, new: ColumnStatistics) -> tuple[Floats, Floats] | None:
    a, b = cumulative(old), cumulative(new)
    if a is None or b is None:
        return None
    if old.top_complete and len(old.top) <= len(_DECILES) + 1:
        edges = a.points
    else:
        edges = np.unique(np.interp(_DECILES, a.right, a.points))
    # Values of the second table below, between and above the edges.
    return (
        np.diff(np.concatenate(([0.0], a.up_to(edges), [1.0]))),
        np.diff(np.concatenate(([0.0], b.up_to(edges), [1.0]))),
    )


def _category_shares(old: _Side, new: _Side) -> tuple[Floats, Floats] | None:
    p, q = _value_shares(old), _value_shares(new)
    if not p or not q:
        return None
    names: Sequence[object] = list(dict.fromkeys([*p, *q]))
    shares = [np.array([each.get(name, 0.0) for name in names]) for each in (p, q)]
    # What is no frequent value of either table shares one bin.
    rest = [np.array([max(1.0 - each.sum(), 0.0)]) for each in shares]
    return np.concatenate((shares[0], rest[0])), np.concatenate((shares[1], rest[1]))


def _value_shares(side: _Side) -> dict[object, float]:
    return {each.value: each.count / side.sampled for each in side.column.top}


def _unseen(old: ColumnStatistics, new: ColumnStatistics) -> list[tuple[object, int]]:
    """Return frequent values of the second that the first never had; known only when the first kept all of its own."""
    if not old.top_complete or old.kind not in ("text", "boolean", "number"):
        return []
    known = {each.value for each in old.top}
    return [(each.value, each.count) for each in new.top if each.value not in known]


def _distance(old: ColumnStatistics, new: ColumnStatistics) -> float | None:
    if old.kind not in ("number", "time", "boolean"):
        return None
    a, b = cumulative(old), cumulative(new)
    return None if a is None or b is None else distance(a, b)
