"""Mergeable means, variances and pairwise co-moments (Chan, Golub and LeVeque 1979).

Each pair (i, j) uses the rows where both values are finite (pairwise complete). Entry [i, j] of
``mean`` and ``square`` is that of column i over the rows of the pair, so neither matrix is
symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.exactsum import Floats, Twofold, add_twofold
from featurestore.statistics.values import Values


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of one column."""

    n: int = 0
    mean: Twofold = (0.0, 0.0)
    square: Twofold = (0.0, 0.0)

    @property
    def variance(self) -> float | None:
        """The sample variance (n - 1); None for fewer than two values."""
        if self.n < 2:
            return None
        return max(self.square[0], 0.0) / (self.n - 1)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both."""
        if not other.n:
            return self
        if not self.n:
            return other
        n = self.n + other.n
        delta = (other.mean[0] - self.mean[0]) + (other.mean[1] - self.mean[1])
        between = delta * delta * (self.n * other.n / n)
        step = delta * (other.n / n)
        return Moments(
            n,
            add_twofold(self.mean, (step, 0.0)),
            add_twofold(add_twofold(self.square, other.square), (between, 0.0)),
        )


@dataclass
class CoMoments:
    """Pairwise counts, means, squared deviations and products of deviations, all (p, p)."""

    n: NDArray[np.int64]
    mean: tuple[Floats, Floats]
    square: tuple[Floats, Floats]
    product: tuple[Floats, Floats]

    @classmethod
    def empty(cls, columns: int) -> CoMoments:
        """Return the co-moments of no rows."""
        shape = (columns, columns)
        pairs = [(np.zeros(shape), np.zeros(shape)) for _ in range(3)]
        return cls(np.zeros(shape, dtype=np.int64), *pairs)

    def merge(self, other: CoMoments) -> CoMoments:
        """Return the co-moments of both."""
        if not other.n.any():
            return self
        if not self.n.any():
            return other
        n = self.n + other.n
        share = other.n / np.maximum(n, 1)
        delta = (other.mean[0] - self.mean[0]) + (other.mean[1] - self.mean[1])
        # A side without rows has no mean, so the difference of means is 0.
        delta = np.where((self.n > 0) & (other.n > 0), delta, 0.0)
        weight = self.n * share
        zero = np.zeros_like(delta)
        mean = add_twofold(self.mean, (delta * share, zero))
        first = self.n == 0
        return CoMoments(
            n,
            (np.where(first, other.mean[0], mean[0]), np.where(first, other.mean[1], mean[1])),
            add_twofold(add_twofold(self.square, other.square), (delta * delta * weight, zero)),
            add_twofold(add_twofold(self.product, other.product), (delta * delta.T * weight, zero)),
        )

    def column_moments(self, index: int) -> Moments:
        """Return the moments of one column over the rows where it has a value."""
        n = int(self.n[index, index])
        if not n:
            return Moments()
        mean = (float(self.mean[0][index, index]), float(self.mean[1][index, index]))
        square = (float(self.square[0][index, index]), float(self.square[1][index, index]))
        return Moments(n, mean, square)

    def correlations(self) -> Floats:
        """Return Pearson's r, NaN where a column is constant over the rows of a pair."""
        square = np.maximum(self.square[0], 0.0)
        # The rounding error of a constant is far below the deviations of the complete column.
        square = np.where(square <= 1e-14 * np.diag(square)[:, None], np.nan, square)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Two roots: the product of the squares may overflow float64.
            result = self.product[0] / (np.sqrt(square) * np.sqrt(square.T))
        result = np.where(self.n >= 2, np.clip(result, -1.0, 1.0), np.nan)
        has_variance = ~np.isnan(np.diag(result))
        result[has_variance, has_variance] = 1.0
        return np.asarray(result, dtype=np.float64)


def batch_moments(values: Values) -> Moments:
    """Return the moments of a batch, computed around its pivot to keep precision."""
    n = values.count
    if not n:
        return Moments()
    deviations = values.deviations()
    # Not the dot product of BLAS: waking its threads costs more than the product.
    squares = float(np.einsum("i,i->", deviations, deviations))
    return _moments_from_sums(values.pivot, n, float(deviations.sum()), squares)


def weighted_moments(values: Values, weights: NDArray[np.int64]) -> Moments:
    """Return the moments of weighted rows; they depend on the order of the rows only."""
    if values.present is not None:
        weights = np.where(values.present, weights, 0)
    n = int(weights.sum())
    if not n:
        return Moments()
    deviations = values.deviations()
    weighted = deviations * weights
    return _moments_from_sums(
        values.pivot, n, float(weighted.sum()), float((weighted * deviations).sum())
    )


def _moments_from_sums(pivot: float | int, n: int, total: float, squares: float) -> Moments:
    """Return moments from the sums of deviations from a pivot and of their squares."""
    mean = add_twofold(as_twofold(pivot), (total / n, 0.0))
    return Moments(n, mean, (max(squares - total * total / n, 0.0), 0.0))


def as_twofold(pivot: float | int) -> Twofold:
    """Return a pivot as a twofold: float64 cannot represent all 64-bit integers."""
    high = float(pivot)
    if not isinstance(pivot, int):
        return high, 0.0
    return high, float(pivot - int(high))
