"""Mergeable metrics: the components of a mean, sum, minimum or maximum.

Window profiles store these components, so that the metric of several windows can be computed from
them, and its sampling error is known: a mean of few rows varies more than one of many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from featurestore.monitoring import bounds
from featurestore.usersql import Merge

# Assumed skewness of the values of a mean of few rows: that of an exponential distribution.
_SKEWNESS = 2.0


@dataclass(frozen=True)
class Estimate:
    """The mergeable components of a metric.

    A mean has its ``rows``, their ``total`` and the total of their ``squares``; the other kinds
    have only ``total``.

    >>> both = merge_estimates([Estimate("mean", 2, 1, 1), Estimate("mean", 2, 2, 2)])
    >>> both, both.value
    (Estimate(merge='mean', rows=4, total=3, squares=3), 0.75)
    """

    merge: Merge
    rows: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @property
    def value(self) -> float:
        """The metric; the mean of no rows is 0."""
        if self.merge == "mean":
            return self.total / max(self.rows, 1e-300)
        return self.total

    @property
    def variance(self) -> float:
        """The variance of a mean's rows."""
        return max(self.squares / max(self.rows, 1e-300) - self.value**2, 0.0)

    @property
    def is_share(self) -> bool:
        """Whether it is the mean of zeros and ones."""
        return self.squares == self.total and 0 <= self.total <= self.rows

    def to_json(self) -> list[Any]:
        """Return a JSON value that ``from_json`` reads back equal."""
        return [self.merge, self.rows, self.total, self.squares]

    @classmethod
    def from_json(cls, data: Any) -> Estimate:
        """Return the estimate of ``to_json``; ValueError or TypeError for invalid data."""
        merge, rows, total, squares = data
        if merge not in ("mean", "sum", "min", "max"):
            raise ValueError(f"{merge!r} is not a kind of merge")
        return cls(merge, float(rows), float(total), float(squares))


def merge_estimates(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the estimate over the rows of all; None without estimates or for mixed kinds."""
    if not estimates or len({each.merge for each in estimates}) > 1:
        return None
    first, *remaining = estimates
    rows, total, squares = first.rows, first.total, first.squares
    for each in remaining:
        if first.merge == "min":
            total = min(total, each.total)
        elif first.merge == "max":
            total = max(total, each.total)
        else:
            rows, total, squares = rows + each.rows, total + each.total, squares + each.squares
    return Estimate(first.merge, rows, total, squares)


def chance_mean(before: Estimate, rows: float, alpha: float) -> tuple[float, float]:
    """Return the range of the mean of ``rows`` rows, if nothing changed since ``before``.

    The variance is that of ``before``. A share of rows has the exact bounds of its count; other
    means have the normal limit, corrected for the skewness of few rows (the first term of Cornish
    and Fisher, 1938).
    """
    if before.is_share and rows == round(rows):
        fewest, most = bounds.chance_count(before.total, before.rows, rows, alpha)
        return fewest / max(rows, 1.0), most / max(rows, 1.0)
    normal = bounds.quantile(alpha / 2)
    few = max(rows, 1e-300)
    deviation = math.sqrt(before.variance)
    width = normal * deviation * math.sqrt(1 / few + 1 / max(before.rows, 1e-300))
    width += deviation * _SKEWNESS * (normal**2 - 1) / (6 * few)
    return before.value - width, before.value + width
