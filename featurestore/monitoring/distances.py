"""Distances of distributions as shares of common bins: one pair, or one row for each pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Added to the rows of every bin, because the logarithm of an empty bin is infinite.
_PSEUDO_COUNT = 0.5


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
    row_counts = np.asarray(rows)[..., np.newaxis]
    bins = shares.shape[-1]
    return np.asarray((shares * row_counts + _PSEUDO_COUNT) / (row_counts + _PSEUDO_COUNT * bins))


def _relative_entropy(p: Floats, q: Floats) -> Floats:
    p, q = np.broadcast_arrays(p, q)
    ratio = np.divide(p, q, out=np.ones(p.shape), where=p > 0)
    return np.asarray((p * np.log2(ratio)).sum(axis=-1))
