"""Distances between binned distributions, and their limits by chance and by usual variation.

The window is compared with its baseline, and each reference window with the rest of its group. The
first row of each array is the window, the others are the reference windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featurestore.monitoring import bounds

Floats = NDArray[np.float64]
# Added to the row count of every bin, because the logarithm of an empty bin is infinite.
_PSEUDO_COUNT = 0.5
# Cochran's rule: chi-squared is a good approximation if at least this many rows are expected.
_MIN_EXPECTED = 5.0


def population_stability(
    before: Floats, now: Floats, rows: tuple[Floats | float, Floats | float]
) -> Floats:
    """Return the population stability index: the sum of (q - p) ln(q / p).

    >>> half = np.array([0.5, 0.5])
    >>> float(population_stability(half, half, (100, 100)))
    0.0
    """
    p, q = _smooth_shares(before, rows[0]), _smooth_shares(now, rows[1])
    return np.asarray(((q - p) * np.log(q / p)).sum(axis=-1))


def jensen_shannon(before: Floats, now: Floats) -> Floats:
    """Return the Jensen-Shannon distance: the root of the divergence in bits, from 0 to 1.

    >>> float(jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])))
    1.0
    """
    middle = (before + now) / 2
    divergence = (_relative_entropy(before, middle) + _relative_entropy(now, middle)) / 2
    # Rounding can make the divergence of equal distributions negative.
    return np.asarray(np.sqrt(np.clip(divergence, 0.0, 1.0)))


def kolmogorov_smirnov(before: Floats, now: Floats) -> Floats:
    """Return the largest difference between two distribution functions at the same points.

    >>> float(kolmogorov_smirnov(np.array([0.25, 1.0]), np.array([0.75, 1.0])))
    0.5
    """
    return np.asarray(np.abs(before - now).max(axis=-1, initial=0.0))


def total_variation(before: Floats, now: Floats) -> Floats:
    """Return the total variation distance: the share of rows that changed their value.

    For two values it is the Kolmogorov-Smirnov distance.

    >>> float(total_variation(np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.25, 0.25])))
    0.25
    """
    return np.asarray(np.abs(before - now).sum(axis=-1) / 2)


def chi_distance(
    before: Floats, now: Floats, rows: tuple[Floats | float, Floats | float]
) -> Floats:
    """Return the root of Pearson's chi-squared of two samples, divided by its scale 1/n + 1/m.

    >>> shares = np.array([0.3, 0.7]), np.array([0.5, 0.5])
    >>> round(float(chi_distance(*shares, (100, 100))), 4)  # 0.2 / sqrt(0.4 * 0.6)
    0.4082
    """
    pooled = _pool_shares(before, now, rows)
    squares = np.divide((now - before) ** 2, pooled, out=np.zeros(pooled.shape), where=pooled > 0)
    return np.asarray(np.sqrt(squares.sum(axis=-1)))


def _pool_shares(
    before: Floats, now: Floats, rows: tuple[Floats | float, Floats | float]
) -> Floats:
    n, m = np.asarray(rows[0])[..., np.newaxis], np.asarray(rows[1])[..., np.newaxis]
    return np.asarray((before * n + now * m) / (n + m))


def _smooth_shares(shares: Floats, rows: Floats | float) -> Floats:
    row_counts = np.asarray(rows)[..., np.newaxis]
    bins = shares.shape[-1]
    return np.asarray((shares * row_counts + _PSEUDO_COUNT) / (row_counts + _PSEUDO_COUNT * bins))


def _relative_entropy(p: Floats, q: Floats) -> Floats:
    p, q = np.broadcast_arrays(p, q)
    # By convention, 0 log 0 is 0.
    ratio = np.divide(p, q, out=np.ones(p.shape), where=p > 0)
    return np.asarray((p * np.log2(ratio)).sum(axis=-1))


@dataclass(frozen=True)
class Shares:
    """Two distributions in the same bins, a row per comparison, with their numbers of rows."""

    before: Floats
    now: Floats
    rows_before: Floats
    rows_now: Floats

    @property
    def rows(self) -> tuple[Floats, Floats]:
        """The numbers of rows of both distributions."""
        return self.rows_before, self.rows_now

    def merge_rare_bins(self) -> Shares:
        """Merge the rarest bins until each expects five rows in the window, or two bins are left."""
        rows = self.rows_before[0], self.rows_now[0]
        expected = _pool_shares(self.before[0], self.now[0], rows) * self.rows_now[0]
        order = np.argsort(-expected, kind="stable")
        ordered = expected[order]
        # The expected rows of each bin together with all rarer ones.
        tails = np.cumsum(ordered[::-1])[::-1]
        # A bin stays if it is frequent, and if the rarer bins are so, too, once they are merged.
        is_separate = tails >= _MIN_EXPECTED
        is_separate[1:] &= ordered[:-1] >= _MIN_EXPECTED
        count = max(int(is_separate.cumprod().sum()), 2)
        starts = np.arange(count)
        return Shares(
            np.add.reduceat(self.before[:, order], starts, axis=1),
            np.add.reduceat(self.now[:, order], starts, axis=1),
            self.rows_before,
            self.rows_now,
        )


@dataclass(frozen=True)
class MeasuredDistance:
    """One measure of a window, and what its limits depend on.

    ``distances`` are on a scale that is proportional to the sampling error: the root of the index
    for PSI, the root of chi-squared for the total variation.
    """

    measure: str
    value: float
    distances: Floats
    rows_before: Floats
    rows_now: Floats
    bins: int
    two_shares: tuple[float, float] | None = None

    def limit(self, alpha: float, *, variation: float = 1.0, heavy_tails: bool = False) -> float:
        """Return the value that an unchanged window exceeds with probability ``alpha``.

        Args:
            alpha: The significance level.
            variation: The variation of the compared mixture relative to that of one window.
            heavy_tails: Whether one extreme window must not exceed the limit, because no other
                window confirms it.
        """
        sizes = bounds.size_factor(self.rows_before, self.rows_now)
        high = bounds.distance_limit(
            self.measure,
            self.bins,
            alpha,
            size=float(sizes[0]),
            reference=self.distances[1:],
            reference_sizes=sizes[1:],
            variation=variation,
            heavy_tails=heavy_tails,
        )
        if self.measure == "psi":
            return high**2
        if self.measure in ("ks", "js") and self.two_shares is None:
            return high
        # The smallest change of the same shape that is beyond chance.
        high *= self.value / max(float(self.distances[0]), 1e-12)
        if self.two_shares is None:
            return high
        # Few expected rows of one of two values: the exact bound of a count.
        before, now = self.two_shares
        n, m = float(self.rows_before[0]), float(self.rows_now[0])
        low_count, high_count = bounds.chance_count(before * n, n, m, alpha)
        exact = high_count / m - before if now > before else before - low_count / m
        return max(high, exact)


def measure_shares(shares: Shares) -> list[MeasuredDistance]:
    """Measure PSI and Jensen-Shannon distance of all bins."""
    index = population_stability(shares.before, shares.now, shares.rows)
    divergence = jensen_shannon(shares.before, shares.now)
    bins = shares.before.shape[1]
    return [
        MeasuredDistance("psi", float(index[0]), np.sqrt(index), *shares.rows, bins),
        MeasuredDistance("js", float(divergence[0]), divergence, *shares.rows, bins),
    ]


def measure_points(points: Shares) -> MeasuredDistance:
    """Measure the Kolmogorov-Smirnov distance of two distribution functions."""
    distances = kolmogorov_smirnov(points.before, points.now)
    return MeasuredDistance("ks", float(distances[0]), distances, *points.rows, 0)


def measure_categories(measure: str, shares: Shares) -> MeasuredDistance:
    """Measure the total variation of few values, with the limits of Pearson's chi-squared."""
    merged = shares.merge_rare_bins()
    before, now = merged.before, merged.now
    bins = before.shape[1]
    two_shares = None
    if bins == 2:
        two_shares = float(before[0, 0]), float(now[0, 0])
    return MeasuredDistance(
        measure,
        float(total_variation(before[0], now[0])),
        chi_distance(before, now, merged.rows),
        *merged.rows,
        bins,
        two_shares,
    )


def has_common_change(windows: Shares) -> bool:
    """Return whether each window has at least half of the change of all windows together.

    One extreme window could otherwise decide alone. ``windows`` has a row per window: shares of
    bins, or values of distribution functions.
    """
    changes = windows.now - windows.before
    joint = windows.rows_now @ changes / windows.rows_now.sum()
    in_direction = changes @ np.sign(joint)
    return bool((in_direction >= np.abs(joint).sum() / 2).all())
