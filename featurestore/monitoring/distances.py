"""Distances of distributions given as shares of the same bins: one pair, or a row for each pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Added to the rows of every bin: the logarithm of an empty one is endless.
_HALF_A_ROW = 0.5


def population_stability(
    before: Floats, now: Floats, rows: tuple[Floats | float, Floats | float]
) -> Floats:
    """Return the population stability index: the sum of (q - p) ln(q / p).

    >>> half = np.array([0.5, 0.5])
    >>> float(population_stability(half, half, (100, 100)))
    0.0
    """
    p, q = _smoothed(before, rows[0]), _smoothed(now, rows[1])
    return np.asarray(((q - p) * np.log(q / p)).sum(axis=-1))


def jensen_shannon(before: Floats, now: Floats) -> Floats:
    """Return the Jensen-Shannon distance: the root of the divergence in bits, from 0 to 1.

    >>> float(jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])))
    1.0
    """
    middle = (before + now) / 2
    divergence = (_relative_entropy(before, middle) + _relative_entropy(now, middle)) / 2
    return np.asarray(np.sqrt(np.clip(divergence, 0.0, 1.0)))


def kolmogorov_smirnov(before: Floats, now: Floats) -> Floats:
    """Return the largest difference of two distribution functions at the same points.

    >>> float(kolmogorov_smirnov(np.array([0.25, 1.0]), np.array([0.75, 1.0])))
    0.5
    """
    return np.asarray(np.abs(before - now).max(axis=-1, initial=0.0))


def _smoothed(shares: Floats, rows: Floats | float) -> Floats:
    counted = np.asarray(rows)[..., np.newaxis]
    bins = shares.shape[-1]
    return np.asarray((shares * counted + _HALF_A_ROW) / (counted + _HALF_A_ROW * bins))


def _relative_entropy(p: Floats, q: Floats) -> Floats:
    p, q = np.broadcast_arrays(p, q)
    ratio = np.divide(p, q, out=np.ones(p.shape), where=p > 0)
    return np.asarray((p * np.log2(ratio)).sum(axis=-1))
