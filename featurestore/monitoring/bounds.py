"""How far two samples differ by chance, and windows of one source among each other.

A distance is out of bounds when it exceeds three things: the threshold that was asked for, what two
samples of these sizes differ by when nothing changed (from the variance of the statistic), and what
the windows of the baseline differ by from one another (a Monday is not a Sunday).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Windows of the baseline that are needed to tell how much windows differ.
FEWEST_WINDOWS = 5
# Deviations above the median that windows stay below, a deviation being told from the nine in ten
# that are nearest: 1.28 of them in a normal distribution.
_DEVIATIONS = 4.0
_NINE_IN_TEN = 1.2816
_HALF_AGAIN = 1.5
_WORST = 0.005
_PER_WINDOW = 1e-3
# The greatest value of a distance: a bound there says that so few rows can tell of no drift.
GREATEST = {"psi": math.inf, "ks": 1.0, "js": 1.0}
# Rows up to which probabilities of counts are summed one by one.
_EXACT_ROWS = 100_000


def alpha_of(features: int, confirm: int) -> float:
    """Return the chance of one test, so that one window in a thousand alarms by chance alone.

    All features together; ``confirm`` windows in a row have to be out.

    >>> alpha_of(1, 1), alpha_of(20, 2)
    (0.001, 0.005)
    """
    return min(float((_PER_WINDOW / max(features, 1)) ** (1 / confirm)), _WORST)


def chance_ks(before: float, now: float, alpha: float) -> float:
    """Return the Kolmogorov-Smirnov distance that samples of these sizes exceed by chance.

    Smirnov's limit: P(D > d) is about 2 exp(-2 d^2 / (1/n + 1/m)).
    """
    return math.sqrt(-math.log(alpha / 2) / 2 * _spread(before, now))


def chance_psi(bins: int, before: float, now: float, alpha: float) -> float:
    """Return the population stability index that samples of these sizes exceed by chance.

    Without a change it is about chi-squared with ``bins - 1`` degrees of freedom, times
    1/n + 1/m.
    """
    return chi_squared(bins - 1, alpha) * _spread(before, now)


def chance_js(bins: int, before: float, now: float, alpha: float) -> float:
    """Return the Jensen-Shannon distance (base 2) that samples exceed by chance.

    Near no change the divergence is an eighth of the population stability index.
    """
    return math.sqrt(chance_psi(bins, before, now, alpha) / (8 * math.log(2)))


def chance_count(missing: float, before: float, now: float, alpha: float) -> tuple[int, int]:
    """Return the fewest and the most of ``now`` rows that lack a value by chance.

    Each is exceeded with half of ``alpha`` at most where ``missing`` of ``before`` rows lacked one
    and nothing changed: exact, as what is predicted of a binomial whose share was only estimated
    is beta-binomial (with Jeffreys' prior). Many rows have the normal limit.

    >>> chance_count(20, 1000, 100, 0.01)
    (0, 7)
    """
    rows = round(now)
    yes, no = missing + 0.5, max(before - missing, 0.0) + 0.5
    if rows > _EXACT_ROWS:
        share = yes / (yes + no)
        deviation = math.sqrt(share * (1 - share) * _spread(before, now))
        width = quantile(alpha / 2) * deviation * rows
        return math.floor(share * rows - width), math.ceil(share * rows + width)
    up_to = np.cumsum(_beta_binomial(rows, yes, no))
    fewest = int(np.searchsorted(up_to, alpha / 2, side="right"))
    most = int(np.searchsorted(up_to, 1 - alpha / 2))
    return fewest, min(most, rows)


def _beta_binomial(rows: int, yes: float, no: float) -> NDArray[np.float64]:
    """Return the probabilities of 0 to ``rows``, each from the one before it."""
    first = math.lgamma(no + rows) + math.lgamma(yes + no)
    first -= math.lgamma(no) + math.lgamma(yes + no + rows)
    count = np.arange(rows, dtype=np.float64)
    steps = np.log((rows - count) * (yes + count))
    steps -= np.log((count + 1) * (no + rows - count - 1))
    return np.exp(np.concatenate(([first], first + np.cumsum(steps))))


def chance_unseen(counts: Sequence[int], now: float) -> float:
    """Return the share of new values that is exceeded by chance where nothing changed.

    The probability of what was never seen is about the share of rows whose value was seen once
    (Good and Turing, 1953); three deviations of it in so many rows are added.

    Args:
        counts: How often each value of the baseline was seen.
        now: Rows of the window.

    >>> chance_unseen([50, 50], 100) < 0.1 < chance_unseen([1] * 10 + [90], 100)
    True
    """
    rows = max(sum(counts), 1)
    once = sum(count == 1 for count in counts)
    unseen = (once + 3 * math.sqrt(once + 1)) / rows
    return unseen + 3 * math.sqrt(unseen / max(now, 1.0)) + 1.5 / max(now, 1.0)


def quantile(alpha: float) -> float:
    """Return what a standard normal variable exceeds with this chance.

    >>> round(quantile(0.025), 2)
    1.96
    """
    return NormalDist().inv_cdf(1 - alpha)


def chi_squared(degrees: int, alpha: float) -> float:
    """Return what chi-squared exceeds with this chance (Wilson and Hilferty, 1931).

    >>> round(chi_squared(9, 0.05), 1)
    16.9
    """
    degrees = max(degrees, 1)
    step = 2 / (9 * degrees)
    return float(degrees * (1 - step + quantile(alpha) * math.sqrt(step)) ** 3)


def usual(distances: Sequence[float] | NDArray[np.float64]) -> float:
    """Return what the distances of windows among each other stay below; 0 for too few windows.

    Four deviations above their median, which one wild window does not move.
    """
    if len(distances) < FEWEST_WINDOWS:
        return 0.0
    found = np.asarray(distances, dtype=np.float64)
    median, most = np.quantile(found, [0.5, 0.9])
    return float(median + _DEVIATIONS * (most - median) / _NINE_IN_TEN)


def beyond_worst(distances: Sequence[float]) -> float:
    """Return half as much again as the greatest distance; 0 for too few windows.

    Where distances have a heavy tail (storms), the next one exceeds this rarely: of a tail that
    falls with the square less than once in a hundred windows after fifty. Of a normal distribution
    it is about what ``usual`` is.

    >>> beyond_worst([0.1, 0.1, 0.2, 0.1, 0.1])
    0.30000000000000004
    """
    if len(distances) < FEWEST_WINDOWS:
        return 0.0
    return _HALF_AGAIN * max(distances)


def usual_range(values: Sequence[float]) -> tuple[float, float] | None:
    """Return between which bounds the values of windows stay; None for too few windows."""
    if len(values) < FEWEST_WINDOWS:
        return None
    found = np.asarray(values, dtype=np.float64)
    median = float(np.median(found))
    width = max(usual(np.abs(found - median)), 1e-9 * abs(median))
    return median - width, median + width


def _spread(before: float, now: float) -> float:
    return 1 / max(before, 1.0) + 1 / max(now, 1.0)
