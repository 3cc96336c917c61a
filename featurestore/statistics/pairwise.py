"""Co-moments of the columns of one batch, in blocks of rows that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.exactsum import Floats, add_twofold
from featurestore.statistics.moments import CoMoments, as_twofold
from featurestore.statistics.values import Values

_CACHED_VALUES = 1 << 17
_FEWEST_ROWS = 256
# BLAS wakes its threads for products of more multiplications, and they spin afterwards.
_ALONE = 1 << 18


def co_moments(rows: int, values: Sequence[Values], pivots: Sequence[float | int]) -> CoMoments:
    """Return the co-moments of one batch of so many rows: its columns, and a pivot for each."""
    step = max(_FEWEST_ROWS, _CACHED_VALUES // max(len(values), 1))
    holed = []
    for index, column in enumerate(values):
        if column.present is not None:
            holed.append(index)
    sums = _Sums(len(values), holed)
    deviations = np.empty((len(values), step))
    known = np.empty((len(holed), step))
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        width = block.stop - start
        for row, column, pivot in zip(deviations, values, pivots, strict=True):
            column.write_minus(pivot, block, row[:width])
        for row, index in zip(known, holed, strict=True):
            row[:width] = values[index].present[block]  # type: ignore[index]
            deviations[index, :width] *= row[:width]
        sums.add(deviations[:, :width], known[:, :width])
    return sums.co_moments(np.array(list(map(as_twofold, pivots))).reshape(len(values), 2))


def weighted_co_moments(values: Floats, weights: NDArray[np.int64]) -> CoMoments:
    """Return the co-moments of rows that count several times.

    ``values`` is (p, n), NaN where missing.
    """
    present = ~np.isnan(values)
    pivots = np.zeros((len(values), 2))
    holed = []
    for index, (column, known) in enumerate(zip(values, present, strict=True)):
        if known.any():
            pivots[index, 0] = column[known].mean()
        if not known.all():
            holed.append(index)
    deviations = values - pivots[:, :1]
    if holed:
        deviations = np.where(present, deviations, 0.0)
    sums = _Sums(len(values), holed)
    counted = None
    if not (weights == 1).all():
        counted = weights.astype(np.float64)
    sums.add(deviations, present[holed].astype(np.float64), weights=counted)
    return sums.co_moments(pivots)


class _Sums:
    """Sums of deviations from pivots, of their squares and of their products, over blocks of rows.

    ``holed`` are the columns with missing values: only their pairs need sums of their own.
    """

    def __init__(self, columns: int, holed: Sequence[int]) -> None:
        self._holed = list(holed)
        self._total = 0.0
        self._sums = np.zeros(columns)
        self._products = np.zeros((columns, columns))
        self._known = np.zeros((len(holed), len(holed)))
        self._known_alone = np.zeros(len(holed))
        self._sums_of_known = np.zeros((columns, len(holed)))
        self._squares_of_known = np.zeros((columns, len(holed)))

    def add(self, deviations: Floats, known: Floats, *, weights: Floats | None = None) -> None:
        """Take in rows: deviations (p, n), 0 where missing, and 1 where holed columns are known.

        ``weights`` count rows several times.
        """
        weighted, weighted_known = deviations, known
        rows = float(deviations.shape[1])
        if weights is not None:
            weighted, weighted_known = deviations * weights, known * weights
            rows = float(weights.sum())
        self._total += rows
        self._sums += weighted.sum(axis=1)
        self._products += weighted @ deviations.T
        if self._holed:
            self._known_alone += weighted_known.sum(axis=1)
            self._known += weighted_known @ known.T
            self._sums_of_known += _product(weighted, known)
            self._squares_of_known += _product(deviations * weighted, known)

    def co_moments(self, pivots: Floats) -> CoMoments:
        """Return the co-moments; ``pivots`` (p, 2) are twofolds."""
        columns, holed = len(self._sums), self._holed
        n = np.full((columns, columns), self._total)
        sums = np.repeat(self._sums[:, None], columns, axis=1)
        squares = np.repeat(np.diag(self._products)[:, None], columns, axis=1)
        if holed:
            n[holed, :] = self._known_alone[:, None]
            n[:, holed] = self._known_alone[None, :]
            n[np.ix_(holed, holed)] = self._known
            sums[:, holed] = self._sums_of_known
            squares[:, holed] = self._squares_of_known
        divisor = np.maximum(n, 1.0)
        zero = np.zeros_like(n)
        known = n > 0
        return CoMoments(
            np.rint(n).astype(np.int64),
            add_twofold((pivots[:, :1] * known, pivots[:, 1:] * known), (sums / divisor, zero)),
            (np.maximum(squares - sums * sums / divisor, 0.0), zero),
            (self._products - sums * sums.T / divisor, zero.copy()),
        )


def _product(left: Floats, right: Floats) -> Floats:
    """Return ``left @ right.T``, of narrow tables in pieces for which BLAS wakes no threads."""
    step = _ALONE // (len(left) * len(right))
    if step < _FEWEST_ROWS:
        return np.asarray(left @ right.T)
    total = np.zeros((len(left), len(right)))
    for start in range(0, left.shape[1], step):
        total += left[:, start : start + step] @ right[:, start : start + step].T
    return total
