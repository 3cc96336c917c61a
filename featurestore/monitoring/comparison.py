"""One feature of a window against the same feature of a baseline, and of its windows among them.

The baseline is one profile (a training dataset, a version) or the mixture of the profiles of
several windows. The windows that it is made of, or that lie in its time, say how much windows of
this source differ when nothing changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from featurestore.model.monitor_report import Shares
from featurestore.model.statistics import Value
from featurestore.monitoring import distances
from featurestore.monitoring.distances import Floats
from featurestore.monitoring.profile import ColumnProfile

_GRID = np.linspace(0.0, 1.0, 101)
_DECILES = np.linspace(0.0, 1.0, 11)[1:-1]
_MOST_VALUES = 50


@dataclass(frozen=True)
class Sides:
    """The profiles of one feature.

    ``members`` make the baseline; ``others`` are windows of its time. Where the baseline is made of
    windows, ``groups`` says for each of the others among which it is compared (those of its
    weekday); without groups they are compared with the baseline.
    """

    members: Sequence[ColumnProfile]
    others: Sequence[ColumnProfile]
    now: ColumnProfile
    groups: Sequence[int] = ()

    @property
    def rows(self) -> float:
        """Values behind the baseline's distribution."""
        return float(sum(each.sampled for each in self.members))


@dataclass(frozen=True)
class Measured:
    """Distances of a window, and of the windows of the baseline by measure."""

    bins: int
    psi: float
    js: float
    ks: float | None
    usual: dict[str, Floats] = field(default_factory=dict)
    shares: Shares | None = None


def measure(sides: Sides) -> Measured | None:
    """Return how far a window is from its baseline; None where there is nothing to compare."""
    if not sides.now.comparable or sides.rows == 0:
        return None
    if sides.now.kind == "number":
        return _measure_numbers(sides)
    return _measure_values(sides)


def measure_mixture(sides: Sides, later: Sequence[ColumnProfile]) -> Measured | None:
    """Return how far several later windows together are from a baseline.

    None where there is nothing to compare. ``sides.now`` gives the kind of the feature alone.
    """
    if not sides.now.comparable or sides.rows == 0:
        return None
    if sides.now.kind == "number":
        return _measure_numbers(sides, later)
    return _measure_values(sides, later)


@dataclass(frozen=True)
class _Rows:
    """Shares in bins, and points of the distribution function, a row for each profile."""

    shares: Floats
    points: Floats
    rows: Floats
    index: Sequence[int] = ()


def _measure_numbers(sides: Sides, later: Sequence[ColumnProfile] | None = None) -> Measured | None:
    grid = _pooled_quantiles(sides.members)
    if grid is None:
        return None
    edges = np.unique(np.interp(_DECILES, _GRID, grid))
    points = np.unique(grid)
    members = _rows_of_numbers(sides.members, edges, points)
    others = _rows_of_numbers(sides.others, edges, points)
    now = _rows_of_numbers([sides.now] if later is None else later, edges, points)
    return _measured(sides, members, others, now, labels=_ranges(edges))


def _rows_of_numbers(profiles: Sequence[ColumnProfile], edges: Floats, points: Floats) -> _Rows:
    shares, found, rows, index = [], [], [], []
    both = np.concatenate((edges, points))
    for number, each in enumerate(profiles):
        if each.cumulative is None:
            continue
        index.append(number)
        up_to = each.up_to(both)
        steps = np.concatenate(([0.0], up_to[: len(edges)], [1.0]))
        shares.append(steps[1:] - steps[:-1])
        found.append(up_to[len(edges) :])
        rows.append(float(each.sampled))
    sizes = np.array(rows)
    return _Rows(_matrix(shares, len(edges) + 1), _matrix(found, len(points)), sizes, index)


def _measure_values(sides: Sides, later: Sequence[ColumnProfile] | None = None) -> Measured | None:
    known: dict[Value, int] = {}
    for each in sides.members:
        for value, count in each.values:
            known[value] = known.get(value, 0) + count
    frequent = sorted(known, key=lambda value: (-known[value], str(value)))[:_MOST_VALUES]
    members = _rows_of_values(sides.members, frequent)
    others = _rows_of_values(sides.others, frequent)
    now = _rows_of_values([sides.now] if later is None else later, frequent)
    return _measured(sides, members, others, now, labels=[*map(str, frequent), "others"])


