"""Means, variances and pairwise co-moments that merge (Chan, Golub and LeVeque 1979).

Every pair (i, j) is over the rows where both values are finite (pairwise complete). Entry [i, j] of
``mean`` and ``square`` belongs to column i over the rows of that pair, so neither matrix is
symmetric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.exactsum import Floats, Twofold, add_twofold
from featurestore.statistics.values import Values

# Differences of integers up to here are exact in int64.
_WIDEST_EXACT = 1 << 62


@dataclass
class Moments:
    """Number, mean and sum of squared deviations of one column."""

    n: int = 0
    mean: Twofold = (0.0, 0.0)
    square: Twofold = (0.0, 0.0)

    @property
    def variance(self) -> float | None:
        """The variance with n-1; None below two values."""
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
    """Pairwise numbers of rows, means, squared deviations and products of deviations.

    Arrays are (p, p).
    """

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
        # A side without rows has no mean: nothing lies between it and the other side.
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

    def correlations(self) -> Floats:
        """Return Pearson's r, NaN where a column is constant over the rows of a pair."""
        square = np.maximum(self.square[0], 0.0)
        # What rounding leaves of a constant is far below the deviations of the whole column.
        square = np.where(square <= 1e-14 * np.diag(square)[:, None], np.nan, square)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Two roots: the product of two squares may leave the range of float64.
            result = self.product[0] / (np.sqrt(square) * np.sqrt(square.T))
        result = np.where(self.n >= 2, np.clip(result, -1.0, 1.0), np.nan)
        known = ~np.isnan(np.diag(result))
        result[known, known] = 1.0
        return np.asarray(result, dtype=np.float64)


@dataclass(frozen=True)
class Deviations:
    """The finite values of one column in one batch minus a pivot near their mean.

    ``total`` is their sum.
    """

    pivot: float | int
    values: Floats
    total: float

    @property
    def pivot_twofold(self) -> Twofold:
        """The pivot as a twofold: 64-bit integers do not fit one float64."""
        high = float(self.pivot)
        if not isinstance(self.pivot, int):
            return high, 0.0
        return high, float(self.pivot - int(high))

    @property
    def mean(self) -> Twofold:
        """The mean as a twofold."""
        n = len(self.values)
        if not n:
            return 0.0, 0.0
        return add_twofold(self.pivot_twofold, (self.total / n, 0.0))

    @property
    def moments(self) -> Moments:
        """The moments of the batch."""
        n = len(self.values)
        if not n:
            return Moments()
        # Not the product of BLAS: it wakes its threads for a vector, which costs more.
        squares = float(np.einsum("i,i->", self.values, self.values))
        return Moments(n, self.mean, (max(squares - self.total * self.total / n, 0.0), 0.0))


def deviations_of(values: Values) -> Deviations:
    """Return the deviations of a batch from a pivot; all exactly 0 when the values are equal."""
    finite = values.finite
    if not len(finite):
        return Deviations(0.0, np.empty(0), 0.0)
    low, high = finite.min(), finite.max()
    average = float(finite.mean(dtype=np.float64))
    pivot: float | int = average
    if finite.dtype.kind == "f":
        if low == high:
            pivot = float(low)
    elif int(high) - int(low) <= _WIDEST_EXACT:
        pivot = min(max(round(average), int(low)), int(high))
    deviations = values.minus(pivot)
    return Deviations(pivot, deviations, float(deviations.sum()))


def weighted_moments(around: Deviations, weights: NDArray[np.int64]) -> Moments:
    """Return the moments of values that count several times; they depend on their order alone."""
    n = int(weights.sum())
    if not n:
        return Moments()
    weighted = around.values * weights
    total = float(weighted.sum())
    squares = float((weighted * around.values).sum())
    mean = add_twofold(around.pivot_twofold, (total / n, 0.0))
    return Moments(n, mean, (max(squares - total * total / n, 0.0), 0.0))


def co_moments(rows: int, values: Sequence[Values], around: Sequence[Deviations]) -> CoMoments:
    """Return the co-moments of one batch of so many rows: its columns and their deviations."""
    deviations = np.zeros((len(values), rows))
    masks = {}
    for index, (column, known) in enumerate(zip(values, around, strict=True)):
        if column.present is None:
            deviations[index] = known.values
        else:
            deviations[index, column.present] = known.values
            masks[index] = column.present.astype(np.float64)
    pivots = np.array([each.pivot_twofold for each in around]).reshape(len(around), 2)
    return _pairwise(deviations, masks, pivots)


def weighted_co_moments(values: Floats, weights: NDArray[np.int64]) -> CoMoments:
    """Return the co-moments of rows that count several times.

    ``values`` is (p, n), NaN where missing.
    """
    present = ~np.isnan(values)
    pivots = np.zeros((len(values), 2))
    masks = {}
    for index, (column, known) in enumerate(zip(values, present, strict=True)):
        if known.any():
            pivots[index, 0] = column[known].mean()
        if not known.all():
            masks[index] = known.astype(np.float64)
    deviations = values - pivots[:, :1]
    if masks:
        deviations = np.where(present, deviations, 0.0)
    if (weights == 1).all():
        return _pairwise(deviations, masks, pivots)
    return _pairwise(deviations, masks, pivots, weights=weights.astype(np.float64))


def _pairwise(
    deviations: Floats, masks: dict[int, Floats], pivots: Floats, *, weights: Floats | None = None
) -> CoMoments:
    """Return co-moments from deviations (p, n), 0 where missing.

    ``masks`` are the columns with missing values: only their pairs need sums of their own.
    ``pivots`` (p, 2) are twofolds; ``weights`` count rows several times.
    """
    columns, rows = deviations.shape
    weighted = deviations
    total = float(rows)
    if weights is not None:
        weighted = deviations * weights
        total = float(weights.sum())
    products = weighted @ deviations.T
    n = np.full((columns, columns), total)
    sums = np.repeat(weighted.sum(axis=1)[:, None], columns, axis=1)
    squares = np.repeat(np.diag(products)[:, None], columns, axis=1)
    if masks:
        holed = list(masks)
        mask = np.stack(list(masks.values()))
        weighted_mask = mask
        if weights is not None:
            weighted_mask = mask * weights
        n[holed, :] = weighted_mask.sum(axis=1)[:, None]
        n[:, holed] = weighted_mask.sum(axis=1)[None, :]
        n[np.ix_(holed, holed)] = weighted_mask @ mask.T
        sums[:, holed] = weighted @ mask.T
        squares[:, holed] = (deviations * weighted) @ mask.T
    divisor = np.maximum(n, 1.0)
    zero = np.zeros_like(n)
    known = n > 0
    return CoMoments(
        np.rint(n).astype(np.int64),
        add_twofold((pivots[:, :1] * known, pivots[:, 1:] * known), (sums / divisor, zero)),
        (np.maximum(squares - sums * sums / divisor, 0.0), zero),
        (products - sums * sums.T / divisor, zero.copy()),
    )
