"""Distribution functions from kept quantiles or from complete counts of values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from featurestore.model.statistics import ColumnStatistics
from featurestore.statistics.exactsum import Floats


@dataclass(frozen=True)
class Cumulative:
    """A distribution function: share of values below (``left``) and up to (``right``) each of the ``points``.

    Between two points a stepwise one is flat (all values are known), the others rise linearly.
    """

    points: Floats
    left: Floats
    right: Floats
    stepwise: bool

    def up_to(self, x: Floats) -> Floats:
        """Return the share of values <= x."""
        at = np.searchsorted(self.points, x, side="right") - 1
        return self._between(x, at, self.right)

    def below(self, x: Floats) -> Floats:
        """Return the share of values < x."""
        at = np.searchsorted(self.points, x, side="left") - 1
        return self._between(x, at, self.right)

    def _between(self, x: Floats, at: NDArray[np.intp], shares: Floats) -> Floats:
        inside = np.clip(at, 0, len(self.points) - 1)
        result = np.where(at < 0, 0.0, shares[inside])
        if self.stepwise:
            return np.asarray(result)
        following = np.clip(at + 1, 0, len(self.points) - 1)
        width = self.points[following] - self.points[inside]
        rising = (at >= 0) & (following > inside) & (width > 0)
        share = np.where(rising, (x - self.points[inside]) / np.where(width > 0, width, 1.0), 0.0)
        return np.asarray(
            result + np.where(rising, share * (self.left[following] - self.right[inside]), 0.0)
        )


def cumulative(column: ColumnStatistics) -> Cumulative | None:
    """Return the distribution function of a measured column; None without values."""
    if column.top_complete and column.top:
        values = np.array([as_number(each.value) for each in column.top])
        order = np.argsort(values)
        shares = np.cumsum(np.array([each.count for each in column.top], dtype=np.float64)[order])
        shares /= shares[-1]
        return Cumulative(
            values[order], np.concatenate(([0.0], shares[:-1])), shares, stepwise=True
        )
    if not column.quantiles:
        return None
    values = np.array([as_number(each) for each in column.quantiles])
    grid = np.linspace(0.0, 1.0, len(values))
    points, first = np.unique(values, return_index=True)
    last = np.append(first[1:], len(values)) - 1
    return Cumulative(points, grid[first], grid[last], stepwise=False)


def distance(a: Cumulative, b: Cumulative) -> float:
    """Return the Kolmogorov-Smirnov distance: the largest gap between two distribution functions."""
    points = np.union1d(a.points, b.points)
    return float(
        max(
            np.abs(a.up_to(points) - b.up_to(points)).max(),
            np.abs(a.below(points) - b.below(points)).max(),
        )
    )


def as_number(value: object) -> float:
    """Return a kept value as a number; moments as seconds since 1970."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return float(value)  # type: ignore[arg-type]
