"""Distribution functions from quantiles or from complete counts of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featurestore.model.statistics import ColumnStatistics, TopValue
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.times import seconds_of


@dataclass(frozen=True)
class Cumulative:
    """A distribution function.

    Share of values below (``left``) and up to (``right``) each of the ``points``.

    Between two points a stepwise one is flat (all values are known), the others rise linearly.
    """

    points: Floats
    left: Floats
    right: Floats
    stepwise: bool

    def up_to(self, x: Floats) -> Floats:
        """Return the share of values <= x."""
        return self._share(x, np.searchsorted(self.points, x, side="right") - 1)

    def below(self, x: Floats) -> Floats:
        """Return the share of values < x."""
        return self._share(x, np.searchsorted(self.points, x, side="left") - 1)

    def _share(self, x: Floats, index: NDArray[np.intp]) -> Floats:
        """Return the share at x.

        ``index`` is that of the last point before it, -1 before all of them.
        """
        last = len(self.points) - 1
        here = np.clip(index, 0, last)
        share = np.where(index < 0, 0.0, self.right[here])
        if self.stepwise:
            return np.asarray(share)
        following = np.clip(index + 1, 0, last)
        width = self.points[following] - self.points[here]
        rises = (index >= 0) & (following > here) & (width > 0)
        passed = (x - self.points[here]) / np.where(width > 0, width, 1.0)
        rise = passed * (self.left[following] - self.right[here])
        return np.asarray(share + np.where(rises, rise, 0.0))


def cumulative(column: ColumnStatistics) -> Cumulative | None:
    """Return the distribution function of a measured column; None without values."""
    if column.top_complete and column.top:
        return _of_counts(column.top)
    if column.quantiles:
        return _of_quantiles(column.quantiles)
    return None


def _of_counts(top: Sequence[TopValue]) -> Cumulative:
    values = np.array([as_number(each.value) for each in top])
    counts = np.array([each.count for each in top], dtype=np.float64)
    order = np.argsort(values)
    shares = np.cumsum(counts[order])
    shares /= shares[-1]
    before = np.concatenate(([0.0], shares[:-1]))
    return Cumulative(values[order], before, shares, stepwise=True)


def _of_quantiles(quantiles: Sequence[float | str]) -> Cumulative:
    values = np.array([as_number(each) for each in quantiles])
    grid = np.linspace(0.0, 1.0, len(values))
    points, first = np.unique(values, return_index=True)
    last = np.append(first[1:], len(values)) - 1
    return Cumulative(points, grid[first], grid[last], stepwise=False)


def distance(a: Cumulative, b: Cumulative) -> float:
    """Return the Kolmogorov-Smirnov distance.

    The largest gap between two distribution functions.
    """
    points = np.union1d(a.points, b.points)
    up_to = np.abs(a.up_to(points) - b.up_to(points)).max()
    below = np.abs(a.below(points) - b.below(points)).max()
    return float(max(up_to, below))


def as_number(value: bool | float | str) -> float:
    """Return a value of results as a number; times as seconds since 1970."""
    if isinstance(value, str):
        return seconds_of(value)
    return float(value)
