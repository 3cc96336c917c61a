"""Cumulative distribution functions from quantiles or from complete value counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featurestore.model.statistics import ColumnStatistics, TopValue
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.times import parse_seconds


@dataclass(frozen=True)
class Cumulative:
    """A cumulative distribution function.

    ``left`` is the share of values below each of the ``points``, ``right`` the share up to it.
    Between two points a stepwise function is constant (all values are points), others are linear.
    """

    points: Floats
    left: Floats
    right: Floats
    stepwise: bool

    def up_to(self, x: Floats) -> Floats:
        """Return the share of values <= x."""
        return self._share_at(x, np.searchsorted(self.points, x, side="right") - 1)

    def below(self, x: Floats) -> Floats:
        """Return the share of values < x."""
        return self._share_at(x, np.searchsorted(self.points, x, side="left") - 1)

    def _share_at(self, x: Floats, index: NDArray[np.intp]) -> Floats:
        """Return the share at x; ``index`` is the last point before it, -1 before the first."""
        last = len(self.points) - 1
        position = np.clip(index, 0, last)
        share = np.where(index < 0, 0.0, self.right[position])
        if self.stepwise:
            return np.asarray(share)
        following = np.clip(index + 1, 0, last)
        width = self.points[following] - self.points[position]
        rises = (index >= 0) & (following > position) & (width > 0)
        fraction = (x - self.points[position]) / np.where(width > 0, width, 1.0)
        rise = fraction * (self.left[following] - self.right[position])
        return np.asarray(share + np.where(rises, rise, 0.0))


def cumulative(column: ColumnStatistics) -> Cumulative | None:
    """Return the distribution function of a measured column; None if it has no values."""
    if column.top_complete and column.top:
        return _from_counts(column.top)
    if column.quantiles:
        return _from_quantiles(column.quantiles)
    return None


def _from_counts(top: Sequence[TopValue]) -> Cumulative:
    values = np.array([as_number(each.value) for each in top])
    counts = np.array([each.count for each in top], dtype=np.float64)
    order = np.argsort(values)
    shares = np.cumsum(counts[order])
    shares /= shares[-1]
    left_shares = np.concatenate(([0.0], shares[:-1]))
    return Cumulative(values[order], left_shares, shares, stepwise=True)


def _from_quantiles(quantiles: Sequence[float | str]) -> Cumulative:
    values = np.array([as_number(each) for each in quantiles])
    grid = np.linspace(0.0, 1.0, len(values))
    points, first = np.unique(values, return_index=True)
    last = np.append(first[1:], len(values)) - 1
    return Cumulative(points, grid[first], grid[last], stepwise=False)


def kolmogorov_smirnov(a: Cumulative, b: Cumulative) -> float:
    """Return the Kolmogorov-Smirnov distance, the largest gap between two functions."""
    points = np.union1d(a.points, b.points)
    up_to = np.abs(a.up_to(points) - b.up_to(points)).max()
    below = np.abs(a.below(points) - b.below(points)).max()
    return float(max(up_to, below))


def as_number(value: bool | float | str) -> float:
    """Return a value of statistics as a number; times as seconds since 1970."""
    if isinstance(value, str):
        return parse_seconds(value)
    return float(value)
