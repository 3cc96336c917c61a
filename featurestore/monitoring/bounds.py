"""Bounds of distances: by sampling error, and by the variation between windows of one source.

A distance is out of bounds when it exceeds three limits: the configured threshold, the sampling
error of two unchanged samples of these sizes (from the variance of the statistic), and the
distances between the windows of the baseline (a Monday differs from a Sunday).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Minimum number of baseline windows to estimate their variation.
MIN_WINDOWS = 5
# Limit for baseline distances in standard deviations above the median. The deviation is estimated
# from the ninth decile, which is at 1.28 deviations in a normal distribution.
_DEVIATIONS = 4.0
_NORMAL_DECILE = 1.2816
# Chosen after days of storms had raised alarms on the flights; see docs/how-to/watch.md.
_TAIL_FACTOR = 1.5
# By chance, the bounds of one test are exceeded at most once in 200 windows, and a monitor raises
# one false alarm in about 1,000 windows.
_MAX_ALPHA = 0.005
_ALARM_RATE = 1e-3
# Maximum distances: a bound at the maximum means that there are too few rows to detect drift.
MAX_DISTANCES = {"psi": math.inf, "ks": 1.0, "js": 1.0}
# Up to this many rows, the probabilities of counts are summed exactly.
_EXACT_ROWS = 100_000


def alpha_of(features: int, confirm: int) -> float:
    """Return the significance level per test that gives one false alarm in 1,000 windows.

    The rate covers all features; ``confirm`` consecutive windows must be out of bounds.

    >>> alpha_of(1, 1), alpha_of(20, 2)
    (0.001, 0.005)
    """
    return min(float((_ALARM_RATE / max(features, 1)) ** (1 / confirm)), _MAX_ALPHA)


def chance_ks(before: float, now: float, alpha: float) -> float:
    """Return the Kolmogorov-Smirnov distance that unchanged samples exceed with ``alpha``.

    Smirnov's limit: P(D > d) is about 2 exp(-2 d^2 / (1/n + 1/m)).
    """
    return math.sqrt(-math.log(alpha / 2) / 2 * _size_factor(before, now))


def chance_psi(bins: int, before: float, now: float, alpha: float) -> float:
    """Return the population stability index that unchanged samples exceed with ``alpha``.

    Without a change, the index is approximately chi-squared with ``bins - 1`` degrees of freedom,
    times 1/n + 1/m.
    """
    return chi_squared(bins - 1, alpha) * _size_factor(before, now)


def chance_js(bins: int, before: float, now: float, alpha: float) -> float:
    """Return the Jensen-Shannon distance (base 2) that unchanged samples exceed with ``alpha``.

    For small changes, the divergence is an eighth of the population stability index.
    """
    return math.sqrt(chance_psi(bins, before, now, alpha) / (8 * math.log(2)))


def chance_count(missing: float, before: float, now: float, alpha: float) -> tuple[int, int]:
    """Return the expected range of missing values in ``now`` rows if the share did not change.

    ``missing`` of ``before`` rows had no value. Each bound is exceeded with a probability of at
    most ``alpha / 2``. The bounds are exact: the predictive distribution of a binomial with an
    estimated share is beta-binomial (with Jeffreys' prior). Many rows use a normal approximation.

    >>> chance_count(20, 1000, 100, 0.01)
    (0, 7)
    """
    rows = round(now)
    # Jeffreys' prior is Beta(1/2, 1/2): half a success and half a failure before any row.
    successes, failures = missing + 0.5, max(before - missing, 0.0) + 0.5
    if rows > _EXACT_ROWS:
        share = successes / (successes + failures)
        deviation = math.sqrt(share * (1 - share) * _size_factor(before, now))
        width = quantile(alpha / 2) * deviation * rows
        return math.floor(share * rows - width), math.ceil(share * rows + width)
    cumulative = np.cumsum(_beta_binomial(rows, successes, failures))
    minimum = int(np.searchsorted(cumulative, alpha / 2, side="right"))
    maximum = int(np.searchsorted(cumulative, 1 - alpha / 2))
    return minimum, min(maximum, rows)


def _beta_binomial(rows: int, successes: float, failures: float) -> NDArray[np.float64]:
    """Return the probabilities of the counts 0 to ``rows``, computed recursively."""
    # In logarithms, because the gamma function exceeds the range of floats above 171.
    first = math.lgamma(failures + rows) + math.lgamma(successes + failures)
    first -= math.lgamma(failures) + math.lgamma(successes + failures + rows)
    count = np.arange(rows, dtype=np.float64)
    steps = np.log((rows - count) * (successes + count))
    steps -= np.log((count + 1) * (failures + rows - count - 1))
    return np.exp(np.concatenate(([first], first + np.cumsum(steps))))


def chance_unseen(counts: Sequence[int], now: float) -> float:
    """Return an upper bound for the share of unseen values if nothing changed.

    The probability of unseen values is approximately the share of rows whose value occurs once
    (Good and Turing, 1953); the bound is three standard deviations above.

    Args:
        counts: Number of occurrences of each value of the baseline.
        now: Number of rows of the window.

    >>> chance_unseen([50, 50], 100) < 0.1 < chance_unseen([1] * 10 + [90], 100)
    True
    """
    rows = max(sum(counts), 1)
    once = sum(count == 1 for count in counts)
    unseen = (once + 3 * math.sqrt(once + 1)) / rows
    return unseen + 3 * math.sqrt(unseen / max(now, 1.0)) + 1.5 / max(now, 1.0)


def quantile(alpha: float) -> float:
    """Return the value that a standard normal variable exceeds with probability ``alpha``.

    >>> round(quantile(0.025), 2)
    1.96
    """
    return NormalDist().inv_cdf(1 - alpha)


def chi_squared(degrees: int, alpha: float) -> float:
    """Return the value that chi-squared exceeds with ``alpha`` (Wilson and Hilferty, 1931).

    >>> round(chi_squared(9, 0.05), 1)
    16.9
    """
    degrees = max(degrees, 1)
    step = 2 / (9 * degrees)
    return float(degrees * (1 - step + quantile(alpha) * math.sqrt(step)) ** 3)


def baseline_limit(distances: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the upper limit of the distances of baseline windows, or 0 for too few windows.

    The limit is four deviations above the median, which is robust against one outlier.
    """
    if len(distances) < MIN_WINDOWS:
        return 0.0
    distance_array = np.asarray(distances, dtype=np.float64)
    # The standard deviation itself would follow outliers, whose windows it must detect.
    median, decile = np.quantile(distance_array, [0.5, 0.9])
    return float(median + _DEVIATIONS * (decile - median) / _NORMAL_DECILE)


def heavy_tail_limit(distances: Sequence[float]) -> float:
    """Return 1.5 times the largest distance, or 0 for too few windows.

    Heavy-tailed distances (such as storms) rarely exceed this limit: with a quadratic tail, less
    than once in a hundred windows after fifty. For a normal distribution it is close to
    ``baseline_limit``.

    >>> heavy_tail_limit([0.1, 0.1, 0.2, 0.1, 0.1])
    0.30000000000000004
    """
    if len(distances) < MIN_WINDOWS:
        return 0.0
    return _TAIL_FACTOR * max(distances)


def baseline_range(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the expected range of values from baseline windows, or None for too few windows."""
    if len(values) < MIN_WINDOWS:
        return None
    value_array = np.asarray(values, dtype=np.float64)
    median = float(np.median(value_array))
    # Equal values have no variation, but a rounding error must not be out of bounds.
    width = max(baseline_limit(np.abs(value_array - median)), 1e-9 * abs(median))
    return median - width, median + width


def _size_factor(before: float, now: float) -> float:
    return 1 / max(before, 1.0) + 1 / max(now, 1.0)