def _rows_of_values(profiles: Sequence[ColumnProfile], frequent: Sequence[Value]) -> _Rows:
    shares, rows, index = [], [], []
    for number, each in enumerate(profiles):
        if not each.sampled:
            continue
        index.append(number)
        counts = dict(each.values)
        known = np.array([counts.get(value, 0) / each.sampled for value in frequent])
        shares.append(np.append(known, max(1.0 - known.sum(), 0.0)))
        rows.append(float(each.sampled))
    none = np.empty((len(rows), 0))
    return _Rows(_matrix(shares, len(frequent) + 1), none, np.array(rows), index)


def _measured(
    sides: Sides, members: _Rows, others: _Rows, now: _Rows, *, labels: Sequence[str]
) -> Measured | None:
    if not len(members.rows) or not len(now.rows):
        return None
    before, total = _mixture(members)
    after, rows_now = _mixture(now)
    ks = None
    if members.points.shape[1]:
        ks = float(distances.kolmogorov_smirnov(before.points, after.points))
    sizes = (total, rows_now)
    return Measured(
        bins=members.shares.shape[1],
        psi=float(distances.population_stability(before.shares, after.shares, sizes)),
        js=float(distances.jensen_shannon(before.shares, after.shares)),
        ks=ks,
        usual=_usual(before, others, total, sides.groups),
        shares=Shares(
            sides.now.name,
            tuple(labels),
            tuple(np.round(before.shares, 5).tolist()),
            tuple(np.round(after.shares, 5).tolist()),
        ),
    )


def _mixture(windows: _Rows) -> tuple[_Rows, float]:
    """Return the distribution of several windows together, and the number of their rows."""
    total = float(windows.rows.sum())
    shares = windows.rows @ windows.shares / total
    return _Rows(shares, windows.rows @ windows.points / total, windows.rows), total


def _usual(before: _Rows, others: _Rows, total: float, groups: Sequence[int]) -> dict[str, Floats]:
    """Return how far windows of the baseline's time are from it, or each from its own kind."""
    rest = np.full(len(others.rows), total)
    shares, points = before.shares, before.points
    if groups:
        kinds = np.array(groups)[list(others.index)]
        same = (kinds[:, np.newaxis] == kinds) & ~np.eye(len(kinds), dtype=bool)
        alone = (same @ others.rows) > 0
        others = _Rows(others.shares[alone], others.points[alone], others.rows[alone])
        weights = same[np.ix_(alone, alone)] * others.rows
        rest = weights.sum(axis=1)
        shares = weights @ others.shares / rest[:, np.newaxis]
        points = weights @ others.points / rest[:, np.newaxis]
    sizes = (rest, others.rows)
    return {
        "psi": distances.population_stability(shares, others.shares, sizes),
        "js": distances.jensen_shannon(shares, others.shares),
        "ks": distances.kolmogorov_smirnov(points, others.points),
    }


def _pooled_quantiles(members: Sequence[ColumnProfile]) -> Floats | None:
    """Return the quantiles of a mixture of distributions at a hundred and one probabilities."""
    points, weights = [], []
    for each in members:
        cumulative = each.cumulative
        if cumulative is None:
            continue
        points.append(cumulative.points)
        middles = (cumulative.left + cumulative.right) / 2
        bounds = np.concatenate(([0.0], (middles[1:] + middles[:-1]) / 2, [1.0]))
        weights.append(np.diff(bounds) * each.sampled)
    if not points:
        return None
    values, rows = np.concatenate(points), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    values, rows = values[order], rows[order]
    reached = np.cumsum(rows) - rows / 2
    index = np.searchsorted(reached, _GRID * rows.sum())
    return np.asarray(values[np.minimum(index, len(values) - 1)])


def _matrix(rows: Sequence[Floats], width: int) -> Floats:
    if not rows:
        return np.empty((0, width))
    return np.vstack(rows)


def _ranges(edges: Floats) -> list[str]:
    if not len(edges):
        return ["all"]
    labels = [f"up to {edges[0]:.4g}"]
    for low, high in pairwise(edges.tolist()):
        labels.append(f"{low:.4g} to {high:.4g}")
    return [*labels, f"above {edges[-1]:.4g}"]
