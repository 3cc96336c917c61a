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
MAX_DISTANCES = {"psi": math.inf, "ks": 1.0, "js": 1.0, "tv": 1.0}
# Up to this many rows, the probabilities of counts are summed exactly.
_EXACT_ROWS = 100_000


def alpha_of(features: int, confirm: int) -> float:
    """Return the significance level per test that gives one false alarm in 1,000 windows.

    The rate covers all features; ``confirm`` consecutive windows must be out of bounds.

    >>> alpha_of(1, 1), alpha_of(20, 2)
    (0.001, 0.005)
    """
    return min(float((_ALARM_RATE / max(features, 1)) ** (1 / confirm)), _MAX_ALPHA)


def critical_distance(measure: str, bins: int, alpha: float) -> float:
    """Return the distance that unchanged samples exceed with ``alpha``, for 1/n + 1/m = 1.

    KS: Smirnov's limit, P(D > d) is about 2 exp(-2 d^2). PSI and chi-squared: without a change,
    both are approximately chi-squared with ``bins - 1`` degrees of freedom. JS (base 2): for small
    changes, the divergence is an eighth of the population stability index.

    >>> round(critical_distance("ks", 0, 0.05), 3), round(critical_distance("tv", 2, 0.05), 2)
    (1.358, 1.96)
    """
    if measure == "ks" and bins == 0:
        return math.sqrt(-math.log(alpha / 2) / 2)
    distance = math.sqrt(chi_squared(bins - 1, alpha))
    return distance / math.sqrt(8 * math.log(2)) if measure == "js" else distance


def distance_limit(
    measure: str,
    bins: int,
    alpha: float,
    *,
    size: float,
    reference: NDArray[np.float64],
    reference_sizes: NDArray[np.float64],
    variation: float = 1.0,
    heavy_tails: bool = False,
) -> float:
    """Return the limit of a distance by chance and by the variation of the reference windows.

    Reference windows have sampling errors, too. Only their variation beyond chance widens the
    limit, because it would otherwise count the sampling error twice.

    Args:
        measure: The measure; see ``critical_distance``.
        bins: The number of bins, 0 for distribution functions.
        alpha: The significance level.
        size: 1/n + 1/m of the window and its baseline.
        reference: The distances of the reference windows.
        reference_sizes: 1/n + 1/m of each reference window.
        variation: The variation of a mixture of windows relative to that of one window.
        heavy_tails: Whether to exceed the largest distance of a reference window, too.
    """
    chance = critical_distance(measure, bins, alpha) * math.sqrt(size)
    if len(reference) < MIN_WINDOWS:
        return chance
    median, decile = (critical_distance(measure, bins, level) for level in (0.5, 0.1))
    usual = float(np.median(reference_sizes))
    ratio = float(np.quantile(reference / np.sqrt(reference_sizes), 0.9)) / decile
    # Variances add up: that of the sampling error, and that between windows.
    between = max(ratio**2 - 1, 0.0) * usual * variation**2
    limit = chance * math.sqrt(1 + between / size)
    # The ninth decile of few distances varies by about half of its value over their root, so the
    # shape of their distribution counts from two such errors on, and fully from four.
    weight = min(max((ratio - 1) * math.sqrt(len(reference)) - 1, 0.0), 1.0)
    by_chance = (median + _DEVIATIONS * (decile - median) / _NORMAL_DECILE) * math.sqrt(usual)
    excess = max(baseline_limit(reference) ** 2 - by_chance**2, 0.0) * variation**2 * weight
    limit = max(limit, math.hypot(chance, math.sqrt(excess)))
    if heavy_tails:
        critical = critical_distance(measure, bins, _MAX_ALPHA / len(reference))
        largest = max(float((reference**2 - critical**2 * reference_sizes).max()), 0.0)
        limit = max(limit, math.hypot(chance, _TAIL_FACTOR * math.sqrt(largest)))
    return limit


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
        deviation = math.sqrt(share * (1 - share) * size_factor(before, now))
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


def chance_unseen(counts: Sequence[int], now: float, alpha: float) -> float:
    """Return the share of unseen values that ``alpha / 2`` of unchanged windows exceed.

    The probability of unseen values is approximately the share of rows whose value occurs once
    (Good and Turing, 1953). The bound is the exact one of a count. Values that occur twice show how
    uncertain the estimate is.

    Args:
        counts: Number of occurrences of each value of the baseline.
        now: Number of rows of the window.
        alpha: The significance level of a two-sided test.

    >>> chance_unseen([50, 50], 100, 0.01) < 0.1 < chance_unseen([1] * 10 + [90], 100, 0.01)
    True
    """
    rows = max(sum(counts), 1)
    once = sum(count == 1 for count in counts)
    deviation = math.sqrt(once + 2 * sum(count == 2 for count in counts))
    _, maximum = chance_count(min(once + deviation, rows), rows, now, alpha)
    return maximum / max(now, 1.0)


def quantile(alpha: float) -> float:
    """Return the value that a standard normal variable exceeds with probability ``alpha``.

    >>> round(quantile(0.025), 2)
    1.96
    """
    return NormalDist().inv_cdf(1 - alpha)


def chi_squared(degrees: int, alpha: float) -> float:
    """Return the value that chi-squared exceeds with ``alpha``.

    It is exact for one degree of freedom (the square of a normal variable) and for two (an
    exponential variable), otherwise the approximation of Wilson and Hilferty (1931).

    >>> round(chi_squared(1, 0.05), 2), round(chi_squared(9, 0.05), 1)
    (3.84, 16.9)
    """
    if degrees <= 1:
        return quantile(alpha / 2) ** 2
    if degrees == 2:
        return -2 * math.log(alpha)
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


def size_factor(
    before: float | NDArray[np.float64], now: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return 1/n + 1/m, the scale of the variance of a difference between two samples."""
    return np.asarray(1 / np.maximum(before, 1.0) + 1 / np.maximum(now, 1.0))
